"""What an experiment is: cells to measure and what to compare them by. Nothing here runs anything.

A cell is one way to generate under one set of conditions, a row of a table for each data set. A point is one
run of a cell: on one prompt, with one seed. All cells meet the same prompts and seeds, so that what is
compared is paired.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from acespec.bench.lab.cases import PromptCase
from acespec.bench.lab.laboratory import Conditions
from acespec.bench.lab.profiles import ProfilePair
from acespec.bench.lab.simulated_link import LinkConditions
from acespec.bench.lab.strategy import Strategy
from acespec.speculation import SamplingParams

Label = str | int | float
"""What tells a row from others."""


@dataclass(frozen=True)
class Cell:
    """One way to generate under one set of conditions."""

    labels: Mapping[str, Label]
    """Columns that tell the cell's rows from others, in the order shown."""
    strategy: Strategy
    profiles: ProfilePair
    link: LinkConditions
    sampling: SamplingParams


@dataclass(frozen=True)
class Scope:
    """What every cell is run on."""

    cases: tuple[PromptCase, ...]
    seeds: tuple[int, ...] = (0,)
    max_new_tokens: int = 128
    end_tokens: bool = False
    """Whether a text may end before it has all its tokens."""


@dataclass(frozen=True)
class Comparison:
    """Two cells that differ in one label."""

    label: str
    first: Label
    second: Label


@dataclass(frozen=True)
class Experiment:
    """A table or figure to be measured."""

    name: str
    """Of the command and its files."""
    title: str
    cells: tuple[Cell, ...]
    reference: tuple[str, Label] | None = None
    """``speedup`` is relative to the row that has this label instead of its own; None: nothing is."""
    comparisons: tuple[Comparison, ...] = ()
    """Differences to bound, ``first`` minus ``second``."""


@dataclass(frozen=True)
class Point:
    """One run to make."""

    cell: Cell
    case: PromptCase
    conditions: Conditions

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the result, but for the models."""
        return {
            "strategy": {"name": self.cell.strategy.name, **described(self.cell.strategy)},
            "dataset": self.case.dataset,
            "case": self.case.id,
            "prompt": list(self.case.prompt),
            "conditions": described(self.conditions),
        }

    @cached_property
    def key(self) -> str:
        """A name for ``settings``."""
        text = json.dumps(self.settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def points(experiment: Experiment, scope: Scope) -> list[Point]:
    """Every run of the experiment; those of one prompt follow each other, for they share the models' rows."""
    return [
        Point(
            cell,
            case,
            Conditions(
                edge=cell.profiles.edge,
                cloud=cell.profiles.cloud,
                link=cell.link,
                sampling=cell.sampling,
                seed=seed,
                max_new_tokens=scope.max_new_tokens,
                end_tokens=scope.end_tokens,
            ),
        )
        for case in scope.cases
        for seed in scope.seeds
        for cell in experiment.cells
    ]


def described(settings: Any) -> Any:
    """A dataclass of settings, and what it holds, as JSON has it."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        names = [field.name for field in dataclasses.fields(settings)]
        return {name: described(getattr(settings, name)) for name in names}
    if isinstance(settings, Enum):
        return settings.value
    if isinstance(settings, Mapping):
        return {str(key): described(value) for key, value in settings.items()}
    if isinstance(settings, Sequence) and not isinstance(settings, str):
        return [described(item) for item in settings]
    assert settings is None or isinstance(settings, (str, int, float)), f"{settings!r} is no setting"
    return settings
