"""From outcomes to a table: one row for each cell and data set, as plain data that JSON can hold.

A row of which a run failed has no figures, and says why: what is left of it would be of other prompts than
what it is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acespec.bench.lab.experiment import Cell, Comparison, Experiment, Label
from acespec.bench.lab.measures import (
    HIT_RATE,
    MEASURES,
    THROUGHPUT,
    TTFT,
    Bounded,
    Runs,
    difference,
    quotient,
)
from acespec.bench.lab.runner import Outcome
from acespec.bench.lab.strategy import RunResult

Row = dict[str, Any]
COMPARED = (HIT_RATE, THROUGHPUT, TTFT)
"""Measures whose differences are bounded."""
MOST_REASONS = 3

_Place = tuple[str, frozenset[tuple[str, Label]]]
"""A data set and a cell's labels: where a row stands."""


class Table:
    """The outcomes of an experiment by row."""

    def __init__(self, experiment: Experiment, outcomes: Sequence[Outcome]) -> None:
        """``outcomes`` of any number of the experiment's points; rows without any are left out."""
        self._experiment = experiment
        self._outcomes: dict[_Place, list[Outcome]] = {}
        self._cells: dict[_Place, Cell] = {}
        datasets = dict.fromkeys(outcome.point.case.dataset for outcome in outcomes)
        by_place: dict[_Place, list[Outcome]] = {}
        for outcome in outcomes:
            place = _place(outcome.point.case.dataset, outcome.point.cell.labels)
            by_place.setdefault(place, []).append(outcome)
        for dataset in datasets:
            for cell in experiment.cells:
                place = _place(dataset, cell.labels)
                if place in by_place:
                    self._outcomes[place], self._cells[place] = by_place[place], cell

    def rows(self) -> list[Row]:
        """One for each data set and cell, in the order of the experiment."""
        return [self._row(place) for place in self._outcomes]

    def differences(self) -> list[Row]:
        """What the experiment compares, with bounds; of cells that both have all their runs."""
        return [
            {
                **row,
                "measure": measure.name,
                "first": comparison.first,
                "second": comparison.second,
                **_bounds("difference", difference(measure, first, second)),
            }
            for comparison in self._experiment.comparisons
            for row, first, second in self._pairs(comparison)
            for measure in COMPARED
        ]

    def _row(self, place: _Place) -> Row:
        outcomes, labels = self._outcomes[place], self._cells[place].labels
        runs = _runs(outcomes)
        row: Row = {
            "dataset": place[0],
            **labels,
            "prompts": len({outcome.point.case.id for outcome in outcomes}),
            "runs": len(outcomes),
            "failed": _failures(outcomes),
        }
        for measure in MEASURES:
            row[measure.name] = None if runs is None else measure.of(runs)
        if self._experiment.reference is not None:
            row |= _bounds("speedup", self._speedup(place, runs))
        return row

    def _speedup(self, place: _Place, runs: Runs | None) -> Bounded:
        assert self._experiment.reference is not None
        label, value = self._experiment.reference
        other = self._outcomes.get(_place(place[0], {**self._cells[place].labels, label: value}))
        reference = None if other is None else _runs(other)
        if runs is None or reference is None:
            return Bounded(None)
        return quotient(THROUGHPUT, runs, reference)

    def _pairs(self, comparison: Comparison) -> list[tuple[Row, Runs, Runs]]:
        found = []
        for place, cell in self._cells.items():
            if cell.labels.get(comparison.label) != comparison.first:
                continue
            other = self._outcomes.get(_place(place[0], {**cell.labels, comparison.label: comparison.second}))
            first, second = _runs(self._outcomes[place]), None if other is None else _runs(other)
            if first is not None and second is not None:
                shared = {name: value for name, value in cell.labels.items() if name != comparison.label}
                found.append(({"dataset": place[0], **shared}, first, second))
        return found


def _place(dataset: str, labels: Mapping[str, Label]) -> _Place:
    return dataset, frozenset(labels.items())


def _runs(outcomes: Sequence[Outcome]) -> Runs | None:
    """Results by prompt, or None if one is missing."""
    runs: dict[str, list[RunResult]] = {}
    for outcome in outcomes:
        if outcome.result is None:
            return None
        runs.setdefault(outcome.point.case.id, []).append(outcome.result)
    return runs


def _failures(outcomes: Sequence[Outcome]) -> Row | None:
    """How many runs failed, and the first few of their different reasons."""
    reasons = [outcome.failure for outcome in outcomes if outcome.result is None]
    if not reasons:
        return None
    return {"runs": len(reasons), "reasons": list(dict.fromkeys(reasons))[:MOST_REASONS]}


def _bounds(name: str, bounded: Bounded) -> Row:
    return {name: bounded.value, f"{name}_low": bounded.low, f"{name}_high": bounded.high}
