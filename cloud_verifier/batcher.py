"""All sessions' work on the target, put together into one forward at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from acespec.cloud_verifier.draft_tree import Branches
from acespec.cloud_verifier.engine import TargetEngine, TargetLogits
from acespec.cloud_verifier.forward import Ask, AskedPart, Forward
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import BatchReport, Observer
from acespec.cloud_verifier.race_width import ForwardCosts, Offer
from acespec.cloud_verifier.scheduler import Scheduler, Work
from acespec.compute import StepRunner

T = TypeVar("T")
Decide = Callable[[TargetLogits], T]
"""Turns a check's logits ``[n, vocab_size]`` into its result; may roll its own sequence back."""


@dataclass(frozen=True)
class Timed(Generic[T]):
    """A result, and when the forward it came from began and was over by the loop's clock, in seconds."""

    result: T
    started: float
    ended: float


class StepAbandonedError(Exception):
    """The sequence was closed, or the verifier stopped, before the work was done."""


def no_latency(num_tokens: int) -> float:  # noqa: ARG001 - a latency model's signature
    """Real steps take their own time."""
    return 0.0


class Batcher:
    """Opens and closes an engine's sequences, and runs what is asked of them in batches, one at a time.

    A sequence has at most one prefill or check at a time. It is closed once and never under a forward that
    feeds it, and once ``close`` was called, a forward that has not begun leaves it out. All methods are
    called in the event loop's thread; the engine steps in the runner's.
    """

    def __init__(
        self,
        engine: TargetEngine,
        runner: StepRunner,
        limits: Limits,
        observer: Observer,
        latency_ms: Callable[[int], float] = no_latency,
    ) -> None:
        """``latency_ms`` tells the runner what a forward of n tokens is expected to take (simulations)."""
        self._engine = engine
        self._runner = runner
        self._observer = observer
        self._latency_ms = latency_ms
        self._prefill_deadline_s = limits.prefill_deadline_ms / 1000.0
        self._token_budget = limits.token_budget
        self._scheduler = Scheduler(limits.token_budget, limits.batch_wait_ms / 1000.0)
        self._costs = ForwardCosts()
        self._open: set[int] = set()
        self._parked: set[int] = set()
        self._asked: dict[int, Ask] = {}
        self._closing: dict[int, asyncio.Future[None]] = {}
        self._forward: Forward | None = None
        self._flying: asyncio.Task[None] | None = None
        self._looking: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def open(self, max_tokens: int) -> int:
        """Open a sequence of the engine. Raises ``KvPoolFullError`` if there is no room for it."""
        sequence = self._engine.open(max_tokens)
        self._open.add(sequence)
        return sequence

    def prefill_deadline(self) -> float:
        """When what is asked to be prefilled now is due, by the loop's clock."""
        return asyncio.get_running_loop().time() + self._prefill_deadline_s

    def park(self, sequence: int) -> None:
        """Expect no work of the open ``sequence`` for now: no batch waits for it to join."""
        assert sequence in self._open
        self._parked.add(sequence)
        self._look_soon()

    def wake(self, sequence: int) -> None:
        """Expect work of a parked sequence again."""
        self._parked.discard(sequence)

    async def prefill(self, sequence: int, tokens: NDArray[np.int64], deadline: float | None = None) -> None:
        """Feed ``tokens`` ``[n]``, in as many forwards as it takes.

        ``deadline``, by the loop's clock, is for the later parts of what was asked for before. Raises
        ``StepAbandonedError`` if the sequence is closed meanwhile, and what the engine raised.
        """
        if len(tokens):
            await self._ask(sequence, tokens, None, deadline)

    async def check(self, sequence: int, tokens: NDArray[np.int64], decide: Decide[T]) -> Timed[T]:
        """Feed ``tokens`` ``[n]``, n <= the token budget, and pass their logits to ``decide``.

        ``decide`` runs in the runner's thread right after the forward. Raises ``StepAbandonedError`` if the
        sequence is closed meanwhile, and what the engine or ``decide`` raised. If the caller is cancelled the
        work is dropped, or its result if the forward has begun; then the sequence can only be closed.
        """
        timed: Timed[T] = await self._ask(sequence, tokens, decide)
        return timed

    async def race(
        self,
        sequence: int,
        token: int,
        grow: Callable[[Offer], Branches],
        decide: Decide[T],
        *,
        spare: bool,
    ) -> Timed[T]:
        """As ``check`` of one ``token``, and of the nodes that ``grow`` brings at the last moment.

        The logits are the token's and then the nodes'. ``spare`` work takes what room others leave, for about
        as long as a forward takes; ``press`` ends that.
        """
        tokens = np.array([token], dtype=np.int64)
        timed: Timed[T] = await self._ask(sequence, tokens, decide, grow=grow, spare=spare)
        return timed

    def press(self, sequence: int) -> None:
        """Work of ``sequence`` that waits for room that others leave waits no more."""
        self._scheduler.press(sequence, asyncio.get_running_loop().time())
        self._look_soon()

    async def close(self, sequence: int) -> None:
        """Close the sequence, once no forward feeds it; goes on by itself if the caller is cancelled.

        Whoever waits for its work gets ``StepAbandonedError``. Closing it again only waits.
        """
        if sequence in self._open:
            closing: asyncio.Future[None] | None = self._begin_close(sequence)
        else:
            closing = self._closing.get(sequence)
        if closing is not None:
            await asyncio.shield(closing)

    async def stop(self) -> None:
        """Give up all that waits, with ``StepAbandonedError``, and wait for the forward under way."""
        self._stopped = True
        for ask in self._asked.values():
            if self._scheduler.cancel(ask.sequence):
                _abandon(ask)
        if self._timer is not None:
            self._timer.cancel()
        if self._flying is not None:
            await asyncio.wait([self._flying])

    async def _ask(
        self,
        sequence: int,
        tokens: NDArray[np.int64],
        decide: Decide[Any] | None,
        deadline: float | None = None,
        grow: Callable[[Offer], Branches] | None = None,
        *,
        spare: bool = False,
    ) -> Any:
        if self._stopped or sequence not in self._open:
            raise StepAbandonedError
        assert sequence not in self._asked, "one at a time; none after one was cancelled in its forward"
        loop = asyncio.get_running_loop()
        now = loop.time()
        ask = self._asked[sequence] = Ask(sequence, tokens, decide, loop.create_future(), grow)
        if deadline is None:
            deadline = self.prefill_deadline() if decide is None else now
        until = now + self._costs.typical if spare else None
        self._scheduler.add(Work(sequence, len(tokens), now, deadline, decide is None, until))
        self._look_soon()
        try:
            return await ask.answer
        except asyncio.CancelledError:
            self._withdraw(ask)
            raise

    def _withdraw(self, ask: Ask) -> None:
        """Drop what its caller no longer waits for."""
        if self._asked.get(ask.sequence) is not ask:
            return
        ask.abandoned = True
        self._scheduler.cancel(ask.sequence)
        if not ask.num_fed and (self._forward is None or ask.sequence not in self._forward.parts):
            del self._asked[ask.sequence]

    def _begin_close(self, sequence: int) -> asyncio.Future[None]:
        self._open.remove(sequence)
        self._parked.discard(sequence)
        closing = self._closing[sequence] = asyncio.get_running_loop().create_future()
        ask = self._asked.pop(sequence, None)
        if ask is not None:
            self._scheduler.cancel(sequence)
            _abandon(ask)
        if self._forward is None or not self._forward.may_feed(sequence):
            self._end_close(sequence)
        self._look_soon()  # a batch may have waited for this sequence alone
        return closing

    def _end_close(self, sequence: int) -> None:
        closing = self._closing.pop(sequence)
        try:
            self._engine.close(sequence)
        except Exception as error:
            closing.set_exception(error)
        else:
            closing.set_result(None)

    def _look_soon(self) -> None:
        """Look for a batch that is due, when all that is ready in this turn of the loop has run."""
        if self._looking is None and self._forward is None:
            self._looking = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._looking = None
        if self._forward is not None or self._stopped:
            return
        loop = asyncio.get_running_loop()
        num_live = len(self._open) - len(self._parked)
        batch = self._scheduler.next_batch(loop.time(), num_live)
        if batch is not None:
            parts = [AskedPart(self._asked[part.sequence], part.num_tokens) for part in batch.parts]
            num_tokens = self._grow(parts, batch.num_tokens)
            self._forward = Forward(self._engine, parts, loop.time)
            self._flying = asyncio.ensure_future(self._fly(self._forward, num_tokens))
        elif (wake_at := self._scheduler.wake_at()) is not None:
            self._wake_at(wake_at)

    def _grow(self, parts: list[AskedPart], num_tokens: int) -> int:
        """Share what room a batch of ``num_tokens`` leaves among those who race; returns its tokens then."""
        racing = [part for part in parts if part.ask.grow is not None]
        room = min(self._token_budget - num_tokens, self._costs.room(num_tokens)) if racing else 0
        for num_left, part in zip(range(len(racing), 0, -1), racing, strict=True):
            assert part.ask.grow is not None
            share = room // num_left
            part.bring(part.ask.grow(Offer(share, len(parts), partial(self._costs.dearer, num_tokens))))
            assert part.num_tokens - 1 <= share
            room -= part.num_tokens - 1
        return num_tokens + sum(part.num_tokens - 1 for part in racing)

    def _wake_at(self, when: float) -> None:
        if self._timer is not None and self._timer.when() > when:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(when, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._look()

    async def _fly(self, forward: Forward, num_tokens: int) -> None:
        try:
            await self._runner.run(forward.run, self._latency_ms(num_tokens))
        except Exception as error:  # the runner's own: what fails in the forward is kept in its parts
            for part in forward.parts.values():
                part.error = error
        finally:
            self._forward = None
            self._land(forward)

    def _land(self, forward: Forward) -> None:
        """Answer whoever waits, and close what was closed under way."""
        ended = asyncio.get_running_loop().time()
        started = ended if forward.started is None else forward.started
        for part in forward.parts.values():
            self._settle(part, started, ended)
        for sequence in forward.parts:
            if sequence in self._closing:
                self._end_close(sequence)
        self._look_soon()
        fed = [part for part in forward.parts.values() if part.fed]
        if not fed:
            return
        num_tokens = sum(part.num_tokens for part in fed)
        prefill_tokens = sum(part.num_tokens for part in fed if part.ask.decide is None)
        if not prefill_tokens and not any(part.error for part in fed):
            num_nodes = sum(part.num_tokens - 1 for part in fed if part.ask.grow is not None)
            self._costs.observe(num_tokens, num_nodes, ended - started)
        self._observer.batch(BatchReport(len(fed), num_tokens, prefill_tokens, started, ended))

    def _settle(self, part: AskedPart, started: float, ended: float) -> None:
        ask = part.ask
        ask.num_fed += part.num_tokens if part.fed else 0
        if ask.answer.done():
            return
        if part.error is not None:
            self._scheduler.cancel(ask.sequence)
            ask.answer.set_exception(part.error)
        elif not part.fed:
            _abandon(ask)
        elif ask.num_fed < len(ask.tokens):
            return
        else:
            ask.answer.set_result(Timed(part.result, started, ended))
        del self._asked[ask.sequence]


def _abandon(ask: Ask) -> None:
    ask.abandoned = True
    if not ask.answer.done():
        ask.answer.set_exception(StepAbandonedError())
