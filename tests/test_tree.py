"""The tree mask: against its definition, and against the paper's Fig. 4 worked by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acespec.speculation import tree_mask


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Parents of a random forest, the number of committed rows, the number of new rows."""
    size = draw(st.integers(0, 40))
    parents = [draw(st.integers(-1, row - 1)) for row in range(size)]
    return parents, draw(st.integers(0, 20)), draw(st.integers(0, size))


def attends(parents: list[int], num_committed: int, row: int, column: int) -> bool:
    """The definition: the committed prefix, ancestors, itself."""
    if column < num_committed:
        return True
    other = column - num_committed
    return other == row or (parents[row] >= 0 and attends(parents, num_committed, parents[row], column))


@given(steps())
def test_equals_the_definition(step: tuple[list[int], int, int]) -> None:
    parents, num_committed, num_new = step
    mask = tree_mask(np.array(parents, dtype=np.int64), num_committed, num_new)
    expected = [
        [attends(parents, num_committed, row, column) for column in range(num_committed + len(parents))]
        for row in range(len(parents) - num_new, len(parents))
    ]
    assert mask.dtype == np.bool_
    assert mask.shape == (num_new, num_committed + len(parents))
    assert mask.tolist() == expected


def test_the_papers_structure_by_hand() -> None:
    # Three committed rows; a chain x1 x2 x3; one branch after each accepted count 0..3, first and second
    # token: shared prefix | main-path branch | suffix diagonal.
    chain = [-1, 0, 1]
    first = [-1, 0, 1, 2]
    second = [3, 4, 5, 6]
    mask = tree_mask(np.array(chain + first + second), 3, 4)
    drawn = [
        "###" "..." "#..." "#...",
        "###" "#.." ".#.." ".#..",
        "###" "##." "..#." "..#.",
        "###" "###" "...#" "...#",
    ]  # fmt: skip
    assert ["".join(".#"[int(seen)] for seen in row) for row in mask] == drawn


def test_without_a_tree_the_mask_is_causal() -> None:
    mask = tree_mask(np.arange(-1, 4), 0, 5)
    np.testing.assert_array_equal(mask, np.tri(5, dtype=bool))
