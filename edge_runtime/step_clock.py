"""Times every engine step: for the statistics, and to keep the controller's idea of a step's cost current."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from acespec.edge_runtime.estimators import StepTimes


def now_ms() -> float:
    """The running loop's time, so that simulated time works alike."""
    return asyncio.get_running_loop().time() * 1000.0


class StepClock:
    """Sums model time by kind of step (``prefill``, ``draft``, ``growth``) and feeds ``StepTimes``."""

    def __init__(self, step_times: StepTimes) -> None:
        self.step_times = step_times
        self.model_ms: dict[str, float] = defaultdict(float)
        self.num_steps: dict[str, int] = defaultdict(int)

    def expected_ms(self, bucket: int) -> float:
        return self.step_times.step_ms(bucket)

    @contextmanager
    def step(self, kind: str, bucket: int) -> Iterator[None]:
        """Time one step on ``bucket``."""
        started = now_ms()
        yield
        elapsed = now_ms() - started
        self.model_ms[kind] += elapsed
        self.num_steps[kind] += 1
        self.step_times.observe(bucket, elapsed)
