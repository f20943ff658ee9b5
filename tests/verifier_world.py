"""A verifier in simulated time, edges that behave, and peers that do not: what the state machines drive.

Every edge knows the text it must get, computed from the definition. Whatever else happens, what the verifier
commits is compared with it token by token.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import Observer, RaceReport
from acespec.cloud_verifier.tenants import Tenant
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.wire import (
    SEQ_MODULUS,
    AcceptanceMode,
    Busy,
    Close,
    CloudMessage,
    Codec,
    Commit,
    Decode,
    Draft,
    DraftNode,
    EdgeMessage,
    EdgeTransport,
    EndVerdict,
    ErrorCode,
    Open,
    Opened,
    PrefixCheck,
    Reset,
    Resume,
    Round,
    SessionError,
    TokenVerdict,
    memory_link,
)
from acespec.wire import verifier_pb2 as pb
from acespec.wire.memory import MemoryCloud
from coupled_text import coupled_text, remembered
from fake_draft import hashed_table
from fake_target import TableTargetEngine

VOCAB = 13
TABLE = remembered(hashed_table(VOCAB, salt=1))
FORWARD_MS = 10.0
PATIENCE_S = 120.0
"""Simulated seconds anything may take: beyond, it hangs."""
MOST_BUSY = 8
"""How often in a row an edge lets itself be put off."""


class CountingObserver(Observer):
    """Counts what the verifier reports."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def race(self, report: RaceReport) -> None:
        self.counts["raced"] += report.drafted > 0 and report.committed > 1

    def resumed(self, tenant: str) -> None:
        self.counts["resumed"] += 1

    def closed(self, tenant: str, reason: str) -> None:
        self.counts[reason] += 1

    def refused(self, code: str) -> None:
        self.counts[code] += 1

    def busy(self, tenant: str) -> None:
        self.counts["busy"] += 1

    def evicted(self, tenant: str) -> None:
        self.counts["evicted"] += 1


class World:
    """One verifier on an engine that is strict about its use, and the streams to it."""

    def __init__(self, limits: Limits, kv_tokens: int = 2**62, max_context: int = 64) -> None:
        """Make it inside the running event loop."""
        self.engine = TableTargetEngine(TABLE, VOCAB, max_context=max_context, kv_tokens=kv_tokens)
        self.observer = CountingObserver()
        self.verifier = Verifier(
            self.engine, InlineRunner(), limits, self.observer, latency_ms=lambda _: FORWARD_MS
        )
        self.limits = limits
        self._serving: set[asyncio.Task[None]] = set()

    def connect(self, tenant: Tenant) -> EdgeTransport:
        """A new stream of ``tenant``."""
        edge, cloud = memory_link()
        task = asyncio.ensure_future(self._serve(cloud, tenant))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return edge

    async def _serve(self, cloud: MemoryCloud, tenant: Tenant) -> None:
        try:
            await self.verifier.serve(cloud, tenant)
        except SessionError as error:
            await cloud.close(error)
        else:
            await cloud.close()

    async def streams_over(self) -> None:
        """Wait until no stream is served any more."""
        while self._serving:
            await asyncio.wait(list(self._serving), timeout=PATIENCE_S)

    def check_room(self) -> None:
        """No more is set aside than there is, and no more sequences than sessions stand."""
        engine = self.engine
        assert engine.kv_tokens_used <= engine.info.kv_tokens
        assert self.verifier.num_sessions <= self.limits.max_sessions

    async def check_nothing_is_left(self) -> None:
        """Streams closed and the time to resume over: everything is free again."""
        await self.streams_over()
        await asyncio.sleep(self.limits.resume_ttl_s + 5.0)
        assert self.verifier.num_streams == 0
        assert self.verifier.num_sessions == 0
        assert self.engine.sequences == {}
        assert self.engine.kv_tokens_used == 0
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, f"tasks left: {others}"


