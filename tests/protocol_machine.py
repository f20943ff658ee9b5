"""Edges, breaks and hostile peers in whatever order Hypothesis thinks of, against one verifier.

Simulated time: a hang is a dead lock, or more simulated seconds than anything may take.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from acespec.bench.virtual_clock import VirtualTimeLoop
from acespec.cloud_verifier.tenants import Tenant
from acespec.wire import (
    Busy,
    CloudMessage,
    Codec,
    Decode,
    ErrorCode,
    MoreDraws,
    Open,
    Reset,
    ResetReason,
    Resume,
    Round,
    SessionError,
)
from protocol_inputs import LIMITS, attempts, coupled_opens, tenants
from verifier_world import VOCAB, Attempt, Edge, World, answer_to, speak
from wire_messages import COUPLED, RESIDUAL

T = TypeVar("T")

HANG_S = 1000.0
"""Simulated seconds after which anything counts as hanging."""
INDEX = st.integers(0, 9)
"""Of an edge, modulo how many there are."""


def some(**which: Any) -> Callable[[Any], Any]:
    """A precondition: there is an edge of that kind (see ``ProtocolMachine.edge``)."""
    return precondition(lambda machine: machine.edge(**which) is not None)


class ProtocolMachine(RuleBasedStateMachine):
    """Several edges on one verifier, each of whose steps may fail to happen, and peers that do harm."""

    kv_tokens: ClassVar[int] = 2**62
    totals: ClassVar[Counter[str]] = Counter()
    """What happened in all runs, so that a test can tell that enough did."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.loop.set_exception_handler(self._note_lost_error)
        self.lost_errors: list[str] = []
        self.edges: list[Edge] = []

    @initialize(first=coupled_opens(), second=coupled_opens(), tenant=tenants)
    def begin(self, first: Open, second: Open, tenant: Tenant) -> None:
        async def make() -> World:
            return World(LIMITS, self.kv_tokens)

        self.world = self.run(make())
        self.open(tenant, first, wait=True)
        self.open(tenant, second, wait=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Let simulated time pass until ``work`` is done."""
        task = self.loop.create_task(work)
        hang = self.loop.call_later(HANG_S, task.cancel)
        try:
            return self.loop.run_until_complete(task)
        finally:
            hang.cancel()

    def edge(
        self,
        index: int = 0,
        *,
        linked: bool | None = True,
        asking: bool | None = None,
        known: bool = False,
    ) -> Edge | None:
        """One of the unfinished edges: with a link, waiting for an answer, of a session whose id is known.
        None if there is no such edge."""
        fitting = [
            edge
            for edge in self.edges
            if not edge.finished
            and (linked is None or (edge.link is not None) is linked)
            and (asking is None or (edge.pending is not None) is asking)
            and (edge.session_id is not None or not known)
        ]
        return fitting[index % len(fitting)] if fitting else None

    def settled(self, edge: Edge | None) -> Edge | None:
        """The edge, once it has heard how its opening went, unless it lost the link."""
        if edge is not None:
            self.finish_edge(edge)
        return None if edge is None or edge.link is None else edge

    # --- edges that behave ----------------------------------------------------------------------------------

    @rule(tenant=tenants, request=coupled_opens(), wait=st.booleans())
    @precondition(lambda self: len(self.edges) < 7)
    def open(self, tenant: Tenant, request: Open, wait: bool) -> None:
        edge = Edge(self.world, tenant, request)
        self.edges.append(edge)
        self.run(edge.open())
        if wait:
            self.finish_edge(edge)

    @rule(
        index=INDEX,
        right=st.integers(0, 7),
        wrong=st.booleans(),
        then=st.sampled_from(["again", "wait", "leave", "again", "check", "longer", "shorter"]),
    )
    @some(asking=False)
    def round(self, index: int, right: int, wrong: bool, then: str) -> None:
        """A chain of so many right tokens, the last perhaps made wrong; ``then`` it may be sent once more."""
        edge = self.edge(index, asking=False)
        if edge is None:
            return
        position = len(edge.committed)
        room = edge.request.token_limit - position - 1
        chain = edge.truth[position : position + min(right, room)]
        if wrong and chain:
            chain[-1] = (chain[-1] + 1) % VOCAB
        self.run(edge.ask(edge.next_round(chain)))
        if then == "leave":
            return
        self.finish_edge(edge)
        if then == "again":
            self._replay(edge)
        elif then != "wait":
            self._alter(edge, then)

    @rule(index=INDEX, count=st.integers(1, 12), wait=st.booleans())
    @some(asking=False)
    def decode(self, index: int, count: int, wait: bool) -> None:
        edge = self.edge(index, asking=False)
        if edge is not None:
            self.run(edge.ask(edge.next_decode(count)))
            if wait:
                self.finish_edge(edge)

    @rule(
        index=INDEX,
        count=st.integers(4, 30),
        drafts=st.lists(st.integers(1, 6), max_size=4),
        wait=st.booleans(),
    )
    @some(asking=False)
    def race(self, index: int, count: int, drafts: list[int], wait: bool) -> None:
        """Decoding beside which chains of right tokens are drafted, each once a commit was heard."""
        edge = self.edge(index, asking=False)
        if edge is None:
            return
        self.run(edge.ask(edge.next_decode(count, race=True)))
        for right in drafts:
            self.run(edge.hear(1))
            chain = edge.truth[len(edge.committed) :][:right]
            if edge.link is not None and chain:
                self.run(edge.draft(chain, 0))
        if wait:
            self.finish_edge(edge)

    @rule(index=INDEX, right=st.integers(1, 6), wrong=st.booleans(), behind=st.integers(0, 3))
    @some()
    def draft(self, index: int, right: int, wrong: bool, behind: int) -> None:
        """A chain of so many right tokens, the last perhaps made wrong, for what is asked if it is a race."""
        edge = self.edge(index)
        if edge is not None:
            start = max(1, len(edge.committed) - behind)
            chain = edge.truth[start : start + right] or [0]
            if wrong:
                chain[-1] = (chain[-1] + 1) % VOCAB
            self.run(edge.draft(chain, behind))

    @rule(index=INDEX)
    @some()
    def finish(self, index: int) -> None:
        edge = self.edge(index)
        if edge is not None:
            self.finish_edge(edge)

    @rule(index=INDEX, after_ms=st.sampled_from([0, 1, 5, 15, 100]), heard=st.integers(0, 3))
    @some()
    def lose(self, index: int, after_ms: int, heard: int) -> None:
        """The link breaks when some of what was said has been heard, and more may be under way."""
        edge = self.edge(index)
        if edge is not None:
            self.run(edge.hear(heard))
            self.run(asyncio.sleep(after_ms / 1000.0))
            self.run(edge.lose())

    @rule(index=INDEX, wait=st.booleans())
    @some(linked=False)
    def resume(self, index: int, wait: bool) -> None:
        edge = self.edge(index, linked=False)
        if edge is not None:
            self.run(edge.resume())
            if wait:
                self.finish_edge(edge)

    @rule(index=INDEX)
    @some()
    def close(self, index: int) -> None:
        edge = self.edge(index)
        if edge is not None:
            self.edges.remove(edge)
            self.run(edge.close())

    @rule(seconds=st.sampled_from([0.005, 0.05, 0.3, 2.0, 9.0, 25.0]))
    def pass_time(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def _replay(self, edge: Edge) -> None:
        """A round that was answered is answered again, with the same verdict."""
        if edge.link is not None and edge.last is not None:
            request, verdict = edge.last
            heard = self.run(self._send_and_hear(edge, request))
            assert heard in (verdict, ErrorCode.UNAVAILABLE)
            self.totals["replayed"] += heard == verdict

    # --- others ---------------------------------------------------------------------------------------------

    @rule(tenant=tenants, attempt=attempts())
    def anything(self, tenant: Tenant, attempt: Attempt) -> None:
        self.run(speak(self.world, tenant, attempt))

    @rule(tenant=tenants, session_id=st.binary(min_size=1, max_size=64), epoch=st.integers(1, 2**32 - 1))
    def guess(self, tenant: Tenant, session_id: bytes, epoch: int) -> None:
        said = self.run(answer_to(self.world, tenant, Resume(session_id, epoch, 1)))
        assert said == Reset(epoch, ResetReason.UNKNOWN_SESSION)

    @rule(index=INDEX, tenant=tenants)
    @some(linked=None, known=True)
    def steal(self, index: int, tenant: Tenant) -> None:
        """Whoever learns a session's id is told the same as who guesses, but for its own tenant."""
        edge = self.edge(index, linked=None, known=True)
        if edge is not None and tenant != edge.tenant:
            assert edge.session_id is not None
            said = self.run(answer_to(self.world, tenant, Resume(edge.session_id, edge.epoch + 9, 1)))
            assert said == Reset(edge.epoch + 9, ResetReason.UNKNOWN_SESSION)
            self.totals["stolen"] += 1

    @rule(index=INDEX, behind=st.integers(0, 3))
    @some(linked=None, known=True)
    def come_late(self, index: int, behind: int) -> None:
        """A connection older than the edge's newest cannot take the session back."""
        edge = self.edge(index, linked=None, known=True)
        behind = min(behind, edge.epoch - 1) if edge is not None else 0
        if edge is not None and edge.epoch >= 1:
            assert edge.session_id is not None
            late = Resume(edge.session_id, edge.epoch - behind, 1)
            said = self.run(answer_to(self.world, edge.tenant, late))
            assert said in (ErrorCode.ABORTED, Reset(late.epoch, ResetReason.UNKNOWN_SESSION))
            self.totals["came late"] += said is ErrorCode.ABORTED

    @rule(index=INDEX)
    @some(known=True)
    def take_over(self, index: int) -> None:
        """A second copy of the edge, with the same credentials, takes the session away and vanishes."""
        edge = self.edge(index, known=True)
        if edge is not None:
            assert edge.session_id is not None
            self.run(answer_to(self.world, edge.tenant, Resume(edge.session_id, edge.epoch + 1, 1)))
            self.finish_edge(edge)
            self.run(edge.lose())

    def _alter(self, edge: Edge, how: str) -> None:
        """A round that was answered comes again with other content."""
        if edge.link is None or edge.last is None:
            return
        request = edge.last[0]
        if how == "check":
            request = replace(request, prefix_check=request.prefix_check ^ 1)
        elif how == "longer":
            request = replace(request, chain=(*request.chain, 1))
        elif request.chain:
            request = replace(request, chain=request.chain[:-1])
        if request != edge.last[0]:
            self._break_with(edge, request, "altered")

    @rule(index=INDEX, kind=st.sampled_from(["seq", "check", "too long", "draws", "open"]))
    @some(asking=False, known=True)
    def break_a_rule(self, index: int, kind: str) -> None:
        edge = self.settled(self.edge(index, asking=False, known=True))
        if edge is not None:
            self._break_with(edge, self._wrong(edge, kind), "broken")

    def _break_with(self, edge: Edge, message: Round | Decode | MoreDraws | Open, event: str) -> None:
        """The session ends, and the edge begins anew with what it has."""
        session_id = edge.session_id
        assert session_id is not None
        heard = self.run(self._send_and_hear(edge, message))
        assert heard in (ErrorCode.INVALID_ARGUMENT, ErrorCode.UNAVAILABLE)
        self.run(edge.lose())
        if heard is ErrorCode.INVALID_ARGUMENT:
            self.totals[event] += 1
            edge.session_id = None
            gone = self.run(answer_to(self.world, edge.tenant, Resume(session_id, edge.epoch + 1, 1)))
            assert gone == Reset(edge.epoch + 1, ResetReason.UNKNOWN_SESSION)

    def _wrong(self, edge: Edge, kind: str) -> Round | Decode | MoreDraws | Open:
        """A message that breaks a rule."""
        right = edge.next_round([])
        if kind == "seq":
            return replace(right, seq=(edge.seq + 5) % 64)
        elif kind == "check":
            return Decode(edge.seq, right.prefix_check ^ 1, 1)
        elif kind == "too long":
            return edge.next_round([1] * min(63, edge.request.token_limit - len(edge.committed)))
        elif kind == "draws":
            return MoreDraws(len(edge.committed), 1)
        else:
            return edge.request

    async def _send_and_hear(
        self, edge: Edge, message: Round | Decode | MoreDraws | Open
    ) -> CloudMessage | ErrorCode:
        """What is said to ``message``, once the server is not busy."""
        mode = RESIDUAL if isinstance(message, MoreDraws) else COUPLED
        try:
            while True:
                assert edge.link is not None
                await edge.link.send(Codec(VOCAB, mode).encode_edge(message))
                heard = edge.codec.decode_cloud(await edge.link.receive())
                if not isinstance(heard, Busy):
                    return heard
                await asyncio.sleep(heard.retry_ms / 1000.0)
        except SessionError as error:
            await edge.lose()
            return error.code

    # --- what must hold -------------------------------------------------------------------------------------

    @invariant()
    def nothing_failed(self) -> None:
        if not hasattr(self, "world"):
            return
        assert not self.lost_errors
        assert self.world.observer.counts[ErrorCode.INTERNAL.value] == 0
        self.world.check_room()

    def finish_edge(self, edge: Edge) -> None:
        """Let the edge have its answer; it keeps to the protocol, so there are few reasons to refuse it."""
        self.run(edge.finish())
        if edge.refusal is not None:
            assert edge.refusal.code in (
                ErrorCode.UNAVAILABLE,
                ErrorCode.ABORTED,
                ErrorCode.RESOURCE_EXHAUSTED,
            ), edge.refusal

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self._all_is_well_in_the_end()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(1.0))
            self.loop.close()

    def _all_is_well_in_the_end(self) -> None:
        """Everyone gets the rest of the text, one after the other; then nothing is left."""
        for edge in self.edges:
            self.run(edge.lose())
        for edge in self.edges:
            self._let_finish(edge)
            self.run(edge.close())
        self.run(self.world.check_nothing_is_left())
        self.run(self.world.verifier.drain(0.0))
        self.nothing_failed()
        self.totals.update(self.world.observer.counts)
        self.totals["finished"] += len(self.edges)

    def _let_finish(self, edge: Edge) -> None:
        for _ in range(20):
            if edge.finished:
                return
            self.run(asyncio.sleep(1.0))
            if edge.link is None:
                self.run(edge.resume())
            self.finish_edge(edge)
            if edge.link is not None and not edge.finished:
                self.run(edge.ask(edge.next_decode(50)))
                self.finish_edge(edge)
        raise AssertionError(f"an edge does not get its text: {edge.refusal}")

    def _note_lost_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.lost_errors.append(str(context))


class TightMachine(ProtocolMachine):
    """The same with room for the keys and values of hardly two sessions."""

    kv_tokens = 70
    totals: ClassVar[Counter[str]] = Counter()
