"""Integer weights: distributions that both sides, and the wire, hold exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acespec.speculation.distribution import Distribution
from acespec.speculation.selection import largest

DRAFT_BITS = 16
"""Draft weights sum to 2^16: the draft may be any distribution, so rounding it costs no exactness."""


def target_bits(n: int) -> int:
    """Return b for a target support of ``n`` tokens: weights sum to 2^b.

    ``max(16, ceil(log2 n) + 14)``: rounding moves each probability by less than 2^-b, so the total variation
    to the unrounded distribution stays under ``n / 2 * 2^-b <= 2^-15``.
    """
    assert n >= 1
    return max(16, (n - 1).bit_length() + 14)


def round_to_weights(probs: NDArray[np.float64], bits: int) -> NDArray[np.int64]:
    """Return weights summing to ``2**bits``: int64 ``[..., n]`` for ``probs`` ``[..., n]``.

    Largest remainder, ties to the lower index. ``probs`` sum to 1 along the last axis up to float64 rounding.
    """
    shares = probs * float(1 << bits)
    rounded: NDArray[np.int64] = np.floor(shares).astype(np.int64)
    remainders = shares - rounded
    for row in np.ndindex(probs.shape[:-1]):
        missing = (1 << bits) - int(rounded[row].sum())
        if missing > 0:
            # Not a sort: at top-p 1 every row of a round has tens of thousands of remainders.
            rounded[row][largest(remainders[row], missing)] += 1
    assert (rounded.sum(axis=-1) == 1 << bits).all(), "probabilities do not sum to 1"
    return rounded


@dataclass(frozen=True)
class Weighted:
    """A distribution as integers."""

    ids: NDArray[np.int64]
    """Support, ascending, [n]."""
    weights: NDArray[np.int64]
    """Positive, summing to ``2**bits``, [n]."""
    bits: int

    def weight_of(self, token: int) -> int:
        """The weight of ``token``; 0 outside the support."""
        place = int(np.searchsorted(self.ids, token))
        if place < len(self.ids) and self.ids[place] == token:
            return int(self.weights[place])
        return 0

    def weights_of(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """The weight of each of ``tokens`` ``[m]``; 0 outside the support."""
        places = np.minimum(np.searchsorted(self.ids, tokens), len(self.ids) - 1)
        return np.where(self.ids[places] == tokens, self.weights[places], 0)

    def pick(self, u: NDArray[np.float64]) -> NDArray[np.int64]:
        """The token each of ``u`` falls on (see ``draw``)."""
        return self.ids[draw(self.weights, u)]


def weighted(distribution: Distribution, bits: int) -> Weighted:
    """Round ``distribution`` to weights summing to ``2**bits``; tokens that round to 0 leave the support."""
    weights = round_to_weights(distribution.probs, bits)
    kept = np.flatnonzero(weights)
    if len(kept) == len(weights):
        return Weighted(distribution.ids, weights, bits)
    return Weighted(distribution.ids[kept], weights[kept], bits)


def draw(weights: NDArray[np.int64], u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index each of ``u`` ``[...]`` falls on among ``weights`` ``[..., n]`` or ``[n]``.

    Inverse CDF: index i has the share ``weights[i] / sum`` of the unit interval; a weight of 0 is never
    drawn. Sums stay below 2^53 and ``u`` at most ``1 - 2^-53``: float64 holds every sum exactly, and its
    product with ``u`` stays below it.
    """
    ends = np.cumsum(weights, axis=-1)
    total = ends[..., -1]
    ticks = (u * total).astype(np.int64)
    if weights.ndim == 1:
        return np.asarray(np.searchsorted(ends, ticks, side="right"), dtype=np.int64)
    index: NDArray[np.int64] = (ends <= ticks[..., np.newaxis]).sum(axis=-1)
    return index
