"""One session: the protocol's state machine, which outlives the streams it is spoken over.

No gRPC, no thread and no clock of its own, so that tests and simulations drive it through any link.

Between requests the engine's sequence holds all committed tokens but the last, which is fed together with the
next chain; it can be taken away between requests and is then filled anew. What is committed depends on the
requests and on shared randomness alone, never on time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from acespec.cloud_verifier.acceptance import Decision, describe_target, draws_at
from acespec.cloud_verifier.batcher import Timed
from acespec.cloud_verifier.busy import BusyError
from acespec.cloud_verifier.committed import CommittedText
from acespec.cloud_verifier.observer import RoundReport
from acespec.cloud_verifier.pacing import look_at
from acespec.cloud_verifier.race import Race
from acespec.cloud_verifier.seating import Seating
from acespec.cloud_verifier.seats import Seat
from acespec.cloud_verifier.shared import Shared
from acespec.cloud_verifier.steps import Steps
from acespec.cloud_verifier.tenants import Tenant
from acespec.speculation import Weighted
from acespec.wire import (
    SEQ_MODULUS,
    AcceptanceMode,
    Codec,
    Commit,
    Decode,
    Draft,
    EndVerdict,
    MoreDraws,
    MoreTarget,
    Open,
    RejectVerdict,
    Round,
    ServerTimes,
    SparseTarget,
    TargetDraws,
    TokenVerdict,
    token_bits,
)
from acespec.wire import verifier_pb2 as pb
from acespec.wire.errors import malformed

T = TypeVar("T")

DRAWS_PER_TOKEN = 64
"""Further draws of the target that a tenant's rate is charged for as for one token."""


class Peer(Protocol):
    """The edge, over the stream it has now."""

    told: int
    """Committed tokens the edge has once all commits sent over this stream have arrived."""

    @property
    def committed(self) -> int:
        """Committed tokens the edge had when it resumed over this stream; 0 if it did not resume."""

    @property
    def closed(self) -> bool:
        """Whether nobody waits for an answer any more."""

    async def send(self, message: pb.CloudMessage) -> None:
        """Hand over one message; waits while the edge does not read."""


@dataclass(frozen=True)
class Rejection:
    """Residual mode: the edge is drawing the token at ``position`` from ``target``."""

    target: Weighted
    position: int
    due: set[int]
    """Indexes at which further draws may be asked for: each follows draws that were sent."""


