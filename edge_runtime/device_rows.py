"""Keys and values in device memory: one row a token, moved on the device, never through the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acespec.edge_runtime.cuda import Cuda, aligned
from acespec.edge_runtime.used_rows import UsedRows


@dataclass(frozen=True)
class RowLayout:
    """How rows lie in memory. A plane is where one row follows the other.

    The portable graph's rows are whole: a tensor is one plane ``[R, KVH * D]``. The native graph's are cut by
    head: a tensor is KVH planes ``[R, D]``.
    """

    tensors: int
    """2 x layers: keys and values."""
    planes: int
    """Of a tensor."""
    rows: int
    row_bytes: int
    """Of a row in one plane."""

    @property
    def plane_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def tensor_pitch(self) -> int:
        """Bytes from one tensor to the next."""
        return aligned(self.planes * self.plane_bytes)

    @property
    def total_bytes(self) -> int:
        return self.tensors * self.tensor_pitch


@dataclass(frozen=True)
class RowMove:
    """Rows ``source .. source + count - 1`` go to ``target ..``; the two do not overlap."""

    target: int
    source: int
    count: int


def row_moves(prefix: int, kept: Sequence[int]) -> Iterator[RowMove]:
    """What moves ``kept`` rows (ascending, all >= prefix) to ``prefix ..``, made one after the other."""
    index = 0
    while index < len(kept):
        target, source = prefix + index, kept[index]
        count = 1
        # Copies on a device must not overlap: a run moved by d rows is moved d rows at a time.
        while (
            index + count < len(kept)
            and kept[index + count] == source + count
            and (target == source or count < source - target)
        ):
            count += 1
        if target != source:
            yield RowMove(target, source, count)
        index += count


class DeviceRows(UsedRows):
    """The rows in use of a block of device memory, and the position each stands at.

    What is asked for is given to the stream: it happens in order, before whatever is given to it later.
    """

    def __init__(self, cuda: Cuda, stream: Any, layout: RowLayout, address: int) -> None:
        """``address`` is of ``layout.total_bytes`` bytes. They are set to zero: a row that is masked must
        still be finite, for 0 x NaN is NaN."""
        super().__init__(layout.rows)
        self._cuda = cuda
        self._stream = stream
        self._layout = layout
        self._address = address
        cuda.fill_zeros(address, layout.total_bytes, stream)
        cuda.synchronize(stream)  # should the engine fail to start, the memory is free to go

    @property
    def addresses(self) -> list[int]:
        """Where each tensor begins."""
        return [self._address + index * self._layout.tensor_pitch for index in range(self._layout.tensors)]

    def place(self, source: int, source_pitch: int, count: int) -> None:
        """Copy ``count`` rows of every tensor behind those in use; for layouts of one plane a tensor.

        ``source`` is where the first tensor's rows are, the next tensor's ``source_pitch`` bytes further.
        """
        layout = self._layout
        assert layout.planes == 1
        target = self._address + self.num_rows * layout.row_bytes
        width = count * layout.row_bytes
        self._cuda.copy_planes(
            target, layout.tensor_pitch, source, source_pitch, width, layout.tensors, self._stream
        )

    def _move(self, prefix: int, kept: NDArray[np.int64]) -> None:
        for move in row_moves(prefix, kept.tolist()):
            self._copy(move)

    def _copy(self, move: RowMove) -> None:
        layout = self._layout
        width = move.count * layout.row_bytes
        if layout.planes == 1:
            blocks, pitch, height = [self._address], layout.tensor_pitch, layout.tensors
        elif layout.tensor_pitch == layout.planes * layout.plane_bytes:  # no gap between tensors
            blocks, pitch, height = [self._address], layout.plane_bytes, layout.tensors * layout.planes
        else:
            blocks, pitch, height = self.addresses, layout.plane_bytes, layout.planes
        for block in blocks:
            target = block + move.target * layout.row_bytes
            source = block + move.source * layout.row_bytes
            self._cuda.copy_planes(target, pitch, source, pitch, width, height, self._stream)