@dataclass(frozen=True)
class Attempt:
    """What a peer sends over a stream of its own, and how it leaves."""

    messages: tuple[pb.EdgeMessage, ...]
    waits_ms: int
    """Before each message after the first."""
    reads: bool
    """Whether it reads answers."""


class Edge:
    """An edge that keeps to the protocol, with its generation's truth. Its link may break at any time."""

    def __init__(self, world: World, tenant: Tenant, request: Open) -> None:
        self.world = world
        self.tenant = tenant
        self.request = request
        self.truth = coupled_text(TABLE, request, world.verifier.max_context)
        self.codec = Codec(request.vocab_size, request.mode)
        self.committed = list(request.committed)
        self.link: EdgeTransport | None = None
        self.session_id: bytes | None = None
        self.epoch = request.epoch
        self.greeted = False
        """Whether the verifier has answered the ``Open`` or ``Resume`` of this link."""
        self.seq = 0
        self.pending: Round | Decode | None = None
        self.next_node = 0
        """Id of the next node drafted over this link."""
        self.last: tuple[Round, CloudMessage] | None = None
        """The last round of this session, and its verdict."""
        self.decoded_to = 0
        """Where the pending ``Decode`` ends."""
        self.refusal: SessionError | None = None
        """Why the last stream ended, if the verifier said so."""

    @property
    def finished(self) -> bool:
        return len(self.committed) == len(self.truth)

    async def open(self) -> None:
        """Begin, or begin anew with what is committed; what is pending is asked for again."""
        if self.link is None:
            self.link = self.world.connect(self.tenant)
        self.session_id = self.last = None
        self.greeted = False
        self.next_node = 0
        await self.send(replace(self.request, committed=tuple(self.committed), epoch=self.epoch))
        self.seq = 0
        if self.pending is not None:
            await self._ask_again()

    async def resume(self) -> None:
        """Go on over a new stream, after the old one was lost."""
        self.epoch += 1
        if self.session_id is None:
            await self.open()
            return
        self.link = self.world.connect(self.tenant)
        self.greeted = False
        self.next_node = 0
        await self.send(Resume(self.session_id, self.epoch, len(self.committed)))
        if self.pending is not None:
            await self.send(self.pending)

    async def ask(self, message: Round | Decode) -> None:
        """Send a request; ``finish`` takes the answer."""
        assert self.pending is None
        self.pending = message
        if isinstance(message, Decode):
            self.last = None
            self.decoded_to = min(len(self.committed) + message.count, len(self.truth))
        await self.send(message)

    def next_round(self, chain: Sequence[int]) -> Round:
        return Round(self.seq, PrefixCheck(self.committed).value, tuple(chain))

    def next_decode(self, count: int, *, race: bool = False) -> Decode:
        return Decode(self.seq, PrefixCheck(self.committed).value, count, race=race)

    async def draft(self, tokens: Sequence[int], behind: int) -> None:
        """A chain of ``tokens`` below the committed token that is ``behind`` the last one known."""
        first, root = self.next_node, max(0, len(self.committed) - 1 - behind)
        self.next_node += len(tokens)
        nodes = [DraftNode(token, first + k - 1 if k else None) for k, token in enumerate(tokens)]
        await self.send(Draft(self.seq, first, root, tuple(nodes)))

    async def finish(self) -> None:
        """Read until nothing is pending, or the link is lost."""
        await asyncio.wait_for(self._finish(), PATIENCE_S)

    async def hear(self, count: int) -> None:
        """Take up to ``count`` messages of those still due."""
        for _ in range(count):
            if self.link is None or (self.pending is None and self.greeted):
                return
            with contextlib.suppress(SessionError):
                await self._take(self.codec.decode_cloud(await self.link.receive()))

    async def lose(self) -> None:
        """The link breaks; nobody says good-bye."""
        if self.link is not None:
            await self.link.close()
            self.link = None

    async def close(self) -> None:
        """End the session for good and forget it."""
        if self.link is not None:
            await self.send(Close())
        await self.lose()
        self.session_id = None

    async def _finish(self) -> None:
        self.refusal = None
        num_busy = 0
        while self.link is not None and (self.pending is not None or not self.greeted):
            try:
                message = self.codec.decode_cloud(await self.link.receive())
            except SessionError as error:
                await self.lose()
                self.refusal = error
                return
            num_busy = num_busy + 1 if isinstance(message, Busy) else 0
            if num_busy == MOST_BUSY:
                await self.lose()
                return
            await self._take(message)

    async def _take(self, message: CloudMessage) -> None:
        if isinstance(message, Opened):
            assert message.epoch == self.epoch
            assert self.session_id in (None, message.session_id)
            self.session_id = message.session_id
            self.greeted = True
        elif isinstance(message, Busy):
            await asyncio.sleep(message.retry_ms / 1000.0)
            if self.session_id is None:
                await self.open()
            else:
                assert self.pending is not None
                await self.send(self.pending)
        elif isinstance(message, Reset):
            assert message.epoch == self.epoch
            self.epoch += 1
            await self.open()
        elif isinstance(message, Commit):
            assert isinstance(self.pending, Decode)
            assert message.position == len(self.committed), "each token once and in order"
            self._commit(list(message.tokens))
            if len(self.committed) >= self.decoded_to:
                self._answered()
        else:
            assert isinstance(message, TokenVerdict | EndVerdict)
            assert isinstance(self.pending, Round)
            assert message.seq == self.pending.seq
            next_token = [message.next_token] if isinstance(message, TokenVerdict) else []
            self._commit([*self.pending.chain[: message.accepted], *next_token])
            self.last = (self.pending, message)
            self._answered()

    def _commit(self, tokens: list[int]) -> None:
        position = len(self.committed)
        assert tokens == self.truth[position : position + len(tokens)]
        self.committed += tokens

    def _answered(self) -> None:
        self.pending = None
        self.seq = (self.seq + 1) % SEQ_MODULUS

    async def _ask_again(self) -> None:
        """The pending request, numbered for a session begun anew."""
        if isinstance(self.pending, Round):
            self.pending = replace(self.pending, seq=self.seq)
        else:
            race = isinstance(self.pending, Decode) and self.pending.race
            self.pending = self.next_decode(self.decoded_to - len(self.committed), race=race)
        await self.send(self.pending)

    async def send(self, message: EdgeMessage) -> None:
        """Send anything; if the link is lost, whoever reads from it learns why."""
        assert self.link is not None
        with contextlib.suppress(SessionError):
            await self.link.send(self.codec.encode_edge(message))


