"""The paper's tables and figures as experiments, and a free sweep. Pure descriptions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from acespec.bench.lab.acespec_strategies import AceSpec
from acespec.bench.lab.baselines import Colocated
from acespec.bench.lab.experiment import Cell, Comparison, Experiment, Label
from acespec.bench.lab.profiles import ProfilePair
from acespec.bench.lab.simulated_link import Charged, LinkConditions
from acespec.bench.lab.strategies import BASELINE, acespec, strategy, with_gamma
from acespec.bench.lab.strategy import Strategy
from acespec.models import Pair
from acespec.speculation import Allocation, Ranking
from acespec.wire import AcceptanceMode

WIDER_BUCKETS = (32, 48, 64, 80)
"""Step widths besides the pair's, for budgets that need them."""
REFERENCE = ("strategy", BASELINE)
ROUNDS = "rounds"
"""What rows of rounds are called, before their gamma and, where it is fixed, their budget."""
PAPER_RANKING = "geometric, by probability"
"""Geometric allocation whose branches are ranked as in the paper."""


def table1(
    pair: Pair, strategies: Sequence[str], profiles: Sequence[ProfilePair], rtts_ms: Sequence[float]
) -> Experiment:
    """Every strategy on every pair of devices at every round trip (paper, Table I)."""
    return Experiment(
        "table1",
        "Table 1: throughput by strategy, devices and round trip",
        tuple(
            _cell(pair, name, profile, {"rtt_ms": rtt_ms, "strategy": name}, LinkConditions.symmetric(rtt_ms))
            for profile in profiles
            for rtt_ms in rtts_ms
            for name in _with_baseline(strategies)
        ),
        REFERENCE,
    )


def table2(pair: Pair, profiles: Sequence[ProfilePair], rtt_ms: float) -> Experiment:
    """How the tree's branches are spread over depths (paper, Table II), and how they are ranked."""
    order = [Allocation.SINGLE, Allocation.UNIFORM, Allocation.GEOMETRIC, Allocation.ADAPTIVE]
    allocated = {each.value: acespec(pair, AcceptanceMode.COUPLED, allocation=each) for each in order}
    allocated[PAPER_RANKING] = acespec(
        pair, AcceptanceMode.COUPLED, allocation=Allocation.GEOMETRIC, ranking=Ranking.PROBABILITY
    )
    compared = [
        *itertools.pairwise(each.value for each in order),
        (PAPER_RANKING, Allocation.GEOMETRIC.value),
    ]
    return Experiment(
        "table2",
        "Table 2: allocation of branches",
        tuple(
            Cell(
                {"profile": profile.name, "rtt_ms": rtt_ms, "allocation": name},
                chosen,
                profile,
                LinkConditions.symmetric(rtt_ms),
                pair.sampling,
            )
            for profile in profiles
            for name, chosen in allocated.items()
        ),
        comparisons=tuple(Comparison("allocation", better, worse) for worse, better in compared),
    )


def fig5(
    pair: Pair,
    strategies: Sequence[str],
    profiles: Sequence[ProfilePair],
    rtt_ms: float,
    rates: Sequence[float],
) -> Experiment:
    """Less and less bandwidth, in bits a second each way, by messages alone and by every byte on the wire."""
    return Experiment(
        "fig5",
        "Figure 5: bandwidth",
        tuple(
            _cell(
                pair,
                name,
                profile,
                {"rtt_ms": rtt_ms, "counted": charged.value, "rate_bps": rate, "strategy": name},
                LinkConditions.symmetric(rtt_ms, bytes_per_second=rate / 8.0, charged=charged),
            )
            for profile in profiles
            for charged in Charged
            for rate in rates
            for name in _with_baseline(strategies)
        ),
        REFERENCE,
    )


def fig6(pair: Pair, profiles: Sequence[ProfilePair], rtt_ms: float, budgets: Sequence[int]) -> Experiment:
    """The tree's budget, nodes a step with the chain's. Raises ``ValueError`` for one that does not fit."""
    buckets = tuple(sorted({*pair.buckets, *WIDER_BUCKETS}))

    def tree(allocation: Allocation, budget: int) -> AceSpec:
        chosen = acespec(pair, AcceptanceMode.COUPLED, allocation=allocation, budget=budget)
        chosen.settings.check_buckets(buckets)
        return replace(chosen, buckets=buckets)

    return Experiment(
        "fig6",
        "Figure 6: budget of the tree",
        tuple(
            Cell(
                {
                    "profile": profile.name,
                    "rtt_ms": rtt_ms,
                    "allocation": allocation.value,
                    "budget": budget,
                },
                tree(allocation, budget),
                profile,
                LinkConditions.symmetric(rtt_ms),
                pair.sampling,
            )
            for profile in profiles
            for allocation in (Allocation.UNIFORM, Allocation.GEOMETRIC, Allocation.ADAPTIVE)
            for budget in budgets
        ),
    )


