"""The laboratory's remembered target, fed trees, against the table it remembers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from acespec.bench.lab.memo_engines import MemoTargetEngine
from acespec.bench.lab.token_path import TokenPath
from acespec.cloud_verifier.engine import Feed
from acespec.speculation import LogitsRow
from lab_world import TARGET, VOCAB, identity
from token_trees import path_to, random_parents

PROMPT = (7, 3, 9)


class TableModels:
    """``Models`` that remembers nothing."""

    vocab_size = VOCAB

    def draft(self, path: TokenPath) -> LogitsRow:
        raise AssertionError(f"nobody drafts here: {path.key.hex()}")

    def target(self, path: TokenPath) -> NDArray[np.float32]:
        return TARGET((*path.prompt, *path.generated))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_a_row_is_that_of_its_branch_and_a_branch_is_kept(seed: int) -> None:
    """As the race feeds it: the last committed token, which may be the prompt's, and a tree below it."""
    random = np.random.default_rng(seed)
    engine = MemoTargetEngine(TableModels(), identity(), PROMPT)
    sequence = engine.open(256)
    engine.step([Feed(sequence, np.array(PROMPT[:-1]), 0)])
    text, tip = list(PROMPT[:-1]), PROMPT[-1]
    for _ in range(4):
        size = int(random.integers(1, 12))
        parents = [-1, *(parent + 1 for parent in random_parents(random, size))]
        tokens = [tip, *random.integers(0, VOCAB, size).tolist()]
        (rows,) = engine.step([Feed(sequence, np.array(tokens), size + 1, np.array(parents))])
        for node in range(size + 1):
            expected = TARGET((*text, *(tokens[i] for i in path_to(parents, node))))
            np.testing.assert_array_equal(rows[node], expected)
        path = path_to(parents, int(random.integers(size + 1)))
        engine.keep(sequence, len(text) + 1, [len(text) + i for i in path[1:]])
        text += [tokens[i] for i in path]
        tip = int(random.integers(VOCAB))


def test_what_is_no_text_is_not_kept() -> None:
    engine = MemoTargetEngine(TableModels(), identity(), PROMPT)
    sequence = engine.open(256)
    engine.step([Feed(sequence, np.array([*PROMPT, 1, 2, 3]), 3, np.array([-1, 0, 1, 2, 2, 3]))])
    with pytest.raises(AssertionError, match="what is kept is a text"):
        engine.keep(sequence, 4, [4])
