"""Runs in wall-clock time: shapes, plumbing and texts over real processes. Nothing depends on their speed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from acespec.bench import commands as bench_commands
from acespec.bench.lab import real_laboratory, real_measuring
from acespec.bench.lab.acespec_strategies import AceSpec, Autoregressive, DisturbedRunError
from acespec.bench.lab.baselines import Vanilla
from acespec.bench.lab.cases import PromptCase
from acespec.bench.lab.commands import bench
from acespec.bench.lab.experiment import Point, Scope, points
from acespec.bench.lab.laboratory import Conditions, Laboratory
from acespec.bench.lab.machine_times import FILE, keep_times, kept_times
from acespec.bench.lab.real_experiment import (
    Links,
    differing_texts,
    medians,
    real_experiment,
    real_strategies,
)
from acespec.bench.lab.real_laboratory import RealLaboratory, relayed_link
from acespec.bench.lab.results_store import StoredRun
from acespec.bench.lab.runner import Outcome
from acespec.bench.lab.strategy import RunResult, Strategy
from acespec.bench.lab.target_times import measured_points
from acespec.bench.lab.wall_check import CheckSettings, check, compare, report, show
from acespec.bench.link import DirectionShape, LinkShape
from acespec.bench.processes import Service
from acespec.bench.relay import Relay
from acespec.bench.relay_process import relay_service
from acespec.errors import AcespecError
from acespec.wire import AcceptanceMode
from bench_world import PAIR, RESULT, cases
from lab_world import case, conditions, identity, table_pair, target_engine
from real_world import table_real_bench, table_times

pytest.importorskip("matplotlib")
TESTS = Path(__file__).parent
NAMES = ("autoregressive", "acespec_residual", "acespec_coupled", "auto", "race")
FRAMING_BYTES = 14
"""HTTP/2's frame header and gRPC's prefix."""
PROFILES = table_times().profiles(None)


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr(real_measuring, "demo_real_bench", table_real_bench)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "letters.jsonl"
    path.write_text('{"prompt": "say a"}\n{"prompt": "say b"}\n', encoding="utf-8")
    return path


@pytest.fixture
def laboratory() -> Iterator[RealLaboratory]:
    real = table_real_bench()
    with RealLaboratory(real.identity, real.draft, real.serve(None)) as laboratory:
        yield laboratory
    real.draft.runner.close()


def run(folder: Path, prompts: Path, *more: str) -> Result:
    arguments = ["--real", "-o", str(folder), "--prompts", str(prompts), "--max-new-tokens", "12"]
    return CliRunner().invoke(bench, [*arguments, "--rtt", "2", *more])


def document(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "real.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def test_the_command_writes_a_row_for_each_strategy_and_goes_on_where_it_was(
    tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(tmp_path / "out", prompts, "--repeats", "2")
    assert done.exception is None, done.exception
    content = document(tmp_path / "out")
    rows = {row["strategy"]: row for row in content["rows"]}
    assert set(NAMES) <= set(rows)
    for row in rows.values():
        assert row["failed"] is None
        assert (row["dataset"], row["rtt_ms"], row["rate_bps"], row["prompts"]) == ("letters", 2.0, 1e8, 2)
        assert 0.0 < row["tokens_per_s_slowest"] <= row["tokens_per_s_fastest"]
        assert row["wire_up_per_token"] > row["payload_up_per_token"] > 0.0
    assert rows["autoregressive"]["speedup"] == 1.0
    assert [rows[name]["same_text"] for name in ("autoregressive", "acespec_coupled", "auto", "race")] == [
        1.0
    ] * 4
    settings = content["settings"]
    assert (settings["clock"], settings["repeats"], settings["pace_forward_ms"]) == ("wall", 2, 146.0)
    text = (tmp_path / "out" / "real.md").read_text(encoding="utf-8")
    assert "Times are the wall clock's" in text
    assert "(paced to 146 ms a forward at least)" in text
    assert "acespec_coupled" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert content["plots"] == ["real-measured_paced-146ms-100Mbps-2ms.svg"]
    assert (tmp_path / "out" / content["plots"][0]).with_suffix(".png").is_file()

    def run_again(*_: object) -> None:
        raise AssertionError("it is there already")

    monkeypatch.setattr(RealLaboratory, "run", run_again)
    assert run(tmp_path / "out", prompts, "--repeats", "2").exception is None
    assert document(tmp_path / "out")["rows"] == content["rows"]
    fresh = run(tmp_path / "out", prompts, "--repeats", "2", "--fresh")
    assert isinstance(fresh.exception, AcespecError)
    assert "16 of 16" not in str(fresh.exception)
    assert document(tmp_path / "out")["rows"][0]["failed"]["reasons"] == [
        "AssertionError: it is there already"
    ]


def test_a_text_that_must_be_cloud_onlys_and_is_not_is_an_error(
    tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_right = RealLaboratory.run

    def run_wrong(
        self: RealLaboratory, strategy: Strategy, case: PromptCase, conditions: Conditions
    ) -> RunResult:
        result = run_right(self, strategy, case, conditions)
        wrong = strategy.name == "acespec_coupled" and case.id == "2"
        return replace(result, tokens=result.tokens[1:] + result.tokens[:1]) if wrong else result

    monkeypatch.setattr(RealLaboratory, "run", run_wrong)
    done = run(tmp_path / "out", prompts, "--repeats", "1", "--no-plots", "--strategies", "acespec_coupled")
    assert isinstance(done.exception, AcespecError)
    assert str(done.exception).startswith("1 of the texts that must be those of cloud-only decoding")
    assert [row["same_text"] for row in document(tmp_path / "out")["rows"]] == [1.0, 0.5]


@pytest.mark.parametrize(
    "strategy", [Autoregressive(), AceSpec(buckets=(1, 4, 8, 16)), AceSpec(AcceptanceMode.RESIDUAL)]
)
def test_a_real_run_has_the_simulated_runs_text_and_counts(
    tmp_path: Path, laboratory: RealLaboratory, strategy: Autoregressive | AceSpec
) -> None:
    asked = conditions(end_tokens=False, link=relayed_link(4.0, 0.0, 1e6), max_new_tokens=16)
    real = laboratory.run(strategy, case(), asked)
    with Laboratory(table_pair(), tmp_path) as simulated:
        expected = simulated.run(strategy, case(), asked)
    assert (real.strategy, real.finish_reason) == (expected.strategy, expected.finish_reason)
    assert len(real.tokens) == 16
    if strategy.name != "acespec_residual":
        assert real.tokens == expected.tokens
    if isinstance(strategy, Autoregressive):
        assert real.target_forwards == expected.target_forwards == 16
        assert (real.messages_up, real.payload_up) == (expected.messages_up, expected.payload_up)
    else:
        assert 0 < real.accepted <= real.tested
    assert real.wire_up > real.payload_up
    assert real.wire_down > real.payload_down
    assert 0.0 < real.ttft_ms <= real.total_ms


def test_an_end_token_ends_a_real_text_where_it_ends_a_simulated_one(
    tmp_path: Path, laboratory: RealLaboratory
) -> None:
    asked = conditions(link=relayed_link(0.0, 0.0, 1e6), max_new_tokens=200)
    with Laboratory(table_pair(), tmp_path) as simulated:
        expected = simulated.run(Autoregressive(), case(), asked)
    assert laboratory.run(Autoregressive(), case(), asked).tokens == expected.tokens


def test_a_baseline_is_not_run_for_real(laboratory: RealLaboratory) -> None:
    with pytest.raises(AcespecError, match="vanilla runs over the simulated link alone"):
        laboratory.run(Vanilla(), case(), conditions())


def test_a_failed_run_leaves_nothing_behind_for_the_next(
    laboratory: RealLaboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = conditions(end_tokens=False, link=relayed_link(0.0, 0.0, 1e6), max_new_tokens=100)
    first = laboratory.run(Autoregressive(), case(), asked)
    with pytest.raises(ValueError, match="the prompt is empty"):
        laboratory.run(Autoregressive(), replace(case(), prompt=()), asked)
    with pytest.raises(AcespecError):
        laboratory.run(Autoregressive(), case(*[3] * 300), asked)  # more than the context
    again = laboratory.run(Autoregressive(), case(), asked)
    assert (again.tokens, again.messages_down) == (first.tokens, first.messages_down)
    assert again.wire_down >= again.payload_down + FRAMING_BYTES * again.messages_down  # its own connection's


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_and_what_was_started_for_it(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    ended: list[str] = []

    async def signalled(*_: object) -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("run")

    monkeypatch.setattr(real_laboratory, "generate", signalled)
    before = signal.getsignal(signal.SIGTERM)
    real = table_real_bench()
    serve = real.serve(None)
    with (
        pytest.raises((SystemExit, KeyboardInterrupt)),
        RealLaboratory(real.identity, real.draft, serve) as laboratory,
    ):
        laboratory.run(Autoregressive(), case(), conditions())
    assert ended == ["run"]
    assert serve.process is not None
    assert serve.process.returncode is not None
    assert signal.getsignal(signal.SIGTERM) is before
    real.draft.runner.close()


def test_a_verifier_that_cannot_start_says_why_and_nothing_is_left() -> None:
    real = table_real_bench()
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(AcespecError, match="No module named no_such_module"),
        RealLaboratory(real.identity, real.draft, Service(module="no_such_module")),
    ):
        pass
    assert signal.getsignal(signal.SIGTERM) is before
    real.draft.runner.close()


def test_what_cannot_be_run_is_told_before_anything_is_measured(tmp_path: Path, prompts: Path) -> None:
    done = run(tmp_path / "out", prompts, "--strategies", "vanilla")
    assert isinstance(done.exception, AcespecError)
    assert "over gRPC run autoregressive, acespec_residual, acespec_coupled, auto, race" in str(
        done.exception
    )
    assert not (tmp_path / "out").exists()


def test_the_flag_stands_for_the_command() -> None:
    for arguments in (["real", "--help"], ["--real", "--help"], ["--rtt", "5", "--real", "--help"]):
        done = CliRunner().invoke(bench, arguments)
        assert done.exit_code == 0
        assert done.output.startswith("Usage: bench real [OPTIONS]")
    wrong = CliRunner().invoke(bench, ["--real", "sweep"])
    assert wrong.exit_code == 2
    assert "leave sweep out" in wrong.output


def outcome(point: Point, **changes: object) -> Outcome:
    return Outcome(point, StoredRun(code="c", result=replace(RESULT, **changes)))  # type: ignore[arg-type]


def all_points() -> list[Point]:
    return points(real_experiment(PAIR, (), PROFILES, Links()), Scope(cases("a")))


def test_of_repeats_the_median_run_is_shown_and_a_failure_fails() -> None:
    first, second, *_ = all_points()
    runs = [(300.0, 9.0), (100.0, 8.0), (200.0, 7.0), (400.0, 6.0)]
    repeats = [[outcome(first, total_ms=total, ttft_ms=ttft), outcome(second)] for total, ttft in runs]
    repeats[2][1] = Outcome(second, None, "it broke")
    shown = medians(repeats)
    assert shown[0].result == replace(RESULT, total_ms=200.0, ttft_ms=7.0)
    assert (shown[1].result, shown[1].failure) == (None, "it broke")


def test_texts_that_must_be_cloud_onlys_are_compared_with_it() -> None:
    made = {point.cell.strategy.name: point for point in all_points()}
    repeats = [
        [
            outcome(point, tokens=(1, 2) if name == "autoregressive" else (1, 3))
            for name, point in made.items()
        ]
    ]
    assert {point.cell.strategy.name for point in differing_texts(repeats)} == {*made} - {
        "autoregressive",
        "acespec_residual",
    }
    assert differing_texts([[outcome(point) for point in made.values()]]) == []


def test_all_strategies_of_the_projects_own_protocol_run_for_real() -> None:
    assert set(NAMES) <= set(real_strategies(PAIR))
    assert not {"vanilla", "split", "dssd", "colocated"} & set(real_strategies(PAIR))


def test_a_paced_forward_takes_its_time_and_a_slower_one_its_own() -> None:
    times = table_times(target=((1, 50.0), (8, 250.0)))
    paced, bare = times.profiles(100.0).cloud, times.profiles(None).cloud
    assert [paced.forward_ms(1), paced.forward_ms(8)] == [100.0, 250.0]
    assert [bare.forward_ms(1), bare.forward_ms(8)] == [50.0, 250.0]
    assert (paced.name, bare.name) == ("paced-100ms", "measured")


def test_times_are_kept_for_the_same_machine_and_models_alone(tmp_path: Path) -> None:
    assert kept_times(tmp_path, identity()) is None
    keep_times(tmp_path, table_times())
    assert kept_times(tmp_path, identity()) == table_times()
    assert kept_times(tmp_path, identity(target_fingerprint="another")) is None
    keep_times(tmp_path, table_times(machine="another"))
    assert kept_times(tmp_path, identity()) is None
    (tmp_path / FILE).write_text("{}", encoding="utf-8")
    assert kept_times(tmp_path, identity()) is None


def test_a_targets_forwards_are_timed_behind_the_same_context() -> None:
    engine = target_engine()
    timed: list[int] = []
    step = engine.step

    def counted(feeds: Any) -> Any:
        timed.append(len(feeds[0].tokens))
        return step(feeds)

    engine.step = counted  # type: ignore[method-assign]
    measured = measured_points(engine, 5, (1, 3))
    assert [width for width, _ in measured] == [1, 3]
    assert all(each > 0.0 for _, each in measured)
    assert timed[0] == 5
    assert set(timed[1:]) == {1, 3}


def test_both_clocks_are_compared_on_the_same_runs(tmp_path: Path) -> None:
    settings = CheckSettings(("say a",), max_new_tokens=8, repeats=1, links=Links((2.0, 4.0)))
    console = Console(quiet=True)
    times, compared = check(settings, table_real_bench(), tmp_path, console, tmp_path / "rows")
    assert [(entry.rtt_ms, entry.strategy) for entry in compared][: len(NAMES)] == [(2.0, n) for n in NAMES]
    assert {entry.rtt_ms for entry in compared} == {2.0, 4.0}
    for entry in compared:
        assert entry.equal_texts == (None if entry.strategy == "acespec_residual" else 1.0)
    found = json.loads(json.dumps(report(compared, times, settings)))
    assert found["within_aim"] == (abs(found["worst_difference"]) <= found["aim"])
    assert [row["strategy"] for row in found["rows"]] == [entry.strategy for entry in compared]
    show(compared, console)


def test_the_difference_is_the_virtual_clocks_relative_to_the_wall_clocks() -> None:
    made = all_points()
    wall = [outcome(point, total_ms=1000.0) for point in made]
    virtual = [outcome(point, total_ms=800.0, tokens=(1, 2, 3, 9)) for point in made]
    compared = compare("acespec_coupled", 50.0, wall, virtual)
    assert compared.difference == pytest.approx(0.25)
    assert (compared.wall_tokens_per_s, compared.virtual_tokens_per_s) == pytest.approx((4.0, 5.0))
    assert compared.equal_texts == 0.0


def test_a_relay_is_told_each_directions_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = LinkShape(DirectionShape(1.5, 0.25, 6250.0), DirectionShape(20.0))
    made: list[LinkShape] = []

    class Noted(Relay):
        def __init__(self, target: tuple[str, int], shape: LinkShape, **options: Any) -> None:
            made.append(shape)
            raise DisturbedRunError("that will do")

    monkeypatch.setattr(bench_commands, "Relay", Noted)
    command = relay_service("127.0.0.1:1", shape)._command
    CliRunner().invoke(bench_commands.wan_relay, command[command.index("wan-relay") + 1 :])
    assert made == [shape]
