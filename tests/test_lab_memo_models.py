"""Rows are computed once, and as deep as the sampling that asks for them looks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from acespec.bench.lab.lab_pair import LabPair, recorded_pair
from acespec.bench.lab.memo_models import MemoModels, MissingRowError, default_store
from acespec.bench.lab.row_sources import EngineDraftSource, EngineTargetSource
from acespec.bench.lab.token_path import TokenPath
from acespec.models.cache import CACHE_VARIABLE
from acespec.speculation import LogitsRow, SamplingParams, candidate_row, distribution
from fake_draft import TableDraftEngine, hashed_table
from fake_target import TableTargetEngine
from lab_world import identity

VOCAB = 1500
TABLE = hashed_table(VOCAB, salt=4)
COLD, WARM = SamplingParams(temperature=0.1, top_p=0.9), SamplingParams(top_p=0.9)
PATH = TokenPath.of((3, 4)).then(5)


def pair() -> LabPair:
    return LabPair(
        identity(vocab_size=VOCAB),
        lambda: EngineDraftSource(TableDraftEngine(TABLE, VOCAB)),
        lambda: EngineTargetSource(TableTargetEngine(TABLE, VOCAB)),
    )


def is_right(models: MemoModels, sampling: SamplingParams) -> bool:
    """Whether both models say at ``PATH`` what their tables do."""
    whole = TABLE(tuple(PATH.tokens))
    draft = candidate_row(models.draft(PATH, sampling), sampling)
    expected = candidate_row(LogitsRow(whole), sampling)
    target = distribution(models.target(PATH, sampling), sampling)
    return (
        np.array_equal(draft.ids, expected.ids)
        and np.array_equal(draft.scores, expected.scores)
        and np.array_equal(target.probs, distribution(whole, sampling).probs)
    )


def computed(models: MemoModels) -> tuple[int, int]:
    return models.draft_rows_computed, models.target_rows_computed


def test_rows_of_a_cold_sampling_are_computed_again_for_a_warm_one(tmp_path: Path) -> None:
    models = MemoModels(pair(), tmp_path)
    assert is_right(models, COLD)
    assert computed(models) == (1, 1)
    shallow = len(models.draft(PATH, COLD).values)
    assert is_right(models, WARM)
    assert computed(models) == (2, 2)
    assert len(models.draft(PATH, WARM).values) == 512 > shallow
    models.close()
    again = MemoModels(recorded_pair(tmp_path), tmp_path)
    assert is_right(again, WARM)
    assert is_right(again, COLD), "the deeper row has replaced the shallow one, and holds all of it"
    assert again.report().draft_rows == 1
    again.close()


def test_rows_of_a_warm_sampling_do_for_a_cold_one(tmp_path: Path) -> None:
    models = MemoModels(pair(), tmp_path)
    assert is_right(models, WARM)
    assert is_right(models, COLD)
    assert computed(models)[0] == 1
    models.close()


def test_a_whole_target_row_does_for_every_sampling(tmp_path: Path) -> None:
    models = MemoModels(pair(), tmp_path)
    models.target(PATH, SamplingParams())
    models.close()
    replay = MemoModels(recorded_pair(tmp_path), tmp_path)
    assert np.array_equal(replay.target(PATH, COLD), TABLE(tuple(PATH.tokens)))
    replay.close()


def test_a_shallow_row_is_missing_for_a_warm_sampling_where_there_is_no_model(tmp_path: Path) -> None:
    models = MemoModels(pair(), tmp_path)
    assert is_right(models, COLD)
    models.close()
    replay = MemoModels(recorded_pair(tmp_path), tmp_path)
    assert is_right(replay, COLD)
    with pytest.raises(MissingRowError, match="lacks a draft row 1 tokens behind a prompt"):
        replay.draft(PATH, WARM)
    with pytest.raises(MissingRowError, match="lacks a target row"):
        replay.target(PATH, WARM)
    replay.close()


def test_rows_stay_right_when_memory_holds_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acespec.bench.lab.memo_models.DRAFT_CACHE_BYTES", 0)
    monkeypatch.setattr("acespec.bench.lab.memo_models.TARGET_CACHE_BYTES", 0)
    models = MemoModels(pair(), tmp_path)
    for sampling in (WARM, COLD, WARM):
        assert is_right(models, sampling)
    assert computed(models) == (1, 1), "the warm rows hold all that a cold sampling looks at"
    models.close()


def test_a_store_is_kept_in_the_cache_by_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    mine, other = identity(), identity(computed_by="another machine")
    assert default_store(mine).parent == tmp_path / "laboratory"
    assert default_store(mine) == default_store(identity())
    assert default_store(mine) != default_store(other)
    models = MemoModels(pair())
    models.close()
    assert {path.name for path in models.folder.iterdir()} == {"draft.sqlite", "pair.json", "target.sqlite"}
