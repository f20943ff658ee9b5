"""The row buffer against a plain list of rows."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from acespec.edge_runtime.kv_buffer import KvBuffer

TENSORS, MAX_ROWS, ROW_SHAPE = 4, 24, (2, 3)


class RowsMachine(RuleBasedStateMachine):
    """Any sequence of appends, compactions and truncations leaves the rows a list would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = KvBuffer(TENSORS, MAX_ROWS, ROW_SHAPE)
        self.expected: list[np.ndarray] = []  # each [TENSORS, *ROW_SHAPE]
        self.next_value = 0.0

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, min(6, MAX_ROWS - len(self.expected))))
        size = TENSORS * count * int(np.prod(ROW_SHAPE))
        rows = np.arange(self.next_value, self.next_value + size, dtype=np.float32)
        self.next_value += size
        rows = rows.reshape(TENSORS, count, *ROW_SHAPE)
        self.buffer.append(rows)
        self.expected += [rows[:, row].copy() for row in range(count)]

    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        prefix = data.draw(st.integers(0, len(self.expected)))
        rest = range(prefix, len(self.expected))
        rows = sorted(data.draw(st.sets(st.sampled_from(rest)))) if rest else []
        self.buffer.compact(prefix, rows)
        self.expected = self.expected[:prefix] + [self.expected[row] for row in rows]

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        num_rows = data.draw(st.integers(0, len(self.expected)))
        self.buffer.truncate(num_rows)
        del self.expected[num_rows:]

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        assert self.buffer.num_rows == len(self.expected)
        for row, expected in enumerate(self.expected):
            np.testing.assert_array_equal(self.buffer.storage[:, row], expected)


TestRows = RowsMachine.TestCase


@given(st.integers(0, MAX_ROWS), st.data())
def test_compacting_touches_nothing_below_the_prefix_nor_behind_the_end(
    num_rows: int, data: st.DataObject
) -> None:
    buffer = KvBuffer(TENSORS, MAX_ROWS, ROW_SHAPE)
    buffer.append(np.random.default_rng(0).random((TENSORS, num_rows, *ROW_SHAPE), np.float32))
    prefix = data.draw(st.integers(0, num_rows))
    rest = range(prefix, num_rows)
    rows = sorted(data.draw(st.sets(st.sampled_from(rest)))) if rest else []
    before = buffer.storage.copy()
    buffer.compact(prefix, rows)
    end = prefix + len(rows)
    np.testing.assert_array_equal(buffer.storage[:, :prefix], before[:, :prefix])
    np.testing.assert_array_equal(buffer.storage[:, end:], before[:, end:])


def test_the_rows_of_a_tensor_lie_in_one_piece_behind_a_row_of_zeros() -> None:
    buffer = KvBuffer(TENSORS, MAX_ROWS, ROW_SHAPE)
    rows = np.random.default_rng(0).random((TENSORS, 5, *ROW_SHAPE), np.float32)
    buffer.append(rows)
    for tensor, address in enumerate(buffer.past_addresses):
        row_size = int(np.prod(ROW_SHAPE))
        raw = np.array((ctypes.c_float * (6 * row_size)).from_address(address))
        assert not raw[:row_size].any()
        np.testing.assert_array_equal(raw[row_size:], rows[tensor].ravel())


@pytest.mark.parametrize("rows", [[1], [3, 2], [2, 2], [5]])
def test_rows_below_the_prefix_out_of_order_or_unknown_are_a_bug(rows: list[int]) -> None:
    buffer = KvBuffer(TENSORS, MAX_ROWS, ROW_SHAPE)
    buffer.append(np.zeros((TENSORS, 5, *ROW_SHAPE), np.float32))
    with pytest.raises(AssertionError):
        buffer.compact(2, rows)
