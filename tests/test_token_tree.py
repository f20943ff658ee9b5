"""Trees of tokens against walks from each token to the root."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.cloud_verifier.token_tree import HELD, is_chain, is_path, is_tree
from acespec.speculation import tree_mask
from token_trees import path_to, trees


@given(trees(max_size=40))
def test_a_token_sees_itself_and_what_it_follows(parents: list[int]) -> None:
    lineage = tree_mask(np.array(parents), 0, len(parents))
    for token in range(len(parents)):
        assert np.flatnonzero(lineage[token]).tolist() == path_to(parents, token)


@given(trees(max_size=12), st.data())
def test_a_path_is_what_leads_to_its_last_token(parents: list[int], data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(parents) - 1))
    chosen = data.draw(st.just(path_to(parents, token)) | st.lists(st.integers(0, 12), max_size=4))
    expected = not chosen or (chosen[-1] < len(parents) and chosen == path_to(parents, chosen[-1]))
    assert is_path(np.array(parents), chosen) == expected


@pytest.mark.parametrize(
    ("parents", "tree", "chain"),
    [
        ([HELD], True, True),
        ([HELD, 0, 1], True, True),
        ([HELD, HELD], True, False),
        ([HELD, 0, 0], True, False),
        ([0], False, False),
        ([HELD, 2, 0], False, False),
        ([-2], False, False),
    ],
)
def test_what_is_a_tree_and_a_chain(parents: list[int], tree: bool, chain: bool) -> None:
    assert is_tree(np.array(parents)) == tree
    assert is_chain(np.array(parents)) == chain
