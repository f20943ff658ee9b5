"""Coupled mode: edge and cloud run the same exponential race, each over its own distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from acespec.speculation.distribution import Distribution
from acespec.speculation.randomness import Purpose, uniform


def race_scores(
    ids: NDArray[np.int64], probs: NDArray[np.float64], seed: int, position: int
) -> NDArray[np.float64]:
    """Return the arrival time of each of ``ids`` ``[n]``: float64 ``[n]``.

    It is ``-ln U(seed, couple, position, id) / prob``. Each id's exponential clock runs at the rate ``prob``,
    so the first to arrive is distributed as ``probs`` (the Gumbel-max trick in another dress).
    """
    noise: NDArray[np.float64] = -np.log(uniform(seed, Purpose.COUPLE, position, ids))
    with np.errstate(over="ignore"):  # inf is right: so improbable a token never arrives
        return noise / probs


def coupled_pick(distribution: Distribution, seed: int, position: int) -> int:
    """Return the token that wins the race at ``position``; the lower id on a tie."""
    if len(distribution.ids) == 1:
        return int(distribution.ids[0])
    scores = race_scores(distribution.ids, distribution.probs, seed, position)
    return int(distribution.ids[scores.argmin()])
