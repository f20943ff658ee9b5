"""Experiments say what is compared with what, and a point's key tells apart all that decides its result."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from acespec.bench.lab import experiments
from acespec.bench.lab.acespec_strategies import AceSpec
from acespec.bench.lab.baselines import E2Sci, Leniency, Vanilla
from acespec.bench.lab.experiment import Cell, Experiment, Point, Scope, points
from acespec.bench.lab.experiments import PAPER_RANKING
from acespec.bench.lab.profiles import StepLatency, parse_profiles
from acespec.bench.lab.simulated_link import LinkConditions
from acespec.bench.lab.strategies import STRATEGY_NAMES, acespec, strategy, with_gamma
from acespec.edge_runtime import DraftSettings, SpeculationPolicy
from acespec.speculation import Allocation, Ranking, SamplingParams
from acespec.wire import AcceptanceMode
from bench_world import PAIR, cases

PROFILES = parse_profiles("orin-qwen3-0.6b/a100-70b")
SCOPE = Scope(cases("a", "b"), seeds=(0, 5))
ALL = {
    "table1": experiments.table1(PAIR, STRATEGY_NAMES, [PROFILES], [10.0, 50.0]),
    "table2": experiments.table2(PAIR, [PROFILES], 50.0),
    "fig5": experiments.fig5(PAIR, STRATEGY_NAMES, [PROFILES], 50.0, [1e8, 1e4]),
    "fig6": experiments.fig6(PAIR, [PROFILES], 50.0, [20, 80]),
    "fig7": experiments.fig7(PAIR, [PROFILES], 50.0, [0.3, 1.7]),
    "race": experiments.race(PAIR, [PROFILES], [10.0, 50.0], 1e8, [2, 6], [4, 10, 99], 2.0),
    "sweep": experiments.sweep(PAIR, ["auto", "dssd"], [PROFILES], [10.0], [1e8], [0.2], [2, 8]),
}


@pytest.mark.parametrize("experiment", ALL.values(), ids=ALL)
def test_every_cell_has_labels_of_its_own_and_meets_the_same_prompts_and_seeds(
    experiment: Experiment,
) -> None:
    labels = [tuple(cell.labels.items()) for cell in experiment.cells]
    assert len(set(labels)) == len(labels)
    met: dict[int, list[tuple[str, int]]] = {}
    for point in points(experiment, SCOPE):
        met.setdefault(id(point.cell), []).append((point.case.id, point.conditions.seed))
    assert len(met) == len(experiment.cells)
    assert all(each == [("a", 0), ("a", 5), ("b", 0), ("b", 5)] for each in met.values())


@pytest.mark.parametrize("experiment", ALL.values(), ids=ALL)
def test_labels_tell_the_truth(experiment: Experiment) -> None:
    for cell in experiment.cells:
        known: dict[str, Any] = {
            "profile": cell.profiles.name,
            "rtt_ms": cell.link.rtt_ms,
            "strategy": cell.strategy.name,
            "rate_bps": 8.0 * cell.link.up.bytes_per_second,
            "counted": cell.link.charged.value,
            "temperature": cell.sampling.temperature,
        }
        if isinstance(cell.strategy, AceSpec):
            by_race = cell.strategy.settings.ranking is Ranking.COUPLED
            known["allocation"] = cell.strategy.settings.allocation.value if by_race else PAPER_RANKING
            known["budget"] = cell.strategy.settings.budget
        told = {name: value for name, value in cell.labels.items() if name in known}
        assert told == {name: known[name] for name in told}
        assert set(cell.labels) - set(known) <= {"gamma", "way"}


@pytest.mark.parametrize("experiment", ALL.values(), ids=ALL)
def test_what_a_row_is_compared_with_is_there(experiment: Experiment) -> None:
    labels = [cell.labels for cell in experiment.cells]
    if experiment.reference is not None:
        name, value = experiment.reference
        assert all({**each, name: value} in labels for each in labels)
    for comparison in experiment.comparisons:
        firsts = [each for each in labels if each[comparison.label] == comparison.first]
        assert firsts
        assert all({**each, comparison.label: comparison.second} in labels for each in firsts)


def test_runs_of_a_prompt_follow_each_other() -> None:
    order = [point.case.id for point in points(ALL["table1"], SCOPE)]
    assert order == sorted(order)


def test_every_strategy_has_the_name_it_is_found_by() -> None:
    assert STRATEGY_NAMES == (
        "autoregressive",
        "vanilla",
        "split",
        "dssd",
        "picospec",
        "pipesd",
        "e2sci",
        "colocated",
        "acespec_residual",
        "acespec_coupled",
        "auto",
        "race",
    )
    for name in STRATEGY_NAMES:
        assert strategy(name, PAIR).name == name


def test_acespec_is_run_as_its_pair_recommends() -> None:
    coupled = strategy("acespec_coupled", PAIR)
    assert isinstance(coupled, AceSpec)
    assert coupled.settings == DraftSettings.recommended(PAIR)
    automatic = strategy("auto", PAIR)
    assert isinstance(automatic, AceSpec)
    assert (automatic.settings.policy, automatic.settings.gamma) == (SpeculationPolicy.AUTO, None)


def test_allocations_differ_in_nothing_else() -> None:
    strategies = [cell.strategy for cell in ALL["table2"].cells]
    allocations = []
    for each in strategies:
        assert isinstance(each, AceSpec)
        allocations.append(each.settings.allocation)
        settings = replace(each.settings, allocation=Allocation.SINGLE, ranking=Ranking.COUPLED)
        assert replace(each, settings=settings) == strategies[0]
    assert allocations == [
        Allocation.SINGLE,
        Allocation.UNIFORM,
        Allocation.GEOMETRIC,
        Allocation.ADAPTIVE,
        Allocation.GEOMETRIC,
    ]
    assert [each.settings.ranking for each in strategies if isinstance(each, AceSpec)] == [
        *[Ranking.COUPLED] * 4,
        Ranking.PROBABILITY,
    ]


def test_a_chains_length_reaches_those_that_draft_chains() -> None:
    def gammas(name: str) -> Any:
        chosen = with_gamma(strategy(name, PAIR), 7)
        return chosen.settings.gamma if isinstance(chosen, AceSpec) else getattr(chosen, "gamma", "none")

    assert {name: gammas(name) for name in STRATEGY_NAMES} == {
        **dict.fromkeys(STRATEGY_NAMES, 7),
        "autoregressive": "none",
        "split": "none",
        "pipesd": "none",
        "auto": None,
        "race": None,
    }


def test_a_budget_no_step_is_wide_enough_for_is_refused() -> None:
    with pytest.raises(ValueError, match="budget 90 needs"):
        experiments.fig6(PAIR, [PROFILES], 50.0, [20, 90])


BASE = Cell(
    {"strategy": "x"},
    acespec(PAIR, AcceptanceMode.COUPLED),
    PROFILES,
    LinkConditions.symmetric(50.0),
    PAIR.sampling,
)


def point(cell: Cell = BASE, case: int = 0, **scope: Any) -> Point:
    return points(Experiment("x", "x", (cell,)), Scope(cases("a", "b")[case : case + 1], **scope))[0]


OTHERS = {
    "strategy": point(replace(BASE, strategy=Vanilla())),
    "mode": point(replace(BASE, strategy=acespec(PAIR, AcceptanceMode.RESIDUAL))),
    "allocation": point(
        replace(BASE, strategy=acespec(PAIR, AcceptanceMode.COUPLED, allocation=Allocation.SINGLE))
    ),
    "gamma": point(replace(BASE, strategy=acespec(PAIR, AcceptanceMode.COUPLED, gamma=3))),
    "buckets": point(replace(BASE, strategy=AceSpec(buckets=(1, 8)))),
    "a baseline": point(replace(BASE, strategy=E2Sci())),
    "a baseline's inner settings": point(replace(BASE, strategy=E2Sci(leniency=Leniency(base=0.2)))),
    "round trip": point(replace(BASE, link=LinkConditions.symmetric(51.0))),
    "jitter": point(replace(BASE, link=LinkConditions.symmetric(50.0, jitter_ms=1.0))),
    "rate": point(replace(BASE, link=LinkConditions.symmetric(50.0, bytes_per_second=1e3))),
    "temperature": point(replace(BASE, sampling=replace(PAIR.sampling, temperature=0.9))),
    "device": point(replace(BASE, profiles=parse_profiles("orin-qwen3-1.7b/a100-70b"))),
    "step times": point(
        replace(
            BASE,
            profiles=replace(PROFILES, edge=replace(PROFILES.edge, latency=StepLatency(((1, 8.0),)))),
        )
    ),
    "prompt": point(case=1),
    "prompt of the same id": replace(point(), case=replace(point().case, prompt=(8, 7, 9))),
    "seed": point(seeds=(1,)),
    "length": point(max_new_tokens=127),
    "ends": point(end_tokens=True),
}


def test_a_key_names_all_that_decides_a_result_and_nothing_else() -> None:
    keys = [point().key, *(other.key for other in OTHERS.values())]
    assert len(set(keys)) == len(keys)
    assert point(replace(BASE, labels={"called": "otherwise"})).key == point().key


def test_no_setting_of_sampling_is_left_out_of_the_key() -> None:
    told = point().settings["conditions"]["sampling"]
    assert set(told) == {field.name for field in fields(SamplingParams)}
