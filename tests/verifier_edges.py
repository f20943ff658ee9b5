"""Edges of a verifier in one process, and a target that can be held in mid-forward."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from acespec.cloud_verifier.engine import Feed
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.tenants import ANONYMOUS, Tenant
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner, StepRunner, ThreadRunner
from acespec.wire import Open, ResetReason, Resume, memory_link
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from verifier_client import VerifierClient, open_request, serve_stream

VOCAB = 8
TABLE = hashed_table(VOCAB, salt=2)
UNKNOWN = ResetReason.UNKNOWN_SESSION


class Edges:
    """Edges of one verifier, each stream over a link of its own."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.streams: list[asyncio.Task[None]] = []

    def stream(self, request: Open, tenant: Tenant = ANONYMOUS) -> VerifierClient:
        """A stream on which nothing was sent yet."""
        edge, cloud = memory_link()
        self.streams.append(asyncio.ensure_future(serve_stream(self.verifier, cloud, tenant)))
        return VerifierClient(edge, request)

    async def opened(self, request: Open, tenant: Tenant = ANONYMOUS) -> VerifierClient:
        """A session that stands."""
        client = self.stream(request, tenant)
        await client.begin()
        await client.receive_opened()
        return client

    async def resumed(
        self, client: VerifierClient, epoch: int = 1, tenant: Tenant = ANONYMOUS
    ) -> VerifierClient:
        """Another stream of the client's session, which has sent ``Resume``; the old one is as it was."""
        assert client.opened is not None
        again = self.stream(client.request, tenant)
        again.committed, again.seq = list(client.committed), client.seq
        await again.send(Resume(client.opened.session_id, epoch, len(client.committed)))
        return again


@contextlib.asynccontextmanager
async def edges_of(
    engine: TableTargetEngine,
    limits: Limits | None = None,
    runner: StepRunner | None = None,
    step_ms: float = 0.0,
) -> AsyncIterator[Edges]:
    """A verifier whose edges are gone when the block is left; everything must then be free."""
    edges = Edges(Verifier(engine, runner or InlineRunner(), limits, latency_ms=lambda _: step_ms))
    try:
        yield edges
    finally:
        await edges.verifier.drain(0.0)
        await asyncio.gather(*edges.streams)
        assert edges.verifier.num_streams == edges.verifier.num_sessions == 0
        assert engine.sequences == {}
        assert engine.kv_tokens_used == 0


def table_engine(kv_tokens: int = 2**62) -> TableTargetEngine:
    return TableTargetEngine(TABLE, VOCAB, kv_tokens=kv_tokens)


async def lose(client: VerifierClient) -> None:
    """The stream ends without a ``Close``."""
    await client.link.close()


class GatedEngine(TableTargetEngine):
    """A target whose checks wait in their thread until they are let go."""

    def __init__(self, kv_tokens: int = 2**62) -> None:
        super().__init__(TABLE, VOCAB, kv_tokens=kv_tokens)
        self.gate = threading.Event()
        self.on_entry: Callable[[], None] = lambda: None

    def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
        if any(feed.num_logits for feed in feeds):
            self.on_entry()
            assert self.gate.wait(30.0)
        return super().step(feeds)


@contextlib.asynccontextmanager
async def under_way(
    engine: GatedEngine, limits: Limits | None = None
) -> AsyncIterator[tuple[Edges, VerifierClient]]:
    """A session whose first round is being computed."""
    loop, entered, runner = asyncio.get_running_loop(), asyncio.Event(), ThreadRunner("test")
    engine.on_entry = lambda: loop.call_soon_threadsafe(entered.set)
    async with edges_of(engine, limits, runner) as edges:
        client = await edges.opened(open_request(engine, [1]))
        await client.send(client.next_round([1, 2]))
        await entered.wait()
        yield edges, client
        engine.gate.set()
    runner.close()
