"""Whether estimated chances are right, and what makes them so: chances against what came true, in bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_CHANCE = 1e-3
"""A candidate less likely than this becomes no node, and is counted nowhere."""
NUM_BINS = 10

Floats = NDArray[np.float64]


class CalibrationCurve:
    """The share of candidates that is taken, as a function of the chance they were given; it never falls."""

    def __init__(self, memory: float, strength: float = 32.0) -> None:
        """Rests on the last ``memory`` tokens, and on ``strength`` candidates a bin that show no error."""
        self._keep = 1.0 - 1.0 / memory
        self._middles = (np.arange(NUM_BINS) + 0.5) / NUM_BINS
        self._strength = strength
        self._sums = np.zeros((3, NUM_BINS))  # estimated, taken, count
        self._knots = self._middles, self._middles

    def corrected(self, chances: Floats) -> Floats:
        """What ``chances`` ``[n]`` have turned out to be."""
        estimated, taken = self._knots
        shares: Floats = np.interp(chances, [0.0, *estimated], [0.0, *taken])
        return shares

    def observe(self, chances: Floats, taken: NDArray[np.bool_]) -> None:
        """One position, as for `Reliability`."""
        self._sums = self._keep * self._sums + binned(chances, taken)
        estimated, hits, counts = self._sums
        believed = self._strength * self._middles
        at = (believed + estimated) / (self._strength + counts)
        share = (believed + hits) / (self._strength + counts)
        self._knots = at, ascending(share, self._strength + counts)


def ascending(values: Floats, weights: Floats) -> Floats:
    """The values nearest to ``values`` ``[n]``, by weighted squares, that never fall (pooling violators)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, length = value, 1
        while pools and pools[-1][0] > mean:
            other, other_weight, other_length = pools.pop()
            mean = (other * other_weight + mean * weight) / (other_weight + weight)
            weight, length = weight + other_weight, length + other_length
        pools.append((mean, weight, length))
    return np.repeat([mean for mean, _, _ in pools], [length for _, _, length in pools])


def binned(chances: Floats, taken: NDArray[np.bool_]) -> Floats:
    """Sums over the candidates that have a chance, by bins of it: chances, taken and count, ``[3, bins]``."""
    shown = chances >= LEAST_CHANCE
    estimated, hits = chances[shown], taken[shown]
    bins = np.minimum((estimated * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    return np.stack([np.bincount(bins, weights, minlength=NUM_BINS) for weights in (estimated, hits, None)])


@dataclass(frozen=True)
class ReliabilityBin:
    """Candidates whose chance was estimated alike."""

    estimated: float
    """Mean estimated chance."""
    taken: float
    """Share of them that the target took."""
    count: int


class Reliability:
    """Whether candidates that are given a chance of p are taken in a share p of the cases."""

    def __init__(self) -> None:
        self._sums = np.zeros((3, NUM_BINS))  # estimated, taken, count

    def observe(self, chances: Sequence[float] | Floats, taken: NDArray[np.bool_]) -> None:
        """One position: the candidates' ``chances`` ``[n]`` and which of them was ``taken`` ``[n]``."""
        self._sums += binned(np.asarray(chances, dtype=np.float64), taken)

    @property
    def bins(self) -> list[ReliabilityBin]:
        """Those of `NUM_BINS` equal bins that hold anything, ascending."""
        return [
            ReliabilityBin(estimated / count, taken / count, int(count))
            for estimated, taken, count in self._sums.T.tolist()
            if count
        ]

    @property
    def error(self) -> float | None:
        """Mean distance between estimated and taken, weighted by count; None before the first."""
        total = float(self._sums[2].sum())
        return float(np.abs(self._sums[0] - self._sums[1]).sum()) / total if total else None
