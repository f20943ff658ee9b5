"""Tokens to compare two computations on: a text, or one that branches as a draft's tree does. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Probe:
    """Tokens arranged as a prefix, a chain and branches of a tree."""

    tokens: NDArray[np.int64]  # [n]
    positions: NDArray[np.int64]  # [n]
    mask: NDArray[np.bool_]  # [n, n], True where row i may attend to row j

    @property
    def count(self) -> int:
        return len(self.tokens)

    def seen(self, window: int | None) -> NDArray[np.bool_]:
        """The mask ``[n, n]`` of layers that look ``window`` positions back; None: of all others."""
        if window is None:
            return self.mask
        behind = self.positions[:, None] - self.positions[None, :]
        return self.mask & (behind < window)

    def paths(self) -> list[NDArray[np.intp]]:
        """Rows of each path from the first token to a token without children, in order of position.

        A model that reads a path as a plain text must find at its rows what it finds in the tree.
        """
        ancestors_of_others = self.mask & ~np.eye(self.count, dtype=np.bool_)
        leaves = np.flatnonzero(~ancestors_of_others.any(axis=0))
        return [np.flatnonzero(self.mask[leaf]) for leaf in leaves]


def causal_probe(tokens: Sequence[int]) -> Probe:
    """A plain text: each token attends to itself and all before it."""
    count = len(tokens)
    return Probe(np.asarray(tokens, np.int64), np.arange(count), np.tri(count, dtype=np.bool_))


def branching_probe(tokens: NDArray[np.int64], num_branches: int = 2, branch_length: int = 3) -> Probe:
    """A probe over ``tokens`` ``[n]`` whose last rows are branches that all continue the same prefix."""
    count = len(tokens)
    prefix = count - num_branches * branch_length
    mask = np.tril(np.ones((count, count), np.bool_))
    positions = np.arange(count)
    for branch in range(num_branches):
        first = prefix + branch * branch_length
        mask[first : first + branch_length, prefix:first] = False
        positions[first : first + branch_length] = np.arange(prefix, prefix + branch_length)
    return Probe(np.asarray(tokens, np.int64), positions, mask)
