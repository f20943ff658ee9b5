"""One forward of the target over several sequences: what happens in the runner's thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acespec.cloud_verifier.draft_tree import Branches
from acespec.cloud_verifier.engine import Feed, TargetEngine, TargetLogits
from acespec.cloud_verifier.race_width import Offer

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Ask:
    """Work that was asked of a sequence, and who waits for it."""

    sequence: int
    tokens: NDArray[np.int64]  # [n]
    decide: Callable[[TargetLogits], Any] | None
    """What becomes of a check's logits ``[n, vocab_size]``; None for a prefill."""
    answer: asyncio.Future[Any]
    grow: Callable[[Offer], Branches] | None = None
    """A race: drafted nodes to be fed too, chosen when the forward begins."""
    parents: NDArray[np.int64] | None = None  # [n]
    """Index of the token each one follows, where it is not the one before; -1 for the first."""
    num_fed: int = 0
    abandoned: bool = False
    """Whether nobody waits any more: what has not begun must not begin."""


@dataclass(eq=False, slots=True)
class AskedPart:
    """The next ``num_tokens`` of an ask, and what came of them."""

    ask: Ask
    num_tokens: int
    fed: bool = False
    """Whether it was in the forward, with or without success."""
    result: Any = None
    error: Exception | None = None

    def feed(self) -> Feed:
        ask = self.ask
        tokens = ask.tokens[ask.num_fed : ask.num_fed + self.num_tokens]
        num_logits = 0 if ask.decide is None else len(tokens)
        return Feed(ask.sequence, tokens, num_logits, ask.parents)

    def bring(self, branches: Branches) -> None:
        """Feed ``branches`` behind the one token of the ask."""
        ask = self.ask
        assert len(ask.tokens) == self.num_tokens == 1
        if branches.tokens:
            ask.tokens = np.array([*ask.tokens, *branches.tokens], dtype=np.int64)
            ask.parents = np.array([-1, *branches.parents], dtype=np.int64)
            ask.parents[1:] += 1
            self.num_tokens = len(ask.tokens)


class Forward:
    """A batch on its way through the engine. Each part is of another sequence."""

    def __init__(self, engine: TargetEngine, parts: Sequence[AskedPart], clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self.parts = {part.ask.sequence: part for part in parts}
        self.started: float | None = None

    def may_feed(self, sequence: int) -> bool:
        """Whether ``sequence``, whose ask was abandoned before this call, may still be fed."""
        return self.started is not None and sequence in self.parts

    def run(self) -> None:
        """Step, and decide every check. What goes wrong with one part is kept there."""
        self.started = self._clock()
        # `started` is set before `abandoned` is looked at, and whoever closes a sequence goes the other way
        # round: whichever comes first, either it is not fed or the closer knows that it may be.
        parts = [part for part in self.parts.values() if not part.ask.abandoned]
        for part in parts:
            part.fed = True
        if parts:
            self._step(parts)

    def _step(self, parts: Sequence[AskedPart]) -> None:
        try:
            logits = self._engine.step([part.feed() for part in parts])
        except Exception as error:
            if len(parts) == 1:
                parts[0].error = error
                return
            logger.warning("a forward of %d sequences failed: each is tried alone", len(parts), exc_info=True)
            for part in parts:
                self._step([part])
            return
        for part, rows in zip(parts, logits, strict=True):
            _decide(part, rows)


def _decide(part: AskedPart, logits: TargetLogits) -> None:
    if part.ask.decide is None:
        return
    try:
        part.result = part.ask.decide(logits)
    except Exception as error:
        part.error = error
