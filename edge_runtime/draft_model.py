"""A draft model ready to draft: its engine, how long its steps take, and where they run."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np

from acespec.compute import StepRunner, ThreadRunner
from acespec.edge_runtime.controller import ProfileAt
from acespec.edge_runtime.engine import DraftEngine
from acespec.models.manifest import Bundle

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DraftModel:
    """A loaded draft model. One generation at a time may use it."""

    engine: DraftEngine
    profile_at: ProfileAt
    runner: StepRunner


def load_draft(bundle: Bundle, threads: int) -> DraftModel:
    """Load the bundle's engine on ONNX Runtime, with ``threads`` threads.

    Step times come from the bundle's profile; where it has none a few steps are measured now. Raises
    ``AcespecError`` if the graph cannot be run here.
    """
    from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine  # needs onnxruntime: only when asked for

    engine = OnnxRuntimeEngine(bundle, threads)
    runner = ThreadRunner("draft")
    profile = bundle.manifest.latency
    if profile is not None and set(engine.buckets) <= set(profile.buckets):
        known = profile
        return DraftModel(
            engine, lambda context: {b: known.step_ms(b, context) for b in engine.buckets}, runner
        )
    logger.warning(
        "%s has no latency profile, measuring a few steps instead; make one with: acespec profile %s",
        bundle.folder,
        bundle.folder,
    )
    measured = measured_profile(engine)
    return DraftModel(engine, lambda _: measured, runner)


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
