"""The tree mask: which rows a new token may attend to (the paper's Fig. 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def tree_mask(parents: NDArray[np.int64], num_committed: int, num_new: int) -> NDArray[np.bool_]:
    """Return the mask of one step: bool ``[num_new, num_committed + r]``.

    The step appends the last ``num_new`` rows. The buffer holds ``num_committed`` committed rows and then the
    r rows of ``parents``: ``parents[i] < i`` is the parent of row i, counted from the first row after the
    committed ones, -1 where the committed prefix is the parent. A token attends to the committed prefix, to
    its ancestors and to itself, nothing else.
    """
    num_rows = len(parents)
    assert 0 <= num_new <= num_rows
    mask = np.zeros((num_new, num_committed + num_rows), dtype=np.bool_)
    mask[:, :num_committed] = True
    # A walk in plain Python: paths are short, and a NumPy call per level would cost several times as much.
    parent_of: list[int] = parents.tolist()
    width = num_committed + num_rows
    attended: list[int] = []
    start = num_committed
    for row in range(num_rows - num_new, num_rows):
        ancestor = row
        while ancestor >= 0:
            attended.append(start + ancestor)
            assert parent_of[ancestor] < ancestor, "a parent comes before its child"
            ancestor = parent_of[ancestor]
        start += width
    mask.reshape(-1)[attended] = True
    return mask
