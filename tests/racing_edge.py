"""An edge that races by hand: it reads commits, and meanwhile sends whatever drafts a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import Observer, RaceReport
from acespec.cloud_verifier.tenants import ANONYMOUS, Tenant
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.wire import (
    Busy,
    Commit,
    Decode,
    Draft,
    DraftNode,
    EdgeTransport,
    Open,
    Resume,
    memory_link,
)
from coupled_text import coupled_text, remembered
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from verifier_client import VerifierClient, open_request, serve_stream

VOCAB = 6
TABLE = remembered(hashed_table(VOCAB, salt=11))
FORWARD_MS = 10.0


def tree_engine(**options: int) -> TableTargetEngine:
    return TableTargetEngine(TABLE, VOCAB, **options)


class Races(Observer):
    """Keeps the reports of races."""

    def __init__(self) -> None:
        self.reports: list[RaceReport] = []

    def race(self, report: RaceReport) -> None:
        self.reports.append(report)


class RacingEdge:
    """One generation that races, over as many streams as it takes. It knows the text that must come."""

    def __init__(
        self, verifier: Verifier, request: Open, tenant: Tenant = ANONYMOUS, delay_ms: float = 0.0
    ) -> None:
        self.verifier = verifier
        self.request = request
        self.tenant = tenant
        self.delay_ms = delay_ms
        self.truth = coupled_text(TABLE, request, verifier.max_context)
        self.next_id = 0
        self.epoch = 0
        self.client: VerifierClient
        self.decode: Decode
        self._serving: asyncio.Task[None] | None = None

    @property
    def committed(self) -> list[int]:
        return self.client.committed

    @property
    def finished(self) -> bool:
        return len(self.committed) == len(self.truth)

    async def begin(self, count: int | None = None) -> None:
        """Open, and ask for ``count`` tokens, by default all of them."""
        self.client = VerifierClient(self._connect(), self.request)
        await self.client.begin()
        self.decode = replace(self.client.next_decode(count or self.client.remaining), race=True)
        await self.client.send(self.decode)

    async def ask_anew(self) -> None:
        """Ask for the rest by a race of its own, once the last one has ended."""
        self.next_id = 0
        self.client.seq += 1
        self.decode = replace(self.client.next_decode(self.client.remaining), race=True)
        await self.client.send(self.decode)

    async def resume(self) -> None:
        """Lose the stream, and go on over another one."""
        opened = self.client.opened
        await self.leave()
        self.epoch, self.next_id = self.epoch + 1, 0
        self.client.link = self._connect()
        if opened is None:
            self.client.seq = 0
            committed = tuple(self.committed)
            self.client.request = replace(self.request, committed=committed, epoch=self.epoch)
            await self.client.send(self.client.request)
        else:
            await self.client.send(Resume(opened.session_id, self.epoch, len(self.committed)))
        await self.client.send(self.decode)

    async def leave(self) -> None:
        await self.client.link.close()
        assert self._serving is not None
        await self._serving

    async def draft(
        self, nodes: Sequence[tuple[int, int | None]], root: int | None = None, seq: int = 0
    ) -> None:
        """Send ``nodes``: tokens, and the index in the message of what each follows; None: the root."""
        first = self.next_id
        self.next_id += len(nodes)
        drafted = tuple(DraftNode(token, None if at is None else first + at) for token, at in nodes)
        rooted = any(at is None for _, at in nodes)
        root = (len(self.committed) - 1 if root is None else root) if rooted else 0
        await self.client.send(Draft((self.decode.seq + seq) % 64, first, root, drafted))

    async def draft_chain(self, tokens: Sequence[int], root: int | None = None, seq: int = 0) -> None:
        await self.draft([(token, k - 1 if k else None) for k, token in enumerate(tokens)], root, seq)

    async def hear(self, count: int = 1) -> None:
        """Take ``count`` commits; fails where one is not the text."""
        while count and not self.finished:
            message = await self.client.receive()
            if isinstance(message, Busy):
                await asyncio.sleep(message.retry_ms / 1000.0)
                again = self.client.request if self.client.opened is None else self.decode
                await self.client.send(again)
                if again is not self.decode:
                    await self.client.send(self.decode)
                continue
            assert isinstance(message, Commit)
            position = len(self.committed)
            assert message.position == position
            assert list(message.tokens) == self.truth[position : position + len(message.tokens)]
            self.client.committed += message.tokens
            count -= 1

    async def finish(self) -> None:
        while not self.finished:
            await self.hear()

    def _connect(self) -> EdgeTransport:
        async def delay(_: int) -> None:
            await asyncio.sleep(self.delay_ms / 1000.0)

        edge, cloud = memory_link(delay if self.delay_ms else None)
        self._serving = asyncio.ensure_future(serve_stream(self.verifier, cloud, self.tenant))
        return edge


@contextlib.asynccontextmanager
async def racing(
    engine: TableTargetEngine,
    limits: Limits | None = None,
    observer: Observer | None = None,
    latency_ms: Callable[[int], float] = lambda _: FORWARD_MS,
) -> AsyncIterator[Verifier]:
    """A verifier in simulated time; nothing is left of it when the block is left."""
    verifier = Verifier(engine, InlineRunner(), limits, observer, latency_ms=latency_ms)
    yield verifier
    await verifier.drain(0.0)
    assert engine.sequences == {}


def race_request(engine: TableTargetEngine, prompt: Sequence[int] = (1, 2, 3), **changes: object) -> Open:
    """An ``Open`` of an edge that means to race, with ``changes`` to its fields."""
    return open_request(engine, prompt, **{"race": True, **changes})
