"""A session that has ended is freed at once: nothing of ours waits for the garbage collector.

Memory of cycles stays until a collection finds them, and a server's must be rare.
"""

from __future__ import annotations

import asyncio
import gc

from acespec.bench.verifier_load import Edge, connect
from acespec.bench.verifier_zero_cost import ZeroCostEngine, zero_cost_script
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.server import VerifierServer
from acespec.cloud_verifier.server_options import ServerOptions
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import ThreadRunner

NUM_SESSIONS = 4


def garbage_of_ours() -> list[str]:
    """The types of AceSpec's own objects that only a collection frees."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return [
            type(thing).__qualname__ for thing in gc.garbage if type(thing).__module__.startswith("acespec.")
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


async def sessions_come_and_go(address: str) -> None:
    script = zero_cost_script(prompt_length=20, num_rounds=4)
    async with connect(address, 1) as (streams,):
        for _ in range(NUM_SESSIONS):
            edge = Edge(streams, script)
            await edge.open()
            await edge.round()
            await edge.drop()
            await edge.resume()
            await edge.round()
            await edge.close()


async def garbage_of_a_server() -> list[str]:
    runner = ThreadRunner("target")
    server = VerifierServer(Verifier(ZeroCostEngine(), runner, Limits()), ServerOptions(port=0))
    try:
        address = await server.start()
        gc.collect()
        gc.disable()
        await sessions_come_and_go(address)
        return garbage_of_ours()
    finally:
        gc.enable()
        await server.stop(1.0)
        runner.close()


def test_ended_sessions_leave_no_cycles() -> None:
    assert asyncio.run(garbage_of_a_server()) == []
