"""Bit packing: the fast long path against strings of binary digits, on both sides of every threshold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.wire.bits import CHUNK, LONG_RUN, BitReader, BitWriter


def spread(count: int, width: int) -> list[int]:
    """``count`` values that use all bits of ``width``."""
    return [(index * 0x9E3779B97F4A7C15 + 1) % (1 << width) for index in range(count)]


@pytest.mark.parametrize("count", [0, 1, LONG_RUN - 1, LONG_RUN, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
@pytest.mark.parametrize("width", [8, 9, 18, 60, 63])
def test_runs_of_any_length(count: int, width: int) -> None:
    values = spread(count, width)
    writer = BitWriter()
    writer.write(5, 3)  # so that the run begins within a byte
    writer.write_all(values, width)
    data = writer.to_bytes()

    digits = "101" + "".join(f"{value:0{width}b}" for value in values)
    padding = -len(digits) % 8
    assert data == int(digits + "0" * padding, 2).to_bytes((len(digits) + padding) // 8, "big")

    reader = BitReader(data)
    assert reader.read(3) == 5
    assert reader.read_all(count, width) == values
    assert reader.remaining == padding


@given(st.lists(st.integers(1, 63).flatmap(lambda w: st.tuples(st.integers(0, 2**w - 1), st.just(w)))))
def test_fields_of_any_width(fields: list[tuple[int, int]]) -> None:
    writer = BitWriter()
    for value, width in fields:
        writer.write(value, width)
    reader = BitReader(writer.to_bytes())
    assert [(reader.read(width), width) for _, width in fields] == fields
    assert 0 <= reader.remaining < 8
    assert reader.read(reader.remaining) == 0


@pytest.mark.parametrize("count", [1, LONG_RUN])
@pytest.mark.parametrize("value", [-1, 256])
def test_a_value_that_does_not_fit_is_a_bug(count: int, value: int) -> None:
    with pytest.raises(AssertionError, match="fit 8 bits"):
        BitWriter().write_all([0] * (count - 1) + [value], 8)


@given(st.binary(max_size=4), st.integers(0, 20), st.integers(0, 3))
def test_zeros_at_the_end(data: bytes, num_read: int, num_zeros: int) -> None:
    data += bytes(num_zeros)
    reader = BitReader(data)
    num_read = min(num_read, reader.remaining)
    reader.read(num_read)
    left = "".join(f"{byte:08b}" for byte in data)[num_read:]
    assert reader.ending_zeros() == len(left) - len(left.rstrip("0"))
