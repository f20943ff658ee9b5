"""How much of the verifier's memory a session takes."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from acespec.bench.processes import Service
from acespec.bench.verifier_load import Edge, Streams, connect
from acespec.bench.verifier_script import Script
from acespec.bench.verifier_server import SERVER
from acespec.errors import AcespecError


@dataclass(frozen=True)
class SessionMemory:
    """Resident KiB of the server a session takes."""

    open_kib: float
    """With a stream, which gRPC's buffers belong to."""
    parked_kib: float
    """Without one, waiting to be resumed."""


def resident_bytes(process: int) -> int:
    """Resident memory of a process. Raises ``AcespecError`` where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/statm").read_text("ascii").split()
    except OSError as error:
        raise AcespecError(f"the memory of process {process} cannot be read: Linux is needed") from error
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def process_of(server: Service) -> int:
    """The process id of a server that runs."""
    assert server.process is not None
    return server.process.pid


async def measure_session_memory(script: Script, num_sessions: int, num_channels: int) -> SessionMemory:
    """What sessions that have done one round take, each kind in a server of its own."""
    room = str(num_sessions + num_channels)
    grown = []
    for parked in (False, True):
        async with (
            Service("--max-sessions", room, module=SERVER) as server,
            connect(server.address, num_channels) as channels,
        ):
            await _visit(channels, script)  # what the first sessions load belongs to none
            before = resident_bytes(process_of(server))
            edges = [Edge(channels[index % num_channels], script) for index in range(num_sessions)]
            for edge in edges:
                await edge.open()
                await edge.round()
                if parked:
                    await edge.drop()
            await _visit(channels, script)  # behind whatever was sent before: it has arrived
            grown.append(resident_bytes(process_of(server)) - before)
            if parked:  # they must all be there
                await asyncio.gather(*[edge.resume() for edge in edges])
            await asyncio.gather(*[edge.round() for edge in edges])
    return SessionMemory(*(grown_bytes / 1024 / num_sessions for grown_bytes in grown))


async def _visit(channels: list[Streams], script: Script) -> None:
    """Over each connection a session from its beginning to its end."""
    for streams in channels:
        edge = Edge(streams, script)
        await edge.open()
        await edge.round()
        await edge.drop()
        await edge.resume()
        await edge.round()
        await edge.close()
