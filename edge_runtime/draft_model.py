"""A draft model ready to draft: its engine, how long its steps take, and where they run."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from acespec.compute import StepRunner, ThreadRunner
from acespec.edge_runtime.controller import ProfileAt
from acespec.edge_runtime.engine import DraftEngine
from acespec.edge_runtime.profiler import measured_profile
from acespec.edge_runtime.runtimes import Provider, open_engine
from acespec.models.latency import DEFAULT_RUNTIME, machine_name
from acespec.models.manifest import Bundle
from acespec.options import Runtime

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DraftModel:
    """A loaded draft model. One generation at a time may use it."""

    engine: DraftEngine
    profile_at: ProfileAt
    runner: StepRunner


def load_draft(
    bundle: Bundle, threads: int, runtime: Runtime = "onnxruntime", provider: Provider | None = None
) -> DraftModel:
    """Load the bundle's engine; arguments as for `open_engine`.

    Raises ``AcespecError`` if the graph cannot be run here.
    """
    opened = open_engine(bundle, threads, runtime, provider)
    profile_at = step_times(bundle, opened.engine, opened.runs_on, threads)
    return DraftModel(opened.engine, profile_at, ThreadRunner("draft"))


def step_times(bundle: Bundle, engine: DraftEngine, runs_on: str, threads: int) -> ProfileAt:
    """How long ``engine``'s steps take: as the bundle's profile says, else as a few steps take now.

    A profile measured on another machine or runtime, or with another number of threads, is used with a
    warning: the session corrects it as it goes.
    """
    profile = bundle.manifest.latency
    runtime, _, provider = runs_on.partition("/")
    remedy = f"acespec profile {bundle.folder} --threads {threads}"
    if runs_on != DEFAULT_RUNTIME:
        remedy += f" --runtime {runtime}" + (f" --provider {provider}" if provider else "")
    if profile is None or not set(engine.buckets) <= set(profile.buckets):
        logger.warning(
            "%s has no latency profile, measuring a few steps instead; make one with: %s",
            bundle.folder,
            remedy,
        )
        measured = measured_profile(engine)
        return lambda _: measured
    measured_on = (profile.machine, profile.runs_on, profile.threads)
    if measured_on != (machine_name(), runs_on, threads):
        logger.warning(
            "the latencies in %s were measured on %s (%s) with %d threads, this is %s (%s) with %d; "
            "measure them here with: %s",
            bundle.folder,
            *measured_on,
            machine_name(),
            runs_on,
            threads,
            remedy,
        )
    return lambda context: {bucket: profile.step_ms(bucket, context) for bucket in engine.buckets}
