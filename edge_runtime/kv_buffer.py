"""Where an engine keeps its keys and values: one row a token, the rows of a layer contiguous."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class KvBuffer:
    """Rows of every layer's keys and values, shaped so that a graph reads and writes them in place.

    The first ``num_rows`` rows of a tensor are one contiguous piece of memory, and so is the room behind: an
    engine passes the former as its past and has new rows written into the latter, copying neither.
    """

    def __init__(self, num_tensors: int, max_rows: int, slack: int, row_shape: tuple[int, int]) -> None:
        """``num_tensors`` is 2 x layers, ``row_shape`` is ``(KVH, D)``.

        ``slack`` rows lie behind the last usable one, for the padding of a step narrower than its bucket.
        """
        self.max_rows = max_rows
        self.num_rows = 0
        self.storage: NDArray[np.float32] = np.zeros(
            (num_tensors, max_rows + slack, *row_shape), np.float32
        )  # [2 * layers, rows, KVH, D]

    def address(self, tensor: int, row: int) -> int:
        """Memory address of a row, for engines that bind raw memory."""
        tensor_bytes, row_bytes = self.storage.strides[:2]
        return self.storage.ctypes.data + tensor * tensor_bytes + row * row_bytes

    def append(self, count: int) -> None:
        """Take the ``count`` rows just written behind the last one into use."""
        assert 0 <= count <= self.max_rows - self.num_rows, (count, self.num_rows, self.max_rows)
        self.num_rows += count

    def compact(self, prefix: int, rows: Sequence[int]) -> None:
        """Keep the first ``prefix`` rows and then ``rows``, in this order (ascending, all >= prefix).

        Copies at most ``len(rows)`` rows a tensor, whatever the prefix.
        """
        assert 0 <= prefix <= self.num_rows, (prefix, self.num_rows)
        kept = np.asarray(rows, np.int64)
        end = prefix + len(kept)
        if len(kept):
            assert prefix <= kept[0] <= kept[-1] < self.num_rows, rows
            assert np.all(np.diff(kept) > 0), rows
            in_place = int(np.sum(kept == np.arange(prefix, end)))  # ascending: they can only lead
            self.storage[:, prefix + in_place : end] = self.storage[:, kept[in_place:]]
        self.num_rows = end

    def truncate(self, num_rows: int) -> None:
        """Forget every row from ``num_rows`` on. O(1)."""
        assert 0 <= num_rows <= self.num_rows, (num_rows, self.num_rows)
        self.num_rows = num_rows
