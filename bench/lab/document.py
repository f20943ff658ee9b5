"""An experiment's JSON: its rows, what they are compared by, and all that one needs to measure them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import acespec
from acespec.bench.lab.bandwidth import add_bounds
from acespec.bench.lab.break_even import break_evens
from acespec.bench.lab.experiment import Experiment, Scope, described
from acespec.bench.lab.lab_pair import PairIdentity
from acespec.bench.lab.measures import LEVEL, MEASURES, RESAMPLES
from acespec.bench.lab.results_store import RESULT_FORMAT
from acespec.bench.lab.runner import Outcome
from acespec.bench.lab.tables import Table
from acespec.models import Pair

Document = dict[str, Any]


@dataclass(frozen=True)
class Origin:
    """Where an experiment's figures come from."""

    command: str
    """What made them."""
    pair: Pair
    identity: PairIdentity


def document(experiment: Experiment, scope: Scope, outcomes: Sequence[Outcome], origin: Origin) -> Document:
    """All of it as plain data."""
    table = Table(experiment, outcomes)
    rows = table.rows()
    content: Document = {"experiment": experiment.name, "title": experiment.title, "rows": rows}
    if experiment.comparisons:
        content["differences"] = table.differences()
    if experiment.name == "fig5":
        add_bounds(rows)
    if experiment.name in ("table1", "sweep"):
        content["break_even"] = break_evens(rows, origin.pair, origin.identity.vocab_size)
    content["settings"] = _settings(experiment, scope, outcomes, origin)
    return content


def _settings(experiment: Experiment, scope: Scope, outcomes: Sequence[Outcome], origin: Origin) -> Document:
    datasets: dict[str, list[str]] = {}
    for case in scope.cases:
        datasets.setdefault(case.dataset, []).append(case.id)
    profiles = {cell.profiles.name: cell.profiles for cell in experiment.cells}
    strategies = [{"name": c.strategy.name, **described(c.strategy)} for c in experiment.cells]
    links = [described(cell.link) for cell in experiment.cells]
    return {
        "command": origin.command,
        "acespec": acespec.__version__,
        "code": sorted({outcome.stored.code for outcome in outcomes if outcome.stored is not None}),
        "result_format": RESULT_FORMAT,
        "clock": "virtual",
        "pair": origin.identity.model_dump(mode="json"),
        "datasets": {name: {"prompts": len(ids), "ids": ids} for name, ids in datasets.items()},
        "seeds": list(scope.seeds),
        "max_new_tokens": scope.max_new_tokens,
        "end_tokens": scope.end_tokens,
        "sampling": _distinct([described(cell.sampling) for cell in experiment.cells]),
        "profiles": {name: described(profile) for name, profile in profiles.items()},
        "links": _distinct(links),
        "strategies": _distinct(strategies),
        "measures": {measure.name: measure.meaning for measure in MEASURES},
        "bounds": {"level": LEVEL, "resamples": RESAMPLES, "resampled": "prompts, with all their seeds"},
    }


def _distinct(items: Sequence[Document]) -> list[Document]:
    return [item for index, item in enumerate(items) if item not in items[:index]]
