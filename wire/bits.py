"""Bit-packed integers, most significant bit first: the ground the packed messages stand on.

Short runs go through one Python integer, which is fastest for the dozen fields of a round; long ones (a
prompt, a whole target distribution) through NumPy. Everything here is linear in the number of bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LONG_RUN = 64
"""From this many values on NumPy is faster than shifting, whose cost grows with the square."""
CHUNK = 8192
"""Values unpacked at a time, to bound memory; a multiple of 8, so that a chunk is a whole number of bytes."""
MAX_WIDTH = 63
"""Widest value: a signed 64-bit integer holds it."""


class BitWriter:
    """Collects fields of given widths; ``to_bytes`` fills the last byte with zero bits."""

    __slots__ = ("_num_bits", "_value")

    def __init__(self) -> None:
        self._value = 0
        self._num_bits = 0

    def write(self, value: int, width: int) -> None:
        """Append one field of ``width`` bits."""
        assert 0 <= value < 1 << width, f"{value} does not fit {width} bits"
        self._value = self._value << width | value
        self._num_bits += width

    def write_all(self, values: Sequence[int], width: int) -> None:
        """Append every value in ``width`` bits, at most 63."""
        if len(values) < LONG_RUN:
            for value in values:
                self.write(value, width)
        else:
            self._value = self._value << len(values) * width | _pack(values, width)
            self._num_bits += len(values) * width

    def to_bytes(self) -> bytes:
        padding = -self._num_bits % 8
        return (self._value << padding).to_bytes((self._num_bits + padding) // 8, "big")


class BitReader:
    """Takes fields off the front of ``data``. Whoever reads has checked ``remaining`` first."""

    __slots__ = ("_value", "remaining")

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "big")
        self.remaining = 8 * len(data)
        """Bits not read yet."""

    def read(self, width: int) -> int:
        """Take one field of ``width`` bits."""
        assert width <= self.remaining, f"{width} bits wanted, {self.remaining} left"
        self.remaining -= width
        return self._value >> self.remaining & (1 << width) - 1

    def last(self, width: int) -> int:
        """The last ``width`` bits of the data, without taking them."""
        return self._value & (1 << width) - 1

    def ending_zeros(self) -> int:
        """How many zeros stand at the end of the bits not read yet."""
        zeros = (self._value & -self._value).bit_length() - 1
        return min(zeros, self.remaining) if self._value else self.remaining

    def read_all(self, count: int, width: int) -> list[int]:
        """Take ``count`` values of ``width`` bits each, at most 63."""
        run = self.read(count * width)
        if count >= LONG_RUN:
            values: list[int] = _unpack(run, count, width).tolist()
            return values
        mask = (1 << width) - 1
        return [run >> shift & mask for shift in range((count - 1) * width, -1, -width)]


def _shifts(width: int) -> NDArray[np.int64]:
    assert width <= MAX_WIDTH
    return np.arange(width - 1, -1, -1, dtype=np.int64)  # [width]


def _pack(values: Sequence[int], width: int) -> int:
    """``values`` of ``width`` bits each as one integer, the first the most significant."""
    array = np.asarray(values, dtype=np.int64)  # [n]
    assert 0 <= int(array.min()) <= int(array.max()) < 1 << width, f"a value does not fit {width} bits"
    shifts = _shifts(width)
    chunks = [
        np.packbits((array[start : start + CHUNK, None] >> shifts & 1).astype(np.uint8)).tobytes()
        for start in range(0, len(array), CHUNK)
    ]
    return int.from_bytes(b"".join(chunks), "big") >> -len(array) * width % 8


def _unpack(run: int, count: int, width: int) -> NDArray[np.int64]:
    """The inverse of ``_pack``: ``[count]``."""
    padding = -count * width % 8
    packed = (run << padding).to_bytes((count * width + padding) // 8, "big")
    place_values = np.int64(1) << _shifts(width)  # [width]
    values = np.empty(count, dtype=np.int64)
    for start in range(0, count, CHUNK):
        chunk = values[start : start + CHUNK]
        data = np.frombuffer(packed, np.uint8, offset=start * width // 8, count=-(-len(chunk) * width // 8))
        bits = np.unpackbits(data, count=len(chunk) * width)  # [chunk * width]
        np.matmul(bits.reshape(-1, width), place_values, out=chunk)
    return values
