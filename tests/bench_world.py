"""Experiments over tables, in milliseconds: results made up, or run by a laboratory of table models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from acespec.bench.lab.cases import PromptCase
from acespec.bench.lab.experiment import Experiment, Point, Scope, points
from acespec.bench.lab.laboratory import Conditions
from acespec.bench.lab.measuring import Bench
from acespec.bench.lab.results_store import StoredRun
from acespec.bench.lab.runner import Outcome
from acespec.bench.lab.strategy import RunResult, Strategy
from acespec.edge_runtime import FinishReason
from acespec.errors import AcespecError
from acespec.models import DEMO_PAIR, pair
from lab_world import VOCAB, table_pair

PAIR = pair(DEMO_PAIR)
RESULT = RunResult(
    strategy="made_up",
    tokens=(1, 2, 3, 4),
    finish_reason=FinishReason.LENGTH,
    ttft_ms=200.0,
    total_ms=1000.0,
    payload_up=40,
    payload_down=20,
    wire_up=400,
    wire_down=200,
    messages_up=4,
    messages_down=4,
    target_forwards=2,
    tested=3,
    accepted=2,
    lookups=2,
    hits=1,
    ready_tokens=3,
    edge_idle_share=0.5,
)


def cases(*names: str, dataset: str = "letters") -> tuple[PromptCase, ...]:
    return tuple(PromptCase(dataset, name, (index + 1, 7, 9)) for index, name in enumerate(names))


def encode(text: str) -> Sequence[int]:
    return [ord(letter) % VOCAB for letter in text][:12]


def table_bench(say: object = None) -> Bench:
    return Bench(PAIR, table_pair(), encode)


class MadeUp:
    """Runs nothing: throughput follows from the strategy, a little from the prompt; some runs fail."""

    def __init__(self, *failing: tuple[str, str], total_ms: dict[str, float] | None = None) -> None:
        """``failing`` are (strategy, case id); ``total_ms`` by strategy, 1000 if it is not there."""
        self.failing = set(failing)
        self.total_ms = total_ms or {}
        self.runs: list[tuple[str, str, int]] = []

    def run(self, strategy: Strategy, case: PromptCase, conditions: Conditions) -> RunResult:
        self.runs.append((strategy.name, case.id, conditions.seed))
        if (strategy.name, case.id) in self.failing:
            raise AcespecError(f"{case.id} was\nnot to be")
        total_ms = self.total_ms.get(strategy.name, 1000.0) + 10.0 * case.prompt[0]
        return replace(RESULT, strategy=strategy.name, total_ms=total_ms)


def outcomes(experiment: Experiment, scope: Scope, made_up: MadeUp | None = None) -> list[Outcome]:
    """Every point's, nothing stored."""
    source = made_up or MadeUp()
    return [_outcome(source, point) for point in points(experiment, scope)]


def _outcome(source: MadeUp, point: Point) -> Outcome:
    try:
        result = source.run(point.cell.strategy, point.case, point.conditions)
    except AcespecError as error:
        return Outcome(point, None, str(error))
    return Outcome(point, StoredRun(code="c", result=result))
