"""Masks as graphs take them, against one entry at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.edge_runtime.additive_mask import write_additive_mask
from acespec.models.manifest import MASKED


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@given(data=st.data())
def test_every_entry_is_what_its_row_and_position_say(dtype: type[np.floating], data: st.DataObject) -> None:
    past, count = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 5))
    width, gap = count + data.draw(st.integers(0, 3)), data.draw(st.integers(0, 4))
    window = data.draw(st.none() | st.integers(1, 6))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    allowed = random.random((count, past + count)) < 0.6
    positions = random.integers(0, 12, past + count)
    target = np.full((width, past + gap + width), np.nan, dtype)

    write_additive_mask(target, allowed, positions, past + gap, window)

    expected = np.full_like(target, MASKED)
    for token in range(count):
        for row in range(past + count):
            distance = positions[past + token] - positions[row]
            if allowed[token, row] and (window is None or distance < window):
                expected[token, row if row < past else gap + row] = 0
    np.testing.assert_array_equal(target, expected)


def test_a_window_counts_positions_and_not_rows() -> None:
    """Two branches behind position 1: the second branch's rows lie further back, at the same positions."""
    positions = np.array([0, 1, 2, 3, 2, 3, 4])
    allowed = np.array([[True, True, False, False, True, True, True]])
    target = np.zeros((1, 7), np.float32)
    write_additive_mask(target, allowed, positions, 6, window=3)
    assert (target[0] == 0).tolist() == [False, False, False, False, True, True, True]
