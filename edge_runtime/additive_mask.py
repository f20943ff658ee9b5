"""A step's mask as a graph takes it: numbers added to the scores, in the graph's own columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from acespec.models.manifest import MASKED


def write_additive_mask(
    target: NDArray[Any],
    allowed: NDArray[np.bool_],
    positions: NDArray[np.int64],
    new_column: int,
    window: int | None,
) -> None:
    """Fill ``target`` ``[N, T]``, a mask of floats, for a step of n <= N tokens.

    ``allowed`` ``[n, past + n]`` says which rows each token may attend to and ``positions`` ``[past + n]`` at
    which position each stands. The past's columns begin at 0, the step's own at ``new_column``. With a
    ``window``, a token sees only the last ``window`` positions up to its own, wherever their rows lie;
    without, positions are not looked at.
    """
    count, total = allowed.shape
    past = total - count
    if window is not None:
        allowed = allowed & (positions > positions[past:, None] - window)
    target.fill(MASKED)
    if new_column == past:
        np.copyto(target[:count, :total], 0, where=allowed)
        return
    np.copyto(target[:count, :past], 0, where=allowed[:, :past])
    np.copyto(target[:count, new_column : new_column + count], 0, where=allowed[:, past:])
