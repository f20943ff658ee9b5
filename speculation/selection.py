"""The largest entries of a long row without sorting it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STRIDE = 16
"""One entry in this many is looked at to guess where the largest begin."""


def largest(values: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """Return the indexes, ascending, of the ``count`` largest of ``values`` ``[n]``.

    Ties go to the lower index. All indexes if ``count >= n``. ``values`` must not hold NaN; ``count`` is at
    least 1.
    """
    if count >= len(values):
        return np.arange(len(values))
    pool = _pool(values, count)
    pooled = values if pool is None else values[pool]
    threshold = np.partition(pooled, len(pooled) - count)[len(pooled) - count]
    kept = np.flatnonzero(pooled >= threshold)
    surplus = len(kept) - count
    if surplus:
        tied = np.flatnonzero(pooled[kept] == threshold)
        kept = np.delete(kept, tied[len(tied) - surplus :])
    return kept if pool is None else pool[kept]


def _pool(values: NDArray[np.floating], count: int) -> NDArray[np.int64] | None:
    """Indexes that hold the ``count`` largest and not many more, or None when a guess at them does not pay.

    A sample of the row gives a threshold that half as many again should pass; one comparison with the whole
    row costs far less than partitioning it.
    """
    rank = count * 3 // (2 * _STRIDE) + 8
    sample = values[::_STRIDE]
    if len(sample) < 2 * rank:
        return None
    threshold = np.partition(sample, len(sample) - rank)[len(sample) - rank]
    pool = np.flatnonzero(values >= threshold)
    return pool if len(pool) >= count else None
