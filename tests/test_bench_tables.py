"""Tables hold what was measured: a failed run takes its row's figures with it, and is never left out."""

from __future__ import annotations

from typing import Any

import pytest

from acespec.bench.lab import experiments
from acespec.bench.lab.bandwidth import add_bounds
from acespec.bench.lab.break_even import break_evens
from acespec.bench.lab.experiment import Experiment, Scope
from acespec.bench.lab.measures import MEASURES
from acespec.bench.lab.profiles import parse_profiles
from acespec.bench.lab.strategies import acespec
from acespec.bench.lab.tables import Row, Table
from acespec.bench.lab.views import views
from acespec.edge_runtime.strategy_times import Scenario, break_even_ms
from acespec.edge_runtime.time_model import OutcomeOdds
from acespec.speculation import Allocation
from acespec.wire import AcceptanceMode
from bench_world import PAIR, RESULT, MadeUp, cases, outcomes

PROFILES = parse_profiles("orin-qwen3-0.6b/a100-70b")
SCOPE = Scope((*cases("a", "b"), *cases("c", dataset="digits")), seeds=(0, 1))
TABLE1 = experiments.table1(PAIR, ["vanilla", "dssd"], [PROFILES], [10.0, 50.0])
TABLE2 = experiments.table2(PAIR, [PROFILES], 50.0)


def rows(experiment: Experiment, made_up: MadeUp | None = None) -> list[Row]:
    return Table(experiment, outcomes(experiment, SCOPE, made_up)).rows()


def where(row: Row) -> tuple[str, float, str]:
    return row["dataset"], row["rtt_ms"], row["strategy"]


def test_a_row_for_each_data_set_and_cell_in_order() -> None:
    names = ("autoregressive", "vanilla", "dssd")
    assert [where(row) for row in rows(TABLE1)] == [
        (dataset, rtt_ms, name)
        for dataset in ("letters", "digits")
        for rtt_ms in (10.0, 50.0)
        for name in names
    ]


def test_figures_are_those_of_the_rows_own_runs() -> None:
    measured = rows(TABLE1, MadeUp(total_ms={"vanilla": 500.0}))
    by_place = {where(row): row for row in measured}
    letters = by_place["letters", 10.0, "vanilla"]
    # Prompts a and b, two seeds each: 4 tokens in 510 and in 520 ms; cloud-only in 1010 and 1020.
    assert letters["tokens_per_s"] == pytest.approx(16_000.0 / 2060.0)
    assert letters["speedup"] == pytest.approx(4060.0 / 2060.0)
    assert letters["speedup_low"] <= letters["speedup"] <= letters["speedup_high"]
    assert (letters["prompts"], letters["runs"], letters["failed"]) == (2, 4, None)
    assert letters["hit_rate"] == RESULT.hit_rate
    digits = by_place["digits", 10.0, "vanilla"]
    assert digits["speedup"] == pytest.approx(1010.0 / 510.0)
    assert digits["speedup_low"] is None
    assert by_place["digits", 50.0, "autoregressive"]["speedup"] == 1.0


def test_a_failed_run_takes_the_figures_of_its_row_alone() -> None:
    measured = {where(row): row for row in rows(TABLE1, MadeUp(("vanilla", "b")))}
    for place, row in measured.items():
        if place[0] == "letters" and place[2] == "vanilla":
            assert row["failed"] == {"runs": 2, "reasons": ["b was\nnot to be"]}
            assert [row[measure.name] for measure in MEASURES] == [None] * len(MEASURES)
            assert row["speedup"] is None
        else:
            assert row["failed"] is None
            assert row["tokens_per_s"] is not None
            assert row["speedup"] is not None


def test_nothing_is_relative_to_a_reference_that_failed() -> None:
    for row in rows(TABLE1, MadeUp(("autoregressive", "c"))):
        assert (row["speedup"] is None) is (row["dataset"] == "digits")
        if row["strategy"] != "autoregressive":
            assert row["tokens_per_s"] is not None