def fig7(
    pair: Pair, profiles: Sequence[ProfilePair], rtt_ms: float, temperatures: Sequence[float]
) -> Experiment:
    """Temperature, in both modes of acceptance."""
    names = (BASELINE, "acespec_residual", "acespec_coupled")
    return Experiment(
        "fig7",
        "Figure 7: temperature",
        tuple(
            _cell(
                pair,
                name,
                profile,
                {"rtt_ms": rtt_ms, "temperature": temperature, "strategy": name},
                LinkConditions.symmetric(rtt_ms),
                temperature,
            )
            for profile in profiles
            for temperature in temperatures
            for name in names
        ),
        REFERENCE,
    )


def sweep(
    pair: Pair,
    strategies: Sequence[str],
    profiles: Sequence[ProfilePair],
    rtts_ms: Sequence[float],
    rates: Sequence[float],
    temperatures: Sequence[float],
    gammas: Sequence[int],
) -> Experiment:
    """Every combination; ``gammas`` empty leaves each strategy its own chain."""
    chains: Sequence[int | None] = gammas or (None,)
    cells = []
    for profile in profiles:
        for rate in rates:
            for temperature in temperatures:
                for gamma in chains:
                    for rtt_ms in rtts_ms:
                        labels: dict[str, Label] = {"rate_bps": rate, "temperature": temperature}
                        if gamma is not None:
                            labels["gamma"] = gamma
                        link = LinkConditions.symmetric(rtt_ms, bytes_per_second=rate / 8.0)
                        cells += [
                            _cell(
                                pair,
                                name,
                                profile,
                                {**labels, "rtt_ms": rtt_ms, "strategy": name},
                                link,
                                temperature,
                                gamma,
                            )
                            for name in _with_baseline(strategies)
                        ]
    return Experiment("sweep", "Sweep", tuple(cells), REFERENCE)


def race(
    pair: Pair,
    profiles: Sequence[ProfilePair],
    rtts_ms: Sequence[float],
    rate: float,
    gammas: Sequence[int],
    budgets: Sequence[int],
    cloud_draft_step_ms: float,
) -> Experiment:
    """The race beside all it is to beat; rounds with each chain, and each budget that fits it.

    ``rate`` in bits a second each way. Rows are told apart by their ``way``.
    """
    cells = []
    for profile, rtt_ms in itertools.product(profiles, rtts_ms):
        ways: dict[str, Strategy] = {name: strategy(name, pair) for name in (BASELINE, "race", "auto")}
        speedup = profile.edge.step_ms(1) / cloud_draft_step_ms
        ways["colocated"] = Colocated(draft_speedup=speedup)
        ways |= _rounds(pair, gammas, budgets)
        link = LinkConditions.symmetric(rtt_ms, bytes_per_second=rate / 8.0)
        cells += [
            Cell(
                {"profile": profile.name, "rtt_ms": rtt_ms, "way": way}, chosen, profile, link, pair.sampling
            )
            for way, chosen in ways.items()
        ]
    return Experiment("race", "The race", tuple(cells), ("way", BASELINE))


def _rounds(pair: Pair, gammas: Sequence[int], budgets: Sequence[int]) -> dict[str, AceSpec]:
    """Rounds with every chain, and every tree that holds it and fits a step; by name."""
    widest = max(pair.buckets)
    ways: dict[str, AceSpec] = {}
    for gamma in gammas:
        ways[f"{ROUNDS} {gamma}"] = acespec(pair, AcceptanceMode.COUPLED, gamma=gamma)
        for budget in budgets:
            if gamma < budget <= gamma + widest:
                ways[f"{ROUNDS} {gamma}/{budget}"] = acespec(
                    pair, AcceptanceMode.COUPLED, gamma=gamma, budget=budget
                )
    return ways


def _cell(
    pair: Pair,
    name: str,
    profile: ProfilePair,
    labels: dict[str, Label],
    link: LinkConditions,
    temperature: float | None = None,
    gamma: int | None = None,
) -> Cell:
    chosen = strategy(name, pair)
    if gamma is not None:
        chosen = with_gamma(chosen, gamma)
    sampling = pair.sampling if temperature is None else replace(pair.sampling, temperature=temperature)
    return Cell({"profile": profile.name, **labels}, chosen, profile, link, sampling)


def _with_baseline(strategies: Sequence[str]) -> list[str]:
    """``strategies`` with what they are compared with, once and first."""
    return [BASELINE, *(name for name in strategies if name != BASELINE)]
