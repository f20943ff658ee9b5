"""Measuring a draft engine: the median time of a step at each bucket and several lengths of context."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from acespec.edge_runtime.engine import DraftEngine
from acespec.models.latency import LatencyPoint

CONTEXTS = (64, 256, 512, 1024, 2048, 4096, 8192)
WARM_UP_STEPS = 2


def profile_contexts(max_context: int, widest: int) -> tuple[int, ...]:
    """Context lengths to measure: `CONTEXTS` while a widest step still fits, and the last where one does."""
    last = max(max_context - widest, 0)
    return (*(context for context in CONTEXTS if context < last), last)


def measure_engine(
    engine: DraftEngine, repeats: int = 7, clock: Callable[[], float] = time.perf_counter
) -> Iterator[LatencyPoint]:
    """Measure ``engine`` and yield each point as it is known. The engine's rows are overwritten.

    ``clock`` returns seconds.
    """
    engine.truncate(0)
    widest = engine.buckets[-1]
    for context in profile_contexts(engine.max_context, widest):
        while engine.num_rows < context:
            _step(engine, min(widest, context - engine.num_rows))
        for bucket in engine.buckets:
            elapsed_ms = [_timed_step(engine, bucket, clock) for _ in range(WARM_UP_STEPS + repeats)]
            median_ms = statistics.median(elapsed_ms[WARM_UP_STEPS:])
            yield LatencyPoint(bucket=bucket, context=context, median_ms=median_ms)
    engine.truncate(0)


def measure_prefill(
    engine: DraftEngine, repeats: int = 7, clock: Callable[[], float] = time.perf_counter
) -> LatencyPoint:
    """Measure the widest step that feeds a prompt, on an empty buffer, left empty."""
    engine.truncate(0)
    width = min(engine.prefill_width, engine.max_rows)
    elapsed_ms = [_timed_step(engine, width, clock, last_only=True) for _ in range(WARM_UP_STEPS + repeats)]
    median_ms = statistics.median(elapsed_ms[WARM_UP_STEPS:])
    return LatencyPoint(bucket=width, context=0, median_ms=median_ms)


def measured_profile(engine: DraftEngine, repeats: int = 3) -> dict[int, float]:
    """Milliseconds of a step by bucket: the quickest of ``repeats`` steps on an empty buffer, left empty."""
    engine.truncate(0)
    return {
        bucket: min(_timed_step(engine, bucket, time.perf_counter) for _ in range(repeats))
        for bucket in engine.buckets
    }


def _timed_step(
    engine: DraftEngine, count: int, clock: Callable[[], float], last_only: bool = False
) -> float:
    """Milliseconds of one step behind the rows in use, which it leaves as they were."""
    num_rows = engine.num_rows
    started = clock()
    _step(engine, count, last_only)
    elapsed_ms = (clock() - started) * 1000.0
    engine.truncate(num_rows)
    return elapsed_ms


def _step(engine: DraftEngine, count: int, last_only: bool = False) -> None:
    """Feed ``count`` tokens behind the rows in use; which ones does not matter to the time.

    Where the rows are fewer than a bucket is wide, the largest step that bucket will ever take.
    """
    past = engine.num_rows
    count = min(count, engine.max_rows - past)
    mask = np.tri(count, past + count, past, dtype=np.bool_)
    positions = np.minimum(np.arange(past, past + count), engine.max_context - 1)
    engine.forward(np.zeros(count, np.int64), positions, mask, last_only)
