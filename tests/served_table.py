"""A verifier on a table of logits, served over real gRPC on the loopback, and clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import grpc
import grpc.aio
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import NDArray

from acespec.cloud_verifier.engine import Feed, TargetEngine
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import Observer
from acespec.cloud_verifier.server import VerifierServer
from acespec.cloud_verifier.server_options import ServerOptions
from acespec.cloud_verifier.service import SERVICE_NAME
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import ThreadRunner
from acespec.edge_runtime.grpc_transport import VerifierChannel
from acespec.wire import (
    SessionError,
)
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from verifier_client import VerifierClient, open_request

VOCAB = 16
TABLE = hashed_table(VOCAB, salt=3)
FREE_PORT = ServerOptions(port=0)
NO_RESUMING = Limits(resume_ttl_s=0.0)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@contextlib.asynccontextmanager
async def running(
    engine: TargetEngine,
    options: ServerOptions = FREE_PORT,
    limits: Limits | None = None,
    observer: Observer | None = None,
) -> AsyncIterator[tuple[VerifierServer, str]]:
    """A server and its address."""
    runner = ThreadRunner("target")
    server = VerifierServer(Verifier(engine, runner, limits, observer), options, observer=observer)
    address = await server.start()
    try:
        yield server, address
    finally:
        await server.stop(0.0)
        runner.close()


@contextlib.asynccontextmanager
async def client_of(
    address: str, engine: TargetEngine, prompt: list[int], **changes: object
) -> AsyncIterator[VerifierClient]:
    """A session on a connection of its own, begun."""
    async with VerifierChannel(address) as channel:
        client = VerifierClient(channel.session(), open_request(engine, prompt, **changes))
        with contextlib.suppress(SessionError):  # who is refused at once reads why
            await client.begin()
        yield client
        await client.link.close()


async def health(address: str, service: str = SERVICE_NAME) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


def engine() -> TableTargetEngine:
    return TableTargetEngine(TABLE, VOCAB)


class AnnouncingEngine(TableTargetEngine):
    """Tells of every forward, and makes it wait while the gate is shut."""

    def __init__(self) -> None:
        super().__init__(TABLE, VOCAB)
        self.gate = threading.Event()
        self.gate.set()
        self.on_forward: Callable[[], None] = lambda: None
        self.on_close: Callable[[], None] = lambda: None

    def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
        if any(feed.num_logits for feed in feeds):
            self.on_forward()
            assert self.gate.wait(30.0)
        return super().step(feeds)

    def close(self, sequence: int) -> None:
        super().close(sequence)
        self.on_close()


def event_of(loop: asyncio.AbstractEventLoop) -> tuple[asyncio.Event, Callable[[], None]]:
    """An event, and a function any thread may call to set it."""
    event = asyncio.Event()
    return event, lambda: loop.call_soon_threadsafe(event.set)
