"""Where an engine keeps its keys and values in the host's memory: one row a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class KvBuffer:
    """Rows of every layer's keys and values, and the position each stands at, shaped so that a graph reads
    them in place.

    Whole rows, for the portable graph: a tensor is ``[1 + max_rows, KVH, D]``, and the rows in use are one
    contiguous piece of it. Before the first lies a row of zeros, so that a past is never empty: on none, ONNX
    Runtime 1.23 divides by zero. The engine masks it.

    By head, for graphs that write new rows in place: a tensor is ``[KVH, max_rows, D]``.
    """

    def __init__(
        self,
        num_tensors: int,
        max_rows: int,
        row_shape: tuple[int, int],
        dtype: DTypeLike = np.float32,
        by_head: bool = False,
    ) -> None:
        """``num_tensors`` is 2 x layers (keys and values), ``row_shape`` is ``(KVH, D)``."""
        heads, head_dim = row_shape
        self.max_rows = max_rows
        self.num_rows = 0
        self.positions: NDArray[np.int64] = np.zeros(max_rows, np.int64)
        """Of each row; those of the rows in use count."""
        self.storage: NDArray[Any]
        """[2 * layers, max_rows, KVH, D], a view in either layout."""
        if by_head:
            memory = np.zeros((num_tensors, heads, max_rows, head_dim), dtype)
            self.storage = memory.swapaxes(1, 2)
        else:
            memory = np.zeros((num_tensors, 1 + max_rows, heads, head_dim), dtype)
            self.storage = memory[:, 1:]
        self.addresses = [memory.ctypes.data + index * memory.strides[0] for index in range(num_tensors)]
        """Where each tensor begins (whole rows: with its row of zeros); for engines that bind raw memory."""
        self.row_bytes = heads * head_dim * memory.itemsize

    def place(self, rows: NDArray[Any]) -> None:
        """Copy ``rows`` ``[2 * layers, n, KVH, D]`` behind those in use."""
        self.storage[:, self.num_rows : self.num_rows + rows.shape[1]] = rows

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
        end = prefix + len(kept)
        if len(kept):
            assert prefix <= kept[0] <= kept[-1] < self.num_rows, rows
            assert np.all(np.diff(kept) > 0), rows
            in_place = int(np.sum(kept == np.arange(prefix, end)))  # ascending: they can only lead
            self.storage[:, prefix + in_place : end] = self.storage[:, kept[in_place:]]
            self.positions[prefix:end] = self.positions[kept]
        self.num_rows = end

    def truncate(self, num_rows: int) -> None:
        """Forget every row from ``num_rows`` on. O(1)."""
        assert 0 <= num_rows <= self.num_rows, (num_rows, self.num_rows)
        self.num_rows = num_rows
