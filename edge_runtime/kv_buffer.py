"""Where an engine keeps its keys and values: one row a token, the rows of a layer contiguous."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class KvBuffer:
    """Rows of every layer's keys and values, shaped so that a graph reads them in place.

    The first ``num_rows`` rows of a tensor are one contiguous piece of memory: an engine passes them as the
    past without copying. Before the first lies a row of zeros, so that a past is never empty: on none, ONNX
    Runtime 1.23 divides by zero. The engine masks it.
    """

    def __init__(self, num_tensors: int, max_rows: int, row_shape: tuple[int, int]) -> None:
        """``num_tensors`` is 2 x layers (keys and values), ``row_shape`` is ``(KVH, D)``."""
        self.max_rows = max_rows
        self.num_rows = 0
        memory = np.zeros((num_tensors, 1 + max_rows, *row_shape), np.float32)
        self.storage: NDArray[np.float32] = memory[:, 1:]  # [2 * layers, rows, KVH, D]
        self.past_addresses = [
            memory.ctypes.data + tensor * memory.strides[0] for tensor in range(num_tensors)
        ]
        """Where each tensor's row of zeros lies, and behind it the rows; for engines that bind raw memory."""

    def append(self, rows: NDArray[np.float32]) -> None:
        """Put ``rows`` ``[2 * layers, n, KVH, D]`` behind those in use."""
        end = self.num_rows + rows.shape[1]
        assert end <= self.max_rows, (end, self.max_rows)
        self.storage[:, self.num_rows : end] = rows
        self.num_rows = end

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
