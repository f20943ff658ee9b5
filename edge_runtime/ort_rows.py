"""How a graph in ONNX Runtime is told of the rows before a step, and where it leaves the new ones.

One class for each form of graph and place of its memory. All are used alike: `bind` once for each width a
step may have, `bind_past` before each step, `append` after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from acespec.edge_runtime.cuda import Cuda, aligned
from acespec.edge_runtime.device_rows import DeviceRows, RowLayout
from acespec.edge_runtime.kv_buffer import KvBuffer


@dataclass(frozen=True)
class MaskColumns:
    """Which columns of a mask stand for which rows."""

    past: int
    """Of the first row in use; columns before it stand for nothing."""
    new: int
    """Of the step's first token."""
    total: int


class RowBuffer(Protocol):
    """Rows in use, wherever they lie."""

    num_rows: int
    positions: NDArray[np.int64]

    def compact(self, prefix: int, rows: Sequence[int]) -> None: ...
    def truncate(self, num_rows: int) -> None: ...


class GraphRows(Protocol):
    """The rows of one graph."""

    @property
    def buffer(self) -> RowBuffer:
        """Where they are kept."""

    def columns(self, width: int) -> MaskColumns:
        """The masks' columns in a step of ``width`` tokens behind the rows in use."""

    def bind(self, binding: ort.IOBinding, width: int) -> None:
        """Bind whatever is the same in all steps of ``width`` tokens."""

    def bind_past(self, binding: ort.IOBinding) -> None:
        """Bind whatever depends on the rows in use."""

    def append(self, width: int, positions: NDArray[np.int64]) -> None:
        """Take the first ``len(positions)`` rows of a step of ``width`` tokens into use."""


@dataclass(frozen=True)
class RowTensors:
    """What the graph calls its rows, and what they are."""

    past: Sequence[str]
    """Names of the inputs, keys and values of layer 0, 1, ..."""
    new: Sequence[str]
    """Names of the outputs, in the same order."""
    row_shape: tuple[int, int]
    """``(KVH, D)``"""
    dtype: np.dtype[Any]


class InPlaceRows:
    """Rows by head, which the ort graph reads and writes where they are: `[1, KVH, R, D]`.

    Past and present are the same memory in every step; only their number changes. The row of zeros before
    the first counts as one of the past.
    """

    def __init__(self, tensors: RowTensors, max_rows: int) -> None:
        self.buffer = KvBuffer(len(tensors.past), max_rows, tensors.row_shape, tensors.dtype, by_head=True)
        self._tensors = tensors
        self._past_length = np.zeros(1, np.int32)

    def columns(self, width: int) -> MaskColumns:
        num_rows = self.buffer.num_rows
        return MaskColumns(past=1, new=1 + num_rows, total=1 + num_rows + width)

    def bind(self, binding: ort.IOBinding, width: int) -> None:  # noqa: ARG002 - the same for all widths
        heads, head_dim = self._tensors.row_shape
        shape, dtype = (1, heads, 1 + self.buffer.max_rows, head_dim), self._tensors.dtype.type
        binding.bind_input("past_length", "cpu", 0, np.int32, (1,), self._past_length.ctypes.data)
        names = zip(self._tensors.past, self._tensors.new, self.buffer.addresses, strict=True)
        for past, present, address in names:
            binding.bind_input(past, "cpu", 0, dtype, shape, address)
            binding.bind_output(present, "cpu", 0, dtype, shape, address)

    def bind_past(self, binding: ort.IOBinding) -> None:  # noqa: ARG002 - it reads what is bound already
        self._past_length[0] = 1 + self.buffer.num_rows

    def append(self, width: int, positions: NDArray[np.int64]) -> None:  # noqa: ARG002 - they lie there
        self.buffer.append(positions)


