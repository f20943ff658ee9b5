"""From a row of logits to the distribution a token is drawn from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acespec.errors import AcespecError
from acespec.speculation.draft_logits import LogitsRow
from acespec.speculation.params import SamplingParams
from acespec.speculation.penalties import TokenCounts
from acespec.speculation.selection import largest

_NUCLEUS_GUESS = 1024
"""A nucleus is looked for among this many largest entries before the whole row is sorted."""


_LOW_TEMPERATURE = 0.4
_NEGLIGIBLE = 20.0
"""A draft's candidate this many temperatures below the best has e^-20 of its weight."""


class InvalidLogitsError(AcespecError):
    """A model produced NaN or infinite logits."""


@dataclass(frozen=True)
class Distribution:
    """A distribution over the tokens that sampling left."""

    ids: NDArray[np.int64]
    """Support, ascending, [n]."""
    probs: NDArray[np.float64]
    """Positive, summing to 1, [n]."""


def distribution(
    logits: NDArray[np.float32],
    params: SamplingParams,
    counts: TokenCounts | None = None,
    max_candidates: int | None = None,
) -> Distribution:
    """Return what ``params`` make of ``logits`` ``[vocab_size]``, in the order of Hugging Face ``generate``.

    Penalties (over ``counts``), temperature, top-k, top-p, min-p. Temperature 0 is the point mass at the
    largest logit, the lowest id among equals. ``max_candidates`` keeps the largest logits alone before
    anything else: right for a draft, which may be any distribution, never for the target. Raises
    ``InvalidLogitsError``.
    """
    if params.temperature == 0.0 and not (counts is not None and params.has_penalties):
        return Distribution(np.array([greedy_pick(logits)]), np.ones(1))  # 3 µs, not 300, of 32,000 logits
    ids, scores = scaled_scores(LogitsRow(logits), params, counts, max_candidates)
    return warp(ids, scores, params)


def greedy_pick(logits: NDArray[np.float32]) -> int:
    """The place of the largest logit, the first among equals. Raises ``InvalidLogitsError``."""
    best = int(logits.argmax())  # of NaN, if there is any
    if not math.isfinite(logits[best]):
        raise invalid_logits()
    return best


def invalid_logits() -> InvalidLogitsError:
    return InvalidLogitsError("the model produced NaN or infinite logits; run it at a higher precision")


def scaled_scores(
    row: LogitsRow,
    params: SamplingParams,
    counts: TokenCounts | None,
    max_candidates: int | None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return candidate ids ``[n]``, ascending, and their scores ``[n]``.

    Scores are penalized log-probabilities at the temperature up to a constant: the largest is 0. At
    temperature 0 they are the logits' own differences.
    """
    logits = row.values
    best = float(logits.max())
    if not math.isfinite(best):
        raise invalid_logits()
    if max_candidates is None:
        places = np.arange(len(logits))
        scores = logits.astype(np.float64)
    else:
        places = _candidates(logits, best, params, max_candidates)
        scores = logits[places].astype(np.float64)
    ids = places if row.ids is None else row.ids[places]
    if counts is not None and params.has_penalties:
        scores = counts.penalize(ids, scores, params)
    scores -= scores.max()
    if params.temperature > 0.0:
        with np.errstate(over="ignore"):  # -inf is right: at so low a temperature only the best are left
            scores /= params.temperature
    return ids, scores


def _candidates(
    logits: NDArray[np.float32], best: float, params: SamplingParams, max_candidates: int
) -> NDArray[np.int64]:
    """Return the places, ascending, of the draft's candidates: the largest, at most ``max_candidates``."""
    depth = candidate_depth(params)
    if math.isinf(depth):
        return largest(logits, max_candidates)
    near = np.flatnonzero(logits >= best - depth)
    return near if len(near) <= max_candidates else near[largest(logits[near], max_candidates)]


def candidate_depth(params: SamplingParams) -> float:
    """How far below the best a draft's candidate may lie, in logits.

    At a low temperature what lies far below is left out: it has no weight, and without it what follows takes
    half the time. Not with penalties, which may bring the best down.
    """
    if 0.0 < params.temperature <= _LOW_TEMPERATURE and not params.has_penalties:
        return _NEGLIGIBLE * params.temperature
    return math.inf


def warp(ids: NDArray[np.int64], scores: NDArray[np.float64], params: SamplingParams) -> Distribution:
    """Return the distribution over ``ids`` that top-k, top-p and min-p leave of ``scores`` (see above)."""
    if params.temperature == 0.0:
        best = int(scores.argmax())
        return Distribution(ids[best : best + 1], np.ones(1))
    if 0 < params.top_k < len(ids):
        # As Hugging Face: what equals the k-th largest stays.
        threshold = np.partition(scores, len(ids) - params.top_k)[len(ids) - params.top_k]
        kept = np.flatnonzero(scores >= threshold)
        ids, scores = ids[kept], scores[kept]
    weights = np.exp(scores)  # the largest is 1
    if params.top_p < 1.0:
        kept = nucleus(weights, params.top_p)
        ids, weights = ids[kept], weights[kept]
    # Underflowed weights go too: they can never be drawn, and a support's weights are positive.
    floor = max(params.min_p, float(np.finfo(np.float64).tiny))
    if weights.min() < floor:
        kept = np.flatnonzero(weights >= floor)
        ids, weights = ids[kept], weights[kept]
    return Distribution(ids, weights / weights.sum())


def nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Return the indexes, ascending, of the nucleus of ``weights`` ``[n]``.

    The fewest largest that have at least ``top_p`` of their sum. Exact; ties go to the lower index. Sorts the
    largest entries first and the whole row only if they do not decide.
    """
    wanted = top_p * float(weights.sum())
    head = np.sort(weights[largest(weights, _NUCLEUS_GUESS)])[::-1]
    mass = np.cumsum(head)
    if mass[-1] < wanted and len(head) < len(weights):
        mass = np.cumsum(np.sort(weights)[::-1])
    return largest(weights, int(np.searchsorted(mass, wanted)) + 1)
