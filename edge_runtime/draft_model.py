"""A draft model ready to draft: its engine, how long its steps take, and where they run."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from acespec.compute import StepRunner, ThreadRunner
from acespec.edge_runtime.controller import ProfileAt
from acespec.edge_runtime.engine import DraftEngine
from acespec.edge_runtime.profiler import measured_profile
from acespec.models.latency import machine_name
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

    Raises ``AcespecError`` if the graph cannot be run here.
    """
    from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine  # needs onnxruntime: only when asked for

    engine = OnnxRuntimeEngine(bundle, threads)
    return DraftModel(engine, step_times(bundle, engine, threads), ThreadRunner("draft"))


def step_times(bundle: Bundle, engine: DraftEngine, threads: int) -> ProfileAt:
    """How long ``engine``'s steps take: as the bundle's profile says, else as a few steps take now.

    A profile measured on another machine or with another number of threads is used, with a warning: the
    session corrects it as it goes.
    """
    profile = bundle.manifest.latency
    remedy = f"acespec profile {bundle.folder} --threads {threads}"
    if profile is None or not set(engine.buckets) <= set(profile.buckets):
        logger.warning(
            "%s has no latency profile, measuring a few steps instead; make one with: %s",
            bundle.folder,
            remedy,
        )
        measured = measured_profile(engine)
        return lambda _: measured
    if (profile.machine, profile.threads) != (machine_name(), threads):
        logger.warning(
            "the latencies in %s were measured on %s with %d threads, this is %s with %d; "
            "measure them here with: %s",
            bundle.folder,
            profile.machine,
            profile.threads,
            machine_name(),
            threads,
            remedy,
        )
    return lambda context: {bucket: profile.step_ms(bucket, context) for bucket in engine.buckets}
