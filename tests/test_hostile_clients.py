"""Attacks on a server process: refused or bounded, in bounded memory, and without harm to who behaves.

``hostile.py`` carries them all out on one server, at full length, and prints what each cost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from attacked_server import server_command
from hostile import ATTACKS, IN_GRPC, MOST_MIB, mebibytes, survive, warm_up
from raw_http2 import PING, SETTINGS, frame, grpc_message, header_block
from server_process import ServerProcess

SHORTER = {
    "ping_floods": {"count": 20_000},
    "rapid_resets": {"count": 3000},
    "unfinished_headers": {"frames": 300},
}
"""What is cut short here. The 10,000 sessions, in turn and at once, are not."""


@pytest.mark.parametrize("name", ATTACKS)
async def test_the_server_survives(name: str) -> None:
    attack: Callable[[str], Awaitable[str]] = partial(ATTACKS[name], **SHORTER.get(name, {}))
    async with ServerProcess(server_command) as server:
        base = await warm_up(server)
        met, num_texts, watch = await survive(server, attack)
        assert met
        assert num_texts >= 1, "a client that behaves gets its text"
        if name not in IN_GRPC:
            assert watch.most - base <= MOST_MIB, f"{base:.1f} MiB became {watch.most:.1f}"
        assert await server.stop() == 0, server.errors()
        assert server.errors() == ""


async def test_resident_memory_is_that_of_the_process() -> None:
    async with ServerProcess(server_command) as server:
        (peak,) = (line.split()[1] for line in server.status().splitlines() if line.startswith("VmHWM:"))
        assert 20.0 < mebibytes(server) <= int(peak) / 1024 < 1000.0


def test_frames_worked_by_hand() -> None:
    """RFC 9113, section 4.1; RFC 7541, section 6.2.2; gRPC over HTTP/2, Length-Prefixed-Message."""
    assert frame(PING, 0, bytes(8)).hex() == "000008060000000000" + "00" * 8
    assert frame(SETTINGS, 0).hex() == "000000040000000000"
    assert header_block([("te", "trailers")]) == b"\x00\x02te\x08trailers"
    assert grpc_message(b"abc") == b"\x00\x00\x00\x00\x03abc"