class PortableRows:
    """Whole rows, which the portable graph reads as its past `[S, KVH, D]`; it leaves new ones apart.

    They are copied behind the past, which is cheaper than telling ONNX Runtime of every layer's place each
    step. A graph with fixed shapes is shown the whole buffer, and the mask hides what is not in use.
    """

    def __init__(self, tensors: RowTensors, max_rows: int, is_fixed: bool) -> None:
        """``is_fixed``: the graph's S is ``max_rows``, always."""
        self.buffer = KvBuffer(len(tensors.past), max_rows, tensors.row_shape, tensors.dtype)
        self._tensors = tensors
        self._is_fixed = is_fixed
        self._new_rows: dict[int, NDArray[Any]] = {}  # by width, [2 * layers, N, KVH, D]

    def columns(self, width: int) -> MaskColumns:
        if self._is_fixed:
            return MaskColumns(past=0, new=self.buffer.max_rows, total=self.buffer.max_rows + width)
        num_rows = self.buffer.num_rows
        return MaskColumns(past=1, new=1 + num_rows, total=1 + num_rows + width)  # behind the row of zeros

    def bind(self, binding: ort.IOBinding, width: int) -> None:
        dtype = self._tensors.dtype
        if width not in self._new_rows:
            self._new_rows[width] = np.zeros((len(self._tensors.new), width, *self._tensors.row_shape), dtype)
        for name, rows in zip(self._tensors.new, self._new_rows[width], strict=True):
            binding.bind_output(name, "cpu", 0, dtype.type, rows.shape, rows.ctypes.data)

    def bind_past(self, binding: ort.IOBinding) -> None:
        if self._is_fixed:
            first, rows = self.buffer.row_bytes, self.buffer.max_rows
        else:
            first, rows = 0, 1 + self.buffer.num_rows
        shape, dtype = (rows, *self._tensors.row_shape), self._tensors.dtype.type
        for name, address in zip(self._tensors.past, self.buffer.addresses, strict=True):
            binding.bind_input(name, "cpu", 0, dtype, shape, address + first)

    def append(self, width: int, positions: NDArray[np.int64]) -> None:
        self.buffer.place(self._new_rows[width][:, : len(positions)])
        self.buffer.append(positions)


class DevicePortableRows:
    """As `PortableRows`, in the memory of a CUDA device: the whole buffer is the past, at one address.

    So that all shapes are fixed by the width alone, and nothing but inputs and logits crosses the bus. Not
    run on a device so far; tested with host memory in its place.
    """

    def __init__(self, tensors: RowTensors, max_rows: int, widest: int, cuda: Cuda, device: str) -> None:
        """``device`` is ONNX Runtime's name of the memory; a step has at most ``widest`` tokens."""
        row_bytes = int(np.prod(tensors.row_shape)) * tensors.dtype.itemsize
        layout = RowLayout(len(tensors.past), 1, max_rows, row_bytes)
        self._tensors, self._max_rows = tensors, max_rows
        self._cuda, self._device = cuda, device
        self._stream = cuda.create_stream()
        self._new_pitch = aligned(widest * row_bytes)
        self._memory = [
            ort.OrtValue.ortvalue_from_shape_and_type([num_bytes], np.uint8, device, 0)
            for num_bytes in (layout.total_bytes, self._new_pitch * len(tensors.new))
        ]
        past, self._new_rows = (memory.data_ptr() for memory in self._memory)
        self.buffer = DeviceRows(cuda, self._stream, layout, past)

    def columns(self, width: int) -> MaskColumns:
        return MaskColumns(past=0, new=self._max_rows, total=self._max_rows + width)

    def bind(self, binding: ort.IOBinding, width: int) -> None:
        dtype, row_shape = self._tensors.dtype.type, self._tensors.row_shape
        for name, address in zip(self._tensors.past, self.buffer.addresses, strict=True):
            binding.bind_input(name, self._device, 0, dtype, (self._max_rows, *row_shape), address)
        for index, name in enumerate(self._tensors.new):
            address = self._new_rows + index * self._new_pitch
            binding.bind_output(name, self._device, 0, dtype, (width, *row_shape), address)

    def bind_past(self, binding: ort.IOBinding) -> None:  # noqa: ARG002 - all of it is bound already
        self._cuda.synchronize(self._stream)  # rows moved since: ONNX Runtime works on streams of its own

    def append(self, width: int, positions: NDArray[np.int64]) -> None:  # noqa: ARG002 - one place for all
        self.buffer.place(self._new_rows, self._new_pitch, len(positions))
        self.buffer.append(positions)
