"""Step times of several engines, taken in turns so that what else the machine does hits all alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from acespec.edge_runtime.engine import DraftEngine

STEPS_A_TURN = 8
"""Timed steps of one engine before it is the next one's turn, behind one that is not timed: the caches hold
the weights of the engine before."""
REST_S = 0.05
"""Between turns: an engine's threads go on spinning for a while, on the cores of the next."""
Step = Callable[[int], object]
"""Runs one step of so many tokens, always behind the same context."""


@dataclass
class StepTimes:
    """Milliseconds of each repetition, by engine and width."""

    by_width: dict[str, dict[int, list[float]]] = field(default_factory=dict)

    def median(self, name: str, width: int) -> float:
        return statistics.median(self.by_width[name][width])

    def least(self, name: str, width: int) -> float:
        return min(self.by_width[name][width])

    def ratio(self, name: str, other: str, width: int) -> float:
        """Time of ``name`` over that of ``other``: the median of steps measured in the same turn."""
        pairs = zip(self.by_width[name][width], self.by_width[other][width], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def measure_steps(steps: Mapping[str, Step], widths: Sequence[int], repetitions: int) -> StepTimes:
    """Time every engine at every width, ``repetitions`` times or a few more."""
    times = StepTimes({name: {width: [] for width in widths} for name in steps})
    for width in widths:
        for _ in range(math.ceil(repetitions / STEPS_A_TURN) + 1):
            for name, step in steps.items():
                time.sleep(REST_S)
                step(width)
                times.by_width[name][width] += [_timed(step, width) for _ in range(STEPS_A_TURN)]
        for name in steps:
            del times.by_width[name][width][:STEPS_A_TURN]  # the first turn warms up
    return times


def _timed(step: Step, width: int) -> float:
    start = time.perf_counter()
    step(width)
    return (time.perf_counter() - start) * 1e3


def engine_steps(engine: DraftEngine, context: int) -> Step:
    """Steps of ``engine`` behind ``context`` rows, which are fed first. What the engine does counts too."""
    engine.truncate(0)
    generator = np.random.default_rng(0)
    while engine.num_rows < context:
        width = min(engine.prefill_width, context - engine.num_rows)
        tokens = generator.integers(5, 1000, width)
        mask = np.tri(width, engine.num_rows + width, engine.num_rows, np.bool_)
        engine.forward(tokens, np.arange(engine.num_rows, engine.num_rows + width), mask, last_only=True)

    def step(width: int) -> None:
        engine.truncate(context)
        tokens, positions = np.arange(5, 5 + width), np.arange(context, context + width)
        engine.forward(tokens, positions, np.tri(width, context + width, context, np.bool_))

    return step
