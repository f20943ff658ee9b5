"""A stand-in for a latency profile: a few steps measured on the spot."""

from __future__ import annotations

import time

import numpy as np

from acespec.edge_runtime.engine import DraftEngine


def measured_profile(engine: DraftEngine, repeats: int = 3) -> dict[int, float]:
    """Milliseconds of a step by bucket: the quickest of ``repeats`` steps on an empty buffer, left empty."""
    return {bucket: min(_step_ms(engine, bucket) for _ in range(repeats)) for bucket in engine.buckets}


def _step_ms(engine: DraftEngine, bucket: int) -> float:
    tokens = np.zeros(bucket, dtype=np.int64)
    engine.truncate(0)
    started = time.perf_counter()
    engine.forward(tokens, np.arange(bucket, dtype=np.int64), np.tri(bucket, dtype=np.bool_))
    elapsed_ms = (time.perf_counter() - started) * 1000.0
    engine.truncate(0)
    return elapsed_ms
