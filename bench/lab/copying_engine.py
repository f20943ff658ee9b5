"""The engine on ONNX Runtime, whose rows can be taken out and put back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from acespec.edge_runtime.kv_buffer import KvBuffer
from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine


class CopyingEngine(OnnxRuntimeEngine):
    """``RowCopies`` of a bundle's graph on the CPU."""

    def copy_row(self, row: int) -> NDArray[Any]:
        """Keys and values of one row: ``[2 * layers, KVH, D]``."""
        kept: NDArray[Any] = self._kv.storage[:, row].copy()
        return kept

    def paste_row(self, kept: NDArray[Any]) -> None:
        """Append a row taken out before, which stood at the position that comes next."""
        self._kv.place(kept[:, np.newaxis])
        self._kv.append(np.array([self.num_rows]))

    @property
    def _kv(self) -> KvBuffer:
        buffer = self._rows.buffer
        assert isinstance(buffer, KvBuffer), "rows are in the host's memory"
        return buffer
