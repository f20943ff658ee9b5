"""What is measured is kept at once: an interrupted experiment goes on, and a failure is kept as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acespec.bench.lab import experiments, results_store
from acespec.bench.lab.cases import PromptCase
from acespec.bench.lab.experiment import Experiment, Scope, points
from acespec.bench.lab.laboratory import Conditions
from acespec.bench.lab.profiles import parse_profiles
from acespec.bench.lab.results_store import RESULTS_FILE, ResultsStore, code_version
from acespec.bench.lab.row_file import RowFile
from acespec.bench.lab.runner import Outcome, execute
from acespec.bench.lab.strategy import RunResult, Strategy
from acespec.edge_runtime import FinishReason
from bench_world import PAIR, RESULT, MadeUp, cases

PROFILES = parse_profiles("orin-qwen3-0.6b/a100-70b")
EXPERIMENT = experiments.table1(PAIR, ["vanilla", "dssd"], [PROFILES], [10.0, 50.0])
SCOPE = Scope(cases("a", "b"))
POINTS = points(EXPERIMENT, SCOPE)


class Interrupted(MadeUp):
    """Is stopped by its user before one of its runs."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self._left = before

    def run(self, strategy: Strategy, case: PromptCase, conditions: Conditions) -> RunResult:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1
        return super().run(strategy, case, conditions)


def run_all(folder: Path, source: MadeUp, **options: Any) -> list[Outcome]:
    with ResultsStore(folder, "pair") as store:
        return execute(source, POINTS, store, **options)


def test_an_interrupted_experiment_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_all(tmp_path, Interrupted(before=5))
    rest = MadeUp()
    outcomes = run_all(tmp_path, rest)
    assert len(rest.runs) == len(POINTS) - 5
    whole = MadeUp()
    expected = run_all(tmp_path / "another", whole)
    assert [outcome.result for outcome in outcomes] == [outcome.result for outcome in expected]
    nothing = MadeUp()
    assert run_all(tmp_path, nothing) == outcomes
    assert nothing.runs == []


def test_all_is_measured_again_when_that_is_asked_for(tmp_path: Path) -> None:
    run_all(tmp_path, MadeUp())
    again = MadeUp(total_ms={"dssd": 10.0})
    outcomes = run_all(tmp_path, again, fresh=True)
    assert len(again.runs) == len(POINTS)
    assert run_all(tmp_path, MadeUp()) == outcomes


def test_a_failure_is_told_with_its_reason_and_tried_again(tmp_path: Path) -> None:
    told: list[Outcome] = []
    outcomes = run_all(tmp_path, MadeUp(("dssd", "b")), on_outcome=told.append)
    assert told == outcomes
    failed = [outcome for outcome in outcomes if outcome.result is None]
    assert [(f.point.cell.strategy.name, f.point.case.id) for f in failed] == [("dssd", "b")] * 2
    assert {f.failure for f in failed} == {"b was not to be"}
    retried = MadeUp()
    assert all(outcome.result is not None for outcome in run_all(tmp_path, retried))
    assert retried.runs == [("dssd", "b", 0)] * 2


def test_a_bug_costs_its_own_point_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MadeUp):
        def run(self, strategy: Strategy, case: PromptCase, conditions: Conditions) -> RunResult:
            if strategy.name == "vanilla":
                raise IndexError("out of range")
            return super().run(strategy, case, conditions)

    outcomes = run_all(tmp_path, Broken())
    failed = {outcome.point.cell.strategy.name: outcome.failure for outcome in outcomes if outcome.failure}
    assert failed == {"vanilla": "IndexError: out of range"}
    assert "Traceback" in caplog.text


def test_a_run_that_cells_share_is_made_once(tmp_path: Path) -> None:
    shared = experiments.sweep(PAIR, ["vanilla"], [PROFILES], [10.0], [1e8], [0.2], [2, 4])
    source = MadeUp()
    with ResultsStore(tmp_path, "pair") as store:
        outcomes = execute(source, points(shared, Scope(cases("a"))), store, fresh=True)
    assert [name for name, _, _ in source.runs] == ["autoregressive", "vanilla", "vanilla"]
    assert [outcome.point.cell.labels["gamma"] for outcome in outcomes] == [2, 2, 4, 4]


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    result = replace(RESULT, finish_reason=FinishReason.END_TOKEN, ttft_ms=0.1 + 0.2, inexact=3)
    with ResultsStore(tmp_path, "pair") as store:
        store.put(POINTS[0], result)
    with ResultsStore(tmp_path, "pair") as store:
        stored = store.get(POINTS[0])
    assert stored is not None
    assert stored.result == result
    assert stored.code == code_version()


def test_a_result_is_on_disk_as_soon_as_it_is_kept(tmp_path: Path) -> None:
    with ResultsStore(tmp_path, "pair") as store:
        store.put(POINTS[0], RESULT)
        with ResultsStore(tmp_path, "pair") as another:  # as after a power cut, or in another process
            assert another.get(POINTS[0]) is not None


def test_results_of_other_models_or_another_format_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ResultsStore(tmp_path, "pair") as store:
        store.put(POINTS[0], RESULT)
    with ResultsStore(tmp_path, "another") as store:
        assert store.get(POINTS[0]) is None
    monkeypatch.setattr(results_store, "RESULT_FORMAT", results_store.RESULT_FORMAT + 1)
    with ResultsStore(tmp_path, "pair") as store:
        assert store.get(POINTS[0]) is None


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"code": "c", "result": {"strategy": "x"}}'])
def test_a_result_that_cannot_be_read_is_measured_again(tmp_path: Path, damage: bytes) -> None:
    with ResultsStore(tmp_path, "pair") as store:
        store.put(POINTS[0], RESULT)
    rows = RowFile(tmp_path / RESULTS_FILE)
    rows.put(f"{results_store.RESULT_FORMAT}/pair/{POINTS[0].key}".encode(), damage)
    rows.close()
    with ResultsStore(tmp_path, "pair") as store:
        assert store.get(POINTS[0]) is None


def test_an_experiment_without_cells_gives_nothing(tmp_path: Path) -> None:
    assert points(Experiment("x", "x", ()), SCOPE) == []
