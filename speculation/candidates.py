"""Which tokens may follow: the draw from a draft row, and the ranking its branches are grown in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from acespec.speculation.coupled import race_scores
from acespec.speculation.distribution import Distribution, scaled_scores, warp
from acespec.speculation.draft_logits import LogitsRow
from acespec.speculation.params import SamplingParams
from acespec.speculation.penalties import TokenCounts

MAX_CANDIDATES = 512
"""Largest logits of a draft row that are looked at."""


class Ranking(str, Enum):
    """In which order candidates for a token are tried."""

    COUPLED = "coupled"
    """By arrival in the race the target will run too; without one (residual mode, temperature 0) as below."""
    PROBABILITY = "probability"
    """By the draft's probability, as in the paper."""


@dataclass(frozen=True)
class CandidateRow:
    """What is kept of a draft row: enough to draw from it now and to rank its branches later."""

    ids: NDArray[np.int64]
    """Candidates, ascending, [n]."""
    scores: NDArray[np.float64]
    """Log-probabilities at the temperature before top-k, top-p and min-p, up to a constant: the largest is 0.
    At temperature 0, the logits' differences. [n]."""
    distribution: Distribution
    """What a token is drawn from."""
    log_total: float | None = None
    """Logarithm of the sum of the exponentials of the whole vocabulary's scores, where it is known."""

    def prob_of(self, token: int) -> float:
        """The draft's probability of a candidate before top-k, top-p and min-p (at temperature 0: of the
        logits). Its share of the candidates alone where the whole vocabulary's total is not known."""
        weights = np.exp(self.scores)
        total = float(weights.sum()) if self.log_total is None else math.exp(self.log_total)
        return float(weights[np.searchsorted(self.ids, token)]) / total


def candidate_row(
    logits: LogitsRow,
    params: SamplingParams,
    counts: TokenCounts | None = None,
    max_candidates: int = MAX_CANDIDATES,
) -> CandidateRow:
    """Look once through the draft's ``logits``. Raises ``InvalidLogitsError``."""
    ids, scores = scaled_scores(logits, params, counts, max_candidates)
    log_total = None
    # The engine's sum is that of the logits: at other temperatures, or penalized, the scores have another.
    if logits.log_sum_exp is not None and params.temperature in (0.0, 1.0) and not params.has_penalties:
        log_total = logits.log_sum_exp - float(logits.values.max())
    return CandidateRow(ids, scores, warp(ids, scores, params), log_total)


def rank_candidates(
    row: CandidateRow,
    params: SamplingParams,
    seed: int,
    position: int,
    mode_is_coupled: bool,
    count: int,
    exclude: int | None = None,
) -> NDArray[np.int64]:
    """Return at most ``count`` tokens: int64, the likeliest outcome at ``position`` first.

    Coupled: by arrival in the race the target will run too, those the draft's own sampling keeps before the
    rest. Residual mode and temperature 0: by probability. Ties go to the lower id. ``exclude`` is left out:
    the drafted token whose rejection the branches wait for.
    """
    if mode_is_coupled and params.temperature > 0.0:
        # Unnormalized probabilities order the race as well; an underflowed one never arrives.
        with np.errstate(divide="ignore"):
            arrival = race_scores(row.ids, np.exp(row.scores), seed, position)
        outside = ~np.isin(row.ids, row.distribution.ids, assume_unique=True)
        order = np.lexsort((arrival, outside))
    else:
        order = np.argsort(-row.scores, kind="stable")
    ranked = row.ids[order[: count + 1]]
    if exclude is not None:
        ranked = ranked[ranked != exclude]
    return ranked[:count]
