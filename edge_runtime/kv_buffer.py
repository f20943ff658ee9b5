"""Where an engine keeps its keys and values in the host's memory: one row a token."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from acespec.edge_runtime.used_rows import UsedRows


class KvBuffer(UsedRows):
    """Rows of every layer's keys and values, and the position each stands at, shaped so that a graph reads
    them in place.

    Whole rows, for the portable graph: a tensor is ``[1 + max_rows, KVH, D]``, and the rows in use are one
    contiguous piece of it. By head, for graphs that write new rows in place: ``[KVH, 1 + max_rows, D]``.

    Before the first lies a row of zeros, which the engine masks, so that a past is never empty: on none, ONNX
    Runtime 1.23 divides by zero, and its attention operator takes a step for a text's first, whose tokens
    stand at positions 0, 1, ... whatever it is told.
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
        super().__init__(max_rows)
        heads, head_dim = row_shape
        self.storage: NDArray[Any]
        """[2 * layers, max_rows, KVH, D], a view in either layout."""
        if by_head:
            memory = np.zeros((num_tensors, heads, 1 + max_rows, head_dim), dtype)
            self.storage = memory.swapaxes(1, 2)[:, 1:]
        else:
            memory = np.zeros((num_tensors, 1 + max_rows, heads, head_dim), dtype)
            self.storage = memory[:, 1:]
        self.addresses = [memory.ctypes.data + index * memory.strides[0] for index in range(num_tensors)]
        """Where each tensor begins, with its row of zeros; for engines that bind raw memory."""
        self.row_bytes = heads * head_dim * memory.itemsize

    def place(self, rows: NDArray[Any]) -> None:
        """Copy ``rows`` ``[2 * layers, n, KVH, D]`` behind those in use."""
        self.storage[:, self.num_rows : self.num_rows + rows.shape[1]] = rows

    def _move(self, prefix: int, kept: NDArray[np.int64]) -> None:
        end = prefix + len(kept)
        in_place = int(np.sum(kept == np.arange(prefix, end)))  # ascending: they can only lead
        self.storage[:, prefix + in_place : end] = self.storage[:, kept[in_place:]]
