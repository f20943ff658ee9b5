"""The round trip up to which AceSpec is faster than the cloud alone: by the model of time, and measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from acespec.bench.lab.profiles import parse_profiles
from acespec.bench.lab.tables import Row
from acespec.edge_runtime.strategy_times import Scenario, break_even_ms
from acespec.edge_runtime.time_model import OutcomeOdds
from acespec.models import Pair

STRATEGY = "acespec_coupled"


@dataclass(frozen=True)
class _Series:
    """Rows of one data set on one pair of devices that differ in the round trip alone."""

    dataset: str
    profile: str
    others: tuple[tuple[str, float], ...]


def break_evens(rows: Sequence[Row], pair: Pair, vocab_size: int) -> list[Row]:
    """One for each series of rows over round trips that ``STRATEGY`` has all figures of.

    ``model_rtt_ms`` is ``acespec plan``'s, told the acceptance that was measured, the pair's exponent, its
    chain and the row's rate; None where it loses at any round trip. ``measured_between`` are the neighbouring
    round trips of which it won at the first and lost at the second; null at an end that was not seen.
    """
    found = []
    series: dict[_Series, list[Row]] = {}
    for row in rows:
        if row["strategy"] == STRATEGY:
            others = tuple((name, row[name]) for name in ("rate_bps", "temperature", "gamma") if name in row)
            series.setdefault(_Series(row["dataset"], row["profile"], others), []).append(row)
    for which, members in series.items():
        if any(row["speedup"] is None or row["acceptance"] is None for row in members):
            continue
        alpha = sum(row["acceptance"] for row in members) / len(members)
        found.append(
            {
                "dataset": which.dataset,
                "profile": which.profile,
                **dict(which.others),
                "strategy": STRATEGY,
                "acceptance": alpha,
                "model_rtt_ms": break_even_ms(_scenario(which, alpha, pair, vocab_size)),
                "measured_between": _between(members),
            }
        )
    return found


def _scenario(series: _Series, alpha: float, pair: Pair, vocab_size: int) -> Scenario:
    profiles, others = parse_profiles(series.profile), dict(series.others)
    rate = others.get("rate_bps")
    return Scenario(
        round_trip_ms=0.0,
        bytes_per_ms=math.inf if rate is None else rate / 8000.0,
        target_step_ms=profiles.cloud.forward_ms(1),
        draft_step_ms={bucket: profiles.edge.step_ms(bucket) for bucket in pair.buckets},
        odds=OutcomeOdds(min(max(alpha, 1e-3), 1.0 - 1e-3), pair.initial_beta),
        vocab_size=vocab_size,
        gamma=int(others.get("gamma", pair.gamma)),
    )


def _between(rows: Sequence[Row]) -> list[float | None]:
    """The last neighbours of which the first wins and the second loses."""
    ordered = sorted(rows, key=lambda row: row["rtt_ms"])
    trips: list[float | None] = [None, *(row["rtt_ms"] for row in ordered), None]
    wins = [True, *(row["speedup"] >= 1.0 for row in ordered), False]
    last = max(index for index, (here, there) in enumerate(itertools.pairwise(wins)) if here and not there)
    return trips[last : last + 2]
