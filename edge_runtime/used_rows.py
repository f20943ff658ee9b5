"""Which rows of an engine's buffer are in use, wherever their memory is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class UsedRows(ABC):
    """The first ``num_rows`` of ``max_rows`` rows, each at a position; subclasses have their memory."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.num_rows = 0
        self.positions: NDArray[np.int64] = np.zeros(max_rows, np.int64)
        """Of each row; those of the rows in use count."""

    def append(self, positions: NDArray[np.int64]) -> None:
        """Take the rows behind those in use into use; they lie there already."""
        end = self.num_rows + len(positions)
        assert end <= self.max_rows, (end, self.max_rows)
        self.positions[self.num_rows : end] = positions
        self.num_rows = end

    def compact(self, prefix: int, rows: Sequence[int]) -> None:
        """Keep the first ``prefix`` rows and then ``rows``, in this order (ascending, all >= prefix).

        Copies at most ``len(rows)`` rows a tensor, whatever the prefix.
        """
        assert 0 <= prefix <= self.num_rows, (prefix, self.num_rows)
        kept = np.asarray(rows, np.int64)
        assert np.all(np.diff(kept) > 0), rows
        assert not len(kept) or prefix <= kept[0] <= kept[-1] < self.num_rows, rows
        self._move(prefix, kept)
        end = prefix + len(kept)
        self.positions[prefix:end] = self.positions[kept]
        self.num_rows = end

    def truncate(self, num_rows: int) -> None:
        """Forget every row from ``num_rows`` on. O(1)."""
        assert 0 <= num_rows <= self.num_rows, (num_rows, self.num_rows)
        self.num_rows = num_rows

    @abstractmethod
    def _move(self, prefix: int, kept: NDArray[np.int64]) -> None:
        """Copy rows ``kept`` of every tensor to ``prefix ..``."""