async def speak(world: World, tenant: Tenant, attempt: Attempt) -> SessionError | None:
    """Have a peer send its messages and leave; returns how the verifier ended the stream, if it did."""
    link = world.connect(tenant)
    try:
        for message in attempt.messages:
            await link.send(message)
            if attempt.waits_ms:
                await asyncio.sleep(attempt.waits_ms / 1000.0)
        while attempt.reads:
            await asyncio.wait_for(link.receive(), 1.0)
    except SessionError as error:
        return error
    except asyncio.TimeoutError:
        pass
    finally:
        await link.close()
    return None


async def answer_to(world: World, tenant: Tenant, *messages: EdgeMessage) -> CloudMessage | ErrorCode:
    """The last thing the verifier says to ``messages`` on a stream of their own, closed a second later."""
    codec = Codec(VOCAB, AcceptanceMode.COUPLED)
    link = world.connect(tenant)
    said: list[CloudMessage | ErrorCode] = []
    try:
        for message in messages:
            await link.send(codec.encode_edge(message))
        while True:
            said.append(codec.decode_cloud(await asyncio.wait_for(link.receive(), 1.0)))
    except SessionError as error:
        said.append(error.code)
    except asyncio.TimeoutError:
        pass
    finally:
        await link.close()
    return said[-1]
