"""Where a graph leaves its logits, whole rows or each row's largest, and how they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from acespec.speculation import DraftLogits


class LogitsBuffers:
    """Memory for the logits of up to ``max_rows`` tokens of a step."""

    def __init__(self, max_rows: int, vocab_size: int, top_k: int | None) -> None:
        self._is_whole = top_k is None
        outputs: dict[str, tuple[type[np.generic], tuple[int, ...]]]
        if top_k is None:
            outputs = {"logits": (np.float32, (vocab_size,))}
        else:
            size = min(top_k, vocab_size)
            outputs = {
                "top_logits": (np.float32, (size,)),
                "top_ids": (np.int64, (size,)),
                "log_sum_exp": (np.float32, ()),
            }
        self._arrays: dict[str, NDArray[Any]] = {
            name: np.zeros((max_rows, *row_shape), dtype) for name, (dtype, row_shape) in outputs.items()
        }

    def bind(self, binding: ort.IOBinding, rows: int) -> None:
        """Have the graph leave the logits of ``rows`` tokens here."""
        for name, array in self._arrays.items():
            shape = (1, rows, *array.shape[1:])
            binding.bind_output(name, "cpu", 0, array.dtype.type, shape, array.ctypes.data)

    def read(self, first: int, rows: int) -> DraftLogits:
        """Views of the logits of ``rows`` tokens from the ``first`` on, valid until the next step."""
        views = [array[first : first + rows] for array in self._arrays.values()]
        return DraftLogits(views[0]) if self._is_whole else DraftLogits(*views)
