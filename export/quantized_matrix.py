"""A matrix in four or eight bits: the arithmetic every runtime's weights are made by. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# What the range of a block is multiplied by, tried in turn: in four bits clipping an outlier often pays. A
# symmetric range is worth trying down to 7/8 of its width or less: minus eight is a level, plus eight is not.
RANGE_FACTORS = {
    (4, False): (1.06, 1.03, 1.0, 0.97, 0.94, 0.91, 0.88, 0.85),
    (4, True): (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72),
    (8, False): (1.0,),
    (8, True): (1.0,),
}
"""By (bits, symmetric)."""
SLICE_VALUES = 2**18
"""Weights worked on at a time, a slice of columns: 1 MiB of float32, which a core's cache holds."""


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix ``[in, out]`` that stands for ``(values - zero_points) * scales``, block by block.

    A block is ``block`` inputs of one output; without, all inputs of an output share a scale. ``values`` are
    ``int8`` without zero points (symmetric) and ``uint8`` with them, one a byte in four bits too. Scales are
    positive.
    """

    bits: int
    block: int | None
    values: NDArray[np.int8] | NDArray[np.uint8]  # [in, out]
    scales: NDArray[np.float32]  # [in / block, out], or [out] without blocks
    zero_points: NDArray[np.uint8] | None = None  # as scales

    @property
    def symmetric(self) -> bool:
        return self.zero_points is None

    def dequantized(self) -> NDArray[np.float32]:
        """The matrix ``[in, out]`` it stands for."""
        matrix = np.empty(self.values.shape, np.float32)
        self.dequantize_into(matrix)
        return matrix

    def dequantize_into(self, matrix: NDArray[np.floating]) -> None:
        """Write the matrix it stands for into ``matrix`` ``[in, out]``, a slice of columns at a time."""
        rows, columns = self.values.shape
        scales = np.atleast_2d(self.scales)
        zero_points = None if self.zero_points is None else np.atleast_2d(self.zero_points)
        width = max(1, SLICE_VALUES // rows)
        for first in range(0, columns, width):
            part = slice(first, first + width)
            blocks = self.values[:, part].reshape(len(scales), rows // len(scales), -1).astype(np.float32)
            if zero_points is not None:
                blocks -= zero_points[:, None, part]
            blocks *= scales[:, None, part]
            matrix[:, part] = blocks.reshape(rows, -1)


def quantize_matrix(
    weight: NDArray[np.float32], bits: int, block: int | None, symmetric: bool
) -> QuantizedMatrix:
    """Quantise ``weight`` ``[in, out]``; ``in`` is a multiple of ``block``.

    Each block gets the range, of those tried, whose squared error is least once its scale is the
    least-squares one. Memory beyond the result is a few MiB whatever the matrix.
    """
    rows, columns = weight.shape
    size = block or rows
    assert rows % size == 0, (weight.shape, block)
    values = np.empty(weight.shape, np.int8 if symmetric else np.uint8)
    scales = np.empty((rows // size, columns), np.float32)
    zero_points = None if symmetric else np.empty(scales.shape, np.uint8)
    width = max(1, SLICE_VALUES // rows)
    for first in range(0, columns, width):
        part = slice(first, first + width)
        blocks = weight[:, part].reshape(len(scales), size, -1)
        codes, scales[:, part], zeros = _quantize_blocks(blocks, bits, symmetric)
        if zero_points is not None:
            codes += zeros[:, None]
            zero_points[:, part] = zeros
        values[:, part] = codes.reshape(rows, -1)
    if block is None:
        return QuantizedMatrix(bits, None, values, scales[0], None if zero_points is None else zero_points[0])
    return QuantizedMatrix(bits, block, values, scales, zero_points)


def _quantize_blocks(
    blocks: NDArray[np.float32], bits: int, symmetric: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Codes counted from the zero point ``[B, size, out]``, scales and zero points ``[B, out]``."""
    if symmetric:
        highest = np.float32(2 ** (bits - 1) - 1)
        # One level less below zero in eight bits, where it is worth nothing: then no code lacks a negative.
        lowest = -highest - (bits == 4)
        unit = np.abs(blocks).max(axis=1) / highest
        zeros = np.zeros_like(unit)
        limits = (lowest, highest)
    else:
        top = np.float32(2**bits - 1)
        low = np.minimum(blocks.min(axis=1), 0)
        unit = (np.maximum(blocks.max(axis=1), 0) - low) / top
        unit = np.maximum(unit, np.finfo(np.float32).tiny)
        zeros = np.rint(-low / unit)
        limits = (-zeros[:, None], top - zeros[:, None])
    unit = np.maximum(unit, np.finfo(np.float32).tiny)
    codes, scales = _search_range(blocks, unit, limits, RANGE_FACTORS[bits, symmetric])
    return codes, scales, zeros


def _search_range(
    blocks: NDArray[np.float32],
    unit: NDArray[np.float32],
    limits: tuple[NDArray[np.float32], NDArray[np.float32]],
    factors: tuple[float, ...],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Codes ``[B, size, out]`` and scales ``[B, out]`` of the best of the ranges ``unit * factor``."""
    best_codes = np.empty_like(blocks)
    best_scales = np.ones_like(unit)
    most_explained = np.full_like(unit, -1, np.float64)  # errors are small differences of large sums
    for factor in factors:
        codes = blocks / (unit * np.float32(factor))[:, None]
        np.rint(codes, out=codes)
        np.clip(codes, *limits, out=codes)
        along = np.einsum("bso,bso->bo", codes, blocks, dtype=np.float64)
        square = np.einsum("bso,bso->bo", codes, codes, dtype=np.float64)
        # The least-squares scale; a block of zeros has none, and runtimes want a positive one.
        scales = np.where(square > 0, along / np.maximum(square, 1), 1)
        explained = along * scales  # squared error = |block|^2 - explained
        better = explained > most_explained
        np.copyto(best_codes, codes, where=better[:, None])
        np.copyto(best_scales, scales, where=better)
        np.copyto(most_explained, explained, where=better)
    return best_codes, best_scales
