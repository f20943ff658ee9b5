"""Executes the points of an experiment: what is stored is not run again, what fails is kept as failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from acespec.bench.lab.cases import PromptCase
from acespec.bench.lab.experiment import Point
from acespec.bench.lab.laboratory import Conditions
from acespec.bench.lab.results_store import ResultsStore, StoredRun
from acespec.bench.lab.strategy import RunResult, Strategy
from acespec.errors import AcespecError

logger = logging.getLogger(__name__)


class Runs(Protocol):
    """What runs a point: a ``Laboratory``."""

    def run(self, strategy: Strategy, case: PromptCase, conditions: Conditions) -> RunResult:
        """Run ``strategy`` on ``case``."""


@dataclass(frozen=True)
class Outcome:
    """What became of a point: a result, or why there is none."""

    point: Point
    stored: StoredRun | None
    failure: str | None = None

    @property
    def result(self) -> RunResult | None:
        return None if self.stored is None else self.stored.result


def execute(
    laboratory: Runs,
    points: Sequence[Point],
    store: ResultsStore,
    on_outcome: Callable[[Outcome], object] = lambda _: None,
    *,
    fresh: bool = False,
) -> list[Outcome]:
    """Run every point that is not stored, or with ``fresh`` every one, and tell ``on_outcome`` of each.

    A failure is not stored: the next call tries again. Raises ``AcespecError`` if a result cannot be kept.
    """
    outcomes: list[Outcome] = []
    made: dict[str, Outcome] = {}
    """By key: cells may share runs, as cloud-only decoding does for any chain length."""
    for point in points:
        known = made.get(point.key)
        outcome = _outcome(laboratory, point, store, fresh) if known is None else known
        made[point.key] = outcome
        outcomes.append(Outcome(point, outcome.stored, outcome.failure))
        on_outcome(outcomes[-1])
    return outcomes


def _outcome(laboratory: Runs, point: Point, store: ResultsStore, fresh: bool) -> Outcome:
    stored = None if fresh else store.get(point)
    if stored is not None:
        return Outcome(point, stored)
    try:
        result = laboratory.run(point.cell.strategy, point.case, point.conditions)
    except (AcespecError, ValueError) as error:
        return Outcome(point, None, " ".join(str(error).split()))
    except Exception as error:  # a bug costs its own cell, not the hours behind it
        logger.exception("%s failed on %s", point.cell.strategy.name, point.case.id)
        return Outcome(point, None, f"{type(error).__name__}: {' '.join(str(error).split())}")
    return Outcome(point, store.put(point, result))
