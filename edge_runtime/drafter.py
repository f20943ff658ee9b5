"""The draft model's side of one generation: drawing tokens, feeding them, keeping key/value rows in step.

Rows and positions: committed token ``p`` lies in row ``p``, and so does the chain token at position ``p``
until its round is decided; tree rows follow in the order computed. A token drawn last has no row yet: it is
*pending* until the next step feeds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from acespec.compute import StepRunner
from acespec.edge_runtime.budget import bucket_for
from acespec.edge_runtime.engine import DraftEngine
from acespec.edge_runtime.step_clock import StepClock
from acespec.speculation import (
    DRAFT_BITS,
    CandidateRow,
    LogitsRow,
    LogitsRows,
    Purpose,
    Ranking,
    SamplingParams,
    TokenCounts,
    Weighted,
    candidate_row,
    coupled_pick,
    draw,
    rank_candidates,
    uniform,
    weighted,
)
from acespec.wire import AcceptanceMode


@dataclass(frozen=True)
class DraftedToken:
    """One drafted token and the row it was drawn from."""

    token: int
    row: CandidateRow
    weights: Weighted | None
    """Residual mode: the rounded distribution it was drawn from, exactly as sent."""

    @cached_property
    def confidence(self) -> float:
        """The draft's probability of it (`CandidateRow.prob_of`)."""
        return self.row.prob_of(self.token)

    @property
    def weight(self) -> int:
        """Residual mode: its 16-bit weight, 1..65536."""
        assert self.weights is not None
        return self.weights.weight_of(self.token)


@dataclass
class Chain:
    """Drafted tokens behind the committed ones, in order."""

    drafted: list[DraftedToken] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [d.token for d in self.drafted]

    @property
    def confidences(self) -> list[float]:
        return [d.confidence for d in self.drafted]

    def __len__(self) -> int:
        return len(self.drafted)


@dataclass(frozen=True)
class DraftRules:
    """What decides a draw besides the logits: fixed for one generation."""

    params: SamplingParams
    seed: int
    mode: AcceptanceMode
    end_token_ids: frozenset[int]
    prompt_length: int
    ranking: Ranking = Ranking.COUPLED


class Drafter:
    """Drafts chains with one engine, one generation at a time."""

    def __init__(self, engine: DraftEngine, rules: DraftRules, runner: StepRunner, clock: StepClock) -> None:
        """Begins a generation: ``engine`` forgets the rows of the one before."""
        self.engine = engine
        self.rules = rules
        self._runner = runner
        self._clock = clock
        engine.truncate(0)

    def max_chain(self, num_committed: int) -> int:
        """Longest chain the draft's context allows behind ``num_committed`` tokens; below 1 it is full."""
        return self.engine.max_context - num_committed + 1

    def row(self, logits: LogitsRow, *before: Sequence[int]) -> CandidateRow:
        """Candidates for the next token from one row of logits; ``before``: what precedes it, in parts."""
        return candidate_row(logits, self.rules.params, self._counts(before))

    def draw(self, logits: LogitsRow, *before: Sequence[int]) -> DraftedToken:
        """Draw the next token from one row of logits; ``before`` as in ``row``."""
        rules = self.rules
        position = sum(len(part) for part in before)
        row = self.row(logits, *before)
        if rules.mode is AcceptanceMode.COUPLED:
            return DraftedToken(coupled_pick(row.distribution, rules.seed, position), row, None)
        weights = weighted(row.distribution, DRAFT_BITS)
        index = draw(weights.weights, uniform(rules.seed, Purpose.DRAFT, position))
        return DraftedToken(int(weights.ids[index]), row, weights)

    def candidates(self, row: CandidateRow, position: int, count: int, exclude: int | None) -> list[int]:
        """The ``count`` likeliest tokens at ``position`` besides ``exclude``, best first."""
        rules = self.rules
        coupled = rules.mode is AcceptanceMode.COUPLED and rules.ranking is Ranking.COUPLED
        ranked = rank_candidates(row, rules.params, rules.seed, position, coupled, count, exclude)
        return [int(token) for token in ranked]

    @property
    def model_ms(self) -> float:
        """Time all steps so far took."""
        return sum(self._clock.model_ms.values())

    async def draft(self, committed: Sequence[int], chain: Chain, length: int, kind: str = "draft") -> None:
        """Extend ``chain`` to ``length`` tokens, one step a token, or up to and including an end token.

        ``kind``: what the steps are counted as. ``committed`` must not change meanwhile.
        """
        while len(chain) < length and not self.ends(chain):
            num_rows = self.engine.num_rows
            pending = [*committed[num_rows:], *chain.tokens[max(num_rows - len(committed), 0) :]]
            logits = await self.feed(pending, kind)
            chain.drafted.append(self.draw(logits, committed, chain.tokens))

    def ends(self, chain: Chain) -> bool:
        """Whether the chain's last token is an end token: nothing is drafted behind it."""
        return bool(chain.drafted) and chain.drafted[-1].token in self.rules.end_token_ids

    async def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        mask: NDArray[np.bool_],
        kind: str,
        last_only: bool = False,
    ) -> LogitsRows:
        """One engine step, timed. Arguments as ``DraftEngine.forward``."""
        widths = (*self.engine.buckets, self.engine.prefill_width) if last_only else self.engine.buckets
        bucket = bucket_for(len(tokens), widths)
        ids = np.asarray(tokens, dtype=np.int64)
        places = np.asarray(positions, dtype=np.int64)
        with self._clock.step(kind, bucket):
            return await self._runner.run(
                lambda: self.engine.forward(ids, places, mask, last_only), self._clock.expected_ms(bucket)
            )

    async def feed(self, pending: Sequence[int], kind: str) -> LogitsRow:
        """Feed ``pending`` behind the rows in use, causally; returns the last row's logits.

        ``kind``: what the steps are counted as, where they are not a prompt's.
        """
        assert pending, "a path always ends in a token without a row"
        # A round leaves at most two tokens without a row: the chain's last, and the one committed after it.
        kind = kind if len(pending) <= 2 else "prefill"
        widest = self.engine.prefill_width
        for start in range(0, len(pending), widest):
            tokens = pending[start : start + widest]
            first = self.engine.num_rows
            mask = np.tri(len(tokens), first + len(tokens), first, dtype=np.bool_)
            logits = await self.step(tokens, range(first, first + len(tokens)), mask, kind, last_only=True)
        return logits[-1]

    def _counts(self, before: Sequence[Sequence[int]]) -> TokenCounts | None:
        if not self.rules.params.has_penalties:
            return None  # the usual case: nothing is copied
        tokens = [token for part in before for token in part]
        return TokenCounts(tokens[: self.rules.prompt_length], tokens[self.rules.prompt_length :])