class Session:
    """The state of one session. Methods raise ``SessionError`` for a request that breaks the protocol.

    Whoever waits for an answer may be cancelled: work that has begun goes on to its end, and the answer is
    there when the request is repeated over another stream.
    """

    def __init__(
        self, session_id: bytes, tenant: Tenant, request: Open, shared: Shared, max_context: int
    ) -> None:
        """``max_context`` bounds the positions, whatever the request asks for."""
        self.id = session_id
        self.label = hashlib.sha256(session_id).hexdigest()[:16]
        """Stands for the session in logs, traces and error messages: the id itself lets it be resumed."""
        self.tenant = tenant
        self.epoch = request.epoch
        self.codec = Codec(request.vocab_size, request.mode)
        races = shared.limits.race_eagerness is not None and request.mode is AcceptanceMode.COUPLED
        max_tokens = min(request.token_limit, max_context)
        if races and request.race:
            max_tokens += _room_for_drafts(max_tokens, shared)
        self.seat = Seat(max_tokens, tenant.name)
        self._request = replace(request, committed=())  # they are in the text
        self._shared = shared
        self._token_bits = token_bits(request.vocab_size)
        self._text = CommittedText(request, max_context)
        self._steps = Steps(self._request, self._text, self.seat, shared.batcher, shared.engine)
        self._seating = Seating(tenant, self._text, self.seat, self._steps, shared)
        self._race = Race(self.label, tenant, self._text, self.seat, self._steps, shared) if races else None
        self._rejection: Rejection | None = None
        self._next_seq = 0
        self._last: Round | Decode | None = None
        self._verdict: pb.CloudMessage | None = None
        self._decoded_from = 0
        self._work: asyncio.Task[Any] | None = None

    def __str__(self) -> str:
        return f"session {self.label} of {self.tenant.name}"

    @property
    def races(self) -> bool:
        """Whether a ``Decode`` of this session may be a race."""
        return self._race is not None

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values it may come to take."""
        return self.seat.max_tokens * self._shared.engine.info.kv_bytes_per_token

    @property
    def max_committed(self) -> int:
        """Committed tokens the edge may have: it draws the token after a rejection itself."""
        return len(self._text.tokens) + int(self._rejection is not None)

    def check_rate(self) -> None:
        """Raise ``BusyError`` if ``sit`` would do so because of the tenant's rate."""
        self._seating.check_rate()

    async def sit(self) -> None:
        """Take the seat, and the tenant's rate for all tokens committed. Raises ``BusyError``."""
        await self._seating.take(1)
        self._seating.rest()

    async def prefill(self, wanted: Callable[[], bool]) -> None:
        """Feed the committed tokens while ``wanted``, so that the first request finds them there."""
        await self._finish_work()
        with contextlib.suppress(BusyError):  # then the first request has to see to it
            await self._seating.take(0)
            await self._own(self._steps.fill(wanted))

    async def end(self) -> None:
        """Free all it holds; work under way fails for whoever waits for it."""
        await self._shared.seats.leave(self.seat)
        if self._work is not None:
            await asyncio.wait([self._work])

    async def answer(self, request: Round | Decode, arrived: float, peer: Peer) -> None:
        """Answer the next request, or the last one again. Raises ``BusyError`` if it cannot be taken now.

        A ``Decode`` may come again with a higher count: the answer then goes on where it ended, so that an
        edge that sends it in time lets the cloud decode on and on, and still says when it is to stop. No
        commit is sent twice over one stream.
        """
        if self._race is not None:  # before anything is waited for: the first drafts come right behind it
            self._race.begin(request, self.epoch)
        await self._finish_work()
        if self._last is not None and request.seq == self._last.seq:
            if _extends(request, self._last):
                self._last = request
            elif request != self._last:
                raise malformed(f"request {request.seq} was answered before and now differs")
        else:
            if request.seq != self._next_seq:
                raise malformed(f"request {request.seq} came where {self._next_seq} is due")
            await self._begin(request, arrived)
        if isinstance(request, Round):
            assert self._verdict is not None
            await peer.send(self._verdict)
        else:
            await self._decode(request, arrived, peer)

    def take_draft(self, draft: Draft) -> bool:
        """Take drafts up at once, whatever is under way; False if it is not the request they are for."""
        return self._race is not None and self._race.take(draft, self.epoch)

    async def more_draws(self, request: MoreDraws, peer: Peer) -> None:
        """Answer with what follows the draws sent so far, or with an answer given before.

        Raises ``BusyError`` if the tenant has used up its rate: thousands of draws are work as well.
        """
        rejection = self._rejection
        if rejection is None or request.position != rejection.position:
            raise malformed(f"no draws are due for position {request.position}")
        if request.first_index not in rejection.due:
            raise malformed(f"no draws are due from index {request.first_index} on")
        self._seating.pay(1 + draws_at(request.first_index) // DRAWS_PER_TOKEN)
        target = self._describe(rejection, request.first_index)
        await peer.send(self.codec.encode_cloud(MoreTarget(target)))

    async def _begin(self, request: Round | Decode, arrived: float) -> None:
        """Take on a new request, and decide it if it is a round."""
        if isinstance(request, Decode):
            await self._seating.take(0)
            self._seating.rest()
            self._accept(request)
            return
        await self._seating.take(len(request.chain) + 1)
        try:
            self._accept(request)
        except BaseException:
            self._seating.rest()
            raise
        await self._own(self._round(request, arrived))

    async def _round(self, request: Round, arrived: float) -> None:
        """Check the chain, commit what stands and keep the verdict."""
        # The target's context or the server's limit may end a chain early; the edge cannot know while its
        # first round travels with Open. The cut looks at positions alone, so it biases nothing.
        chain = request.chain[: min(self._text.remaining - 1, self._shared.limits.max_chain)]
        decision, times = await self._check(chain, request.weights[: len(chain)], arrived)
        self._text.append(chain[: decision.accepted])
        verdict: TokenVerdict | EndVerdict | RejectVerdict
        if decision.rejected_by is not None:
            self._rejection = Rejection(decision.rejected_by, position=len(self._text.tokens), due=set())
            target = self._describe(self._rejection, first_index=0)
            verdict = RejectVerdict(request.seq, decision.accepted, target, times)
        elif decision.next_token is None:
            verdict = EndVerdict(request.seq, decision.accepted, times)
        else:
            self._text.append((decision.next_token,))
            verdict = TokenVerdict(request.seq, decision.accepted, decision.next_token, times)
        self._verdict = self.codec.encode_cloud(verdict)

    async def _decode(self, request: Decode, arrived: float, peer: Peer) -> None:
        """Send what is committed that the edge has not, and go on by one step at a time to the count.

        A step commits one token, in a race one or more. Each is asked for when what came of the one before is
        sent: other sessions get their turn, and nothing is computed for an edge that does not read.
        """
        text = self._text
        position = max(self._decoded_from, peer.committed, peer.told)
        goal = self._decoded_from + request.count
        race = self._race if request.race else None
        compute_ms = 0.0
        while True:
            if position < len(text.tokens):
                tokens = tuple(text.tokens[position:])
                heard = None if race is None else race.heard()
                await peer.send(self.codec.encode_cloud(Commit(position, tokens, compute_ms, heard)))
                position += len(tokens)
                peer.told = position
            last = min(goal, position + text.remaining)
            is_done = text.finished or position >= goal
            if race is not None and not is_done:
                await race.ready(last)
            if is_done or peer.closed:
                return
            await self._seating.take_patiently()
            step = self._decode_one(arrived) if race is None else race.step(last, arrived)
            compute_ms = await self._own(step)
            arrived = asyncio.get_running_loop().time()

    async def _decode_one(self, arrived: float) -> float:
        """Commit one token; returns the milliseconds its forward took."""
        decision, times = await self._check((), (), arrived)
        assert decision.next_token is not None
        self._text.append((decision.next_token,))
        return times.compute_ms

    async def _check(
        self, chain: Sequence[int], weights: Sequence[int], arrived: float
    ) -> tuple[Decision, ServerTimes]:
        """Check ``chain``, once the sequence holds what comes before it, and report it."""
        await self._steps.fill(lambda: True)
        timed = await self._steps.check(chain, weights)
        self._report(timed, len(chain), arrived)
        queue_ms = 1000.0 * max(0.0, timed.started - arrived)
        return timed.result, ServerTimes(queue_ms, compute_ms=1000.0 * (timed.ended - timed.started))

    def _report(self, timed: Timed[Decision], drafted: int, arrived: float) -> None:
        self._shared.observer.round(
            RoundReport(
                session=self.label,
                tenant=self.tenant.name,
                drafted=drafted,
                accepted=timed.result.accepted,
                arrived=arrived,
                started=timed.started,
                ended=timed.ended,
            )
        )

    def _accept(self, request: Round | Decode) -> None:
        """Check a new request against what is committed, and make it the one under way."""
        self._settle(request)
        if isinstance(request, Round):
            self._check_chain(request.chain)
        self._last, self._verdict = request, None
        self._decoded_from = len(self._text.tokens)
        self._next_seq = (self._next_seq + 1) % SEQ_MODULUS

    def _settle(self, request: Round | Decode) -> None:
        """Commit the token the edge resampled, and check that both sides have the same committed tokens."""
        if self._rejection is None and request.resampled is not None:
            raise malformed("a resampled token came though no chain token was rejected")
        if self._rejection is not None:
            if request.resampled is None:
                raise malformed("the token that replaces the rejected one is missing")
            if not self._rejection.target.weight_of(request.resampled):
                raise malformed("the resampled token is outside the target's support")
            self._text.append((request.resampled,))
            self._rejection = None
        if request.prefix_check != self._text.check:
            raise malformed(
                f"edge and cloud disagree about the {len(self._text.tokens)} committed tokens; "
                "reopen the session with the committed tokens"
            )
        if self._text.finished:
            raise malformed("the generation has ended: close the session")

    def _check_chain(self, chain: Sequence[int]) -> None:
        room = self._request.token_limit - len(self._text.tokens) - 1
        if len(chain) > room:
            raise malformed(f"a chain of {len(chain)} tokens came where at most {room} may")
        if any(token in self._text.end_token_ids for token in chain[:-1]):
            raise malformed("the chain goes on after an end token")

    def _describe(self, rejection: Rejection, first_index: int) -> SparseTarget | TargetDraws:
        request = self._request
        target = describe_target(
            rejection.target, request.seed, rejection.position, first_index, self._token_bits
        )
        if isinstance(target, TargetDraws):
            rejection.due.add(first_index + len(target.ids))
        return target

    async def _own(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work``, for which the seat is held, to its end even if whoever waits is cancelled."""
        task = asyncio.ensure_future(self._holding(work))
        task.add_done_callback(look_at)
        self._work = task
        return await asyncio.shield(task)

    async def _holding(self, work: Coroutine[Any, Any, T]) -> T:
        """``work``, which lets go of the seat before anybody can see that it is over."""
        try:
            result = await work
        finally:
            self._seating.rest()
        self._work = None  # one that failed stays: nothing can go on from there
        return result

    async def _finish_work(self) -> None:
        """Wait for the work under way for another stream; raises if it failed, then and ever after."""
        if self._work is not None:
            await asyncio.shield(self._work)


def _room_for_drafts(text_tokens: int, shared: Shared) -> int:
    """Drafted tokens a sequence of ``text_tokens`` is to hold beside them, as far as all the room goes."""
    return min(shared.engine.info.kv_tokens - text_tokens, shared.limits.max_race_width)


def _extends(request: Round | Decode, last: Round | Decode) -> bool:
    """Whether ``request`` is the ``Decode`` that was ``last`` with a higher count."""
    return (
        isinstance(request, Decode)
        and isinstance(last, Decode)
        and request.count > last.count
        and replace(request, count=last.count) == last
    )