class ByAllocation(MadeUp):
    """Takes as long as its allocation says."""

    TOTAL_MS = {"single": 1000.0, "uniform": 900.0, "geometric": 800.0, "adaptive": 850.0}  # noqa: RUF012

    def run(self, strategy: Any, case: Any, conditions: Any) -> Any:
        self.total_ms = {strategy.name: self.TOTAL_MS[strategy.settings.allocation.value]}
        return super().run(strategy, case, conditions)


def test_differences_are_of_neighbouring_allocations_with_bounds() -> None:
    table = Table(TABLE2, outcomes(TABLE2, SCOPE, ByAllocation()))
    found = {
        (row["dataset"], row["first"], row["second"], row["measure"]): row for row in table.differences()
    }
    assert len(found) == 2 * 4 * 3
    gains = [
        found["letters", first, second, "tokens_per_s"]
        for first, second in (("uniform", "single"), ("geometric", "uniform"), ("adaptive", "geometric"))
    ]
    assert [gain["difference_low"] > 0.0 for gain in gains] == [True, True, False]
    assert gains[2]["difference_high"] < 0.0
    speeds = {row["allocation"]: row["tokens_per_s"] for row in table.rows() if row["dataset"] == "letters"}
    assert gains[1]["difference"] == pytest.approx(speeds["geometric"] - speeds["uniform"])
    assert found["digits", "uniform", "single", "tokens_per_s"]["difference_low"] is None


def test_a_failed_cell_is_not_compared() -> None:
    class NoUniform(ByAllocation):
        def run(self, strategy: Any, case: Any, conditions: Any) -> Any:
            uniform = strategy.settings.allocation is Allocation.UNIFORM
            self.failing = {(strategy.name, "a")} if uniform else set()
            return super().run(strategy, case, conditions)

    table = Table(TABLE2, outcomes(TABLE2, SCOPE, NoUniform()))
    compared = {(row["dataset"], row["first"], row["second"]) for row in table.differences()}
    assert {pair[1:] for pair in compared if pair[0] == "letters"} == {
        ("adaptive", "geometric"),
        ("geometric", "geometric, by probability"),
    }
    assert len(compared) == 2 + 4


def bandwidth_row(rate_bps: float, tokens_per_s: float | None, up: float = 6.0, **more: object) -> Row:
    return {
        "dataset": "d",
        "profile": "p",
        "counted": "payload",
        "strategy": "s",
        "rate_bps": rate_bps,
        "tokens_per_s": tokens_per_s,
        "payload_up_per_token": up,
        "payload_down_per_token": 4.0,
        "wire_up_per_token": 100.0,
        "wire_down_per_token": 100.0,
        **more,
    }


def test_the_bound_of_a_slow_link_is_what_its_bytes_take() -> None:
    # 10 bytes a token are 8 ms at 10 kbps: 100 ms a token become 108 at best.
    measured = [bandwidth_row(1e8, 10.0), bandwidth_row(1e4, 9.0), bandwidth_row(1e4, 9.0, counted="wire")]
    measured.append(bandwidth_row(1e8, 10.0, counted="wire"))
    add_bounds(measured)
    assert measured[1]["share_of_full"] == pytest.approx(0.9)
    assert measured[1]["share_of_bound"] == pytest.approx(9.0 * 0.108)
    assert measured[2]["share_of_bound"] == pytest.approx(9.0 * (0.1 + 8.0 * 200.0 / 1e4))
    assert measured[0]["share_of_full"] == 1.0


def test_a_bound_without_figures_is_none() -> None:
    measured = [bandwidth_row(1e8, None), bandwidth_row(1e4, 9.0)]
    add_bounds(measured)
    assert [(row["share_of_full"], row["share_of_bound"]) for row in measured] == [(None, None)] * 2


def round_trips(*speedups: float | None) -> list[Row]:
    return [
        {
            "dataset": "d",
            "profile": PROFILES.name,
            "rtt_ms": rtt_ms,
            "strategy": "acespec_coupled",
            "speedup": speedup,
            "acceptance": 0.6,
        }
        for rtt_ms, speedup in zip((200.0, 10.0, 50.0), speedups, strict=True)
    ]


