"""The row buffer against a plain list of rows."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from acespec.edge_runtime.kv_buffer import KvBuffer

TENSORS, MAX_ROWS, ROW_SHAPE = 4, 24, (2, 3)


class RowsMachine(RuleBasedStateMachine):
    """Any sequence of appends, compactions and truncations leaves the rows a list would hold, either way."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers = [KvBuffer(TENSORS, MAX_ROWS, ROW_SHAPE, by_head=by_head) for by_head in (False, True)]
        self.expected: list[tuple[int, np.ndarray]] = []  # each a position and [TENSORS, *ROW_SHAPE]
        self.next_value = 0.0

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, min(6, MAX_ROWS - len(self.expected))))
        size = TENSORS * count * int(np.prod(ROW_SHAPE))
        rows = np.arange(self.next_value, self.next_value + size, dtype=np.float32)
        self.next_value += size
        rows = rows.reshape(TENSORS, count, *ROW_SHAPE)
        positions = np.array(
            data.draw(st.lists(st.integers(0, 99), min_size=count, max_size=count)), np.int64
        )
        for buffer in self.buffers:
            buffer.place(rows)
            buffer.append(positions)
        self.expected += [(int(positions[row]), rows[:, row].copy()) for row in range(count)]

    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        prefix = data.draw(st.integers(0, len(self.expected)))
        rest = range(prefix, len(self.expected))
        rows = sorted(data.draw(st.sets(st.sampled_from(rest)))) if rest else []
        for buffer in self.buffers:
            buffer.compact(prefix, rows)
        self.expected = self.expected[:prefix] + [self.expected[row] for row in rows]

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        num_rows = data.draw(st.integers(0, len(self.expected)))
        for buffer in self.buffers:
            buffer.truncate(num_rows)
        del self.expected[num_rows:]

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        for buffer in self.buffers:
            assert buffer.num_rows == len(self.expected)
            assert buffer.positions[: buffer.num_rows].tolist() == [position for position, _ in self.expected]
            for row, (_, expected) in enumerate(self.expected):
                np.testing.assert_array_equal(buffer.storage[:, row], expected)


TestRows = RowsMachine.TestCase
TestRows.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def filled(num_rows: int, by_head: bool) -> KvBuffer:
    """A buffer of random rows at the positions 0, 1, ..."""
    buffer = KvBuffer(TENSORS, MAX_ROWS, ROW_SHAPE, by_head=by_head)
    buffer.place(np.random.default_rng(0).random((TENSORS, num_rows, *ROW_SHAPE), np.float32))
    buffer.append(np.arange(num_rows))
    return buffer


@given(st.integers(0, MAX_ROWS), st.booleans(), st.data())
def test_compacting_touches_nothing_below_the_prefix_nor_behind_the_end(
    num_rows: int, by_head: bool, data: st.DataObject
) -> None:
    buffer = filled(num_rows, by_head)
    prefix = data.draw(st.integers(0, num_rows))
    rest = range(prefix, num_rows)
    rows = sorted(data.draw(st.sets(st.sampled_from(rest)))) if rest else []
    before = buffer.storage.copy()
    buffer.compact(prefix, rows)
    end = prefix + len(rows)
    np.testing.assert_array_equal(buffer.storage[:, :prefix], before[:, :prefix])
    np.testing.assert_array_equal(buffer.storage[:, end:], before[:, end:])


def test_the_rows_of_a_tensor_lie_in_one_piece_behind_a_row_of_zeros() -> None:
    buffer = filled(5, by_head=False)
    row_size = int(np.prod(ROW_SHAPE))
    assert buffer.row_bytes == 4 * row_size
    for tensor, address in enumerate(buffer.addresses):
        raw = np.array((ctypes.c_float * (6 * row_size)).from_address(address))
        assert not raw[:row_size].any()
        np.testing.assert_array_equal(raw[row_size:], buffer.storage[tensor, :5].ravel())


def test_the_rows_of_a_head_lie_in_one_piece_behind_one_of_zeros() -> None:
    buffer = filled(5, by_head=True)
    heads, head_dim = ROW_SHAPE
    for tensor, address in enumerate(buffer.addresses):
        raw = np.array((ctypes.c_float * (heads * (1 + MAX_ROWS) * head_dim)).from_address(address))
        by_head = raw.reshape(heads, 1 + MAX_ROWS, head_dim)
        assert not by_head[:, 0].any()
        np.testing.assert_array_equal(by_head[:, 1:6].swapaxes(0, 1), buffer.storage[tensor, :5])
        assert not by_head[:, 6:].any()


def test_rows_are_of_the_type_asked_for() -> None:
    buffer = KvBuffer(TENSORS, MAX_ROWS, ROW_SHAPE, np.float16)
    assert buffer.storage.dtype == np.float16
    assert buffer.row_bytes == 2 * int(np.prod(ROW_SHAPE))


@pytest.mark.parametrize("rows", [[1], [3, 2], [2, 2], [5]])
def test_rows_below_the_prefix_out_of_order_or_unknown_are_a_bug(rows: list[int]) -> None:
    buffer = filled(5, by_head=False)
    with pytest.raises(AssertionError):
        buffer.compact(2, rows)
