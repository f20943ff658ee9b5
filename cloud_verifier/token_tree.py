"""A feed's tokens as a tree, and what of a sequence may be kept after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

HELD = -1
"""Parent of a token that follows what the sequence holds."""


def is_chain(parents: NDArray[np.int64]) -> bool:
    """Whether each token of ``parents`` ``[n]`` follows the one before it, and the first what is held."""
    return bool((parents == np.arange(-1, len(parents) - 1)).all())


def is_tree(parents: NDArray[np.int64]) -> bool:
    """Whether every token of ``parents`` ``[n]`` follows an earlier one, or what is held."""
    return bool(((parents >= HELD) & (parents < np.arange(len(parents)))).all())


def is_path(parents: NDArray[np.int64], chosen: Sequence[int]) -> bool:
    """Whether ``chosen`` of the tree's tokens follow one another, the first of them what is held."""
    before = (HELD, *chosen)
    return all(token < len(parents) and parents[token] == before[i] for i, token in enumerate(chosen))