@pytest.mark.parametrize(
    ("speedups", "between"),
    [
        ((0.7, 1.9, 1.2), [50.0, 200.0]),
        ((0.7, 1.9, 0.9), [10.0, 50.0]),
        ((1.1, 1.9, 1.2), [200.0, None]),
        ((0.7, 0.9, 0.8), [None, 10.0]),
        ((0.7, 0.9, 1.1), [50.0, 200.0]),
    ],
)
def test_the_break_even_lies_between_winning_and_losing(
    speedups: tuple[float, ...], between: list[float | None]
) -> None:
    (found,) = break_evens(round_trips(*speedups), PAIR, 49_152)
    assert found["measured_between"] == between


def test_the_break_even_by_the_model_is_that_of_the_measured_acceptance() -> None:
    (found,) = break_evens(round_trips(0.7, 1.9, 1.2), PAIR, 49_152)
    steps = {bucket: PROFILES.edge.step_ms(bucket) for bucket in PAIR.buckets}
    scenario = Scenario(
        0.0, float("inf"), 146.0, steps, OutcomeOdds(0.6, PAIR.initial_beta), 49_152, gamma=PAIR.gamma
    )
    assert found["model_rtt_ms"] == break_even_ms(scenario)
    assert found["model_rtt_ms"] > 50.0


def test_there_is_no_break_even_of_a_series_with_a_failure() -> None:
    assert break_evens(round_trips(0.7, None, 1.2), PAIR, 49_152) == []


def test_acespecs_settings_reach_its_cells() -> None:
    cell = TABLE1.cells[0]
    assert cell.sampling == PAIR.sampling
    assert acespec(PAIR, AcceptanceMode.COUPLED, gamma=2).settings.gamma == 2


@pytest.mark.parametrize(("num_prompts", "warns"), [(3, True), (20, False)])
def test_bounds_over_few_prompts_come_with_a_warning(num_prompts: int, warns: bool) -> None:
    scope = Scope(cases(*(str(number) for number in range(num_prompts))))
    table = Table(TABLE2, outcomes(TABLE2, scope, ByAllocation()))
    shown = views(
        {
            "experiment": "table2",
            "rows": table.rows(),
            "differences": table.differences(),
            "settings": {"bounds": {"level": 0.95}},
        }
    )
    assert ("take more" in shown[-1].note) is warns


def test_where_a_baseline_is_fastest_is_listed_with_and_without_the_cloud_that_drafts_for_itself() -> None:
    experiment = experiments.table1(PAIR, ["colocated", "dssd", "acespec_coupled"], [PROFILES], [10.0, 50.0])

    class Fast(MadeUp):
        def run(self, strategy: Any, case: Any, conditions: Any) -> Any:
            dssd_ms = 400.0 if conditions.link.rtt_ms == 10.0 else 900.0
            self.total_ms = {"colocated": 300.0, "dssd": dssd_ms, "acespec_coupled": 500.0}
            return super().run(strategy, case, conditions)

    scope = Scope(cases("a", "b"))
    table = Table(experiment, outcomes(experiment, scope, Fast()))
    shown = views({"experiment": "table1", "rows": table.rows(), "break_even": []})
    listed = {
        view.title: [(row[0].text.split(", ")[-1], row[1].text, row[4].text) for row in view.rows]
        for view in shown
        if view.title.startswith("Where a baseline")
    }
    assert listed == {
        "Where a baseline is fastest": [
            ("10 ms", "colocated", "acespec_coupled"),
            ("50 ms", "colocated", "acespec_coupled"),
        ],
        "Where a baseline is fastest, colocated left out": [("10 ms", "dssd", "acespec_coupled")],
    }
    (lowest,) = [view for view in shown if view.title.startswith("Lowest")]
    assert {row[0].text: row[2].text.split(", ")[-1] for row in lowest.rows}["dssd"] == "50 ms"
