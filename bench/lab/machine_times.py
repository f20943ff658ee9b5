"""How long the models' steps take on this machine: the profiles of runs in wall-clock time.

Measured by itself, one engine after the other: what the two cost each other while they run side by side is
not in it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from acespec.bench.lab.lab_pair import PairIdentity
from acespec.bench.lab.profiles import DeviceProfile, ProfilePair, StepLatency, TargetProfile
from acespec.bench.processes import acespec_command
from acespec.bench.step_times import engine_steps, measure_steps
from acespec.edge_runtime.engine import DraftEngine
from acespec.edge_runtime.profiler import measure_prefill
from acespec.errors import AcespecError
from acespec.models.latency import machine_name
from acespec.private_files import PUBLIC, write_whole

FILE = "machine.json"
TARGET_TIMES = "acespec.bench.lab.target_times"
"""What times the target, with torch, in a process of its own."""
CONTEXT = 128
"""Tokens before a step: about what a short prompt and half of an answer come to."""
THREADS = 1
"""Of each model: one core for the device, one for the verifier."""
REPETITIONS = 24

Points = tuple[tuple[int, float], ...]
"""(tokens, median ms), ascending in tokens."""


class MachineTimes(BaseModel):
    """Medians of one machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    machine: str
    threads: int = THREADS
    context: int = CONTEXT
    draft_fingerprint: str
    target_fingerprint: str
    draft: Points
    target: Points
    num_layers: int
    hidden_size: int

    def profiles(self, pace_forward_ms: float | None) -> ProfilePair:
        """As the laboratory takes them; the verifier paced to so many milliseconds a forward at least."""
        source = f"measured on {self.machine}, {self.threads} thread(s), context {self.context}"
        edge = DeviceProfile("measured", StepLatency(self.draft), source)
        name = "measured"
        if pace_forward_ms is not None:
            name = f"paced-{pace_forward_ms:g}ms"
            source += f", paced to {pace_forward_ms:g} ms a forward at least"
        points = tuple((width, max(each, pace_forward_ms or 0.0)) for width, each in self.target)
        cloud = TargetProfile(name, StepLatency(points), self.num_layers, self.hidden_size, source)
        return ProfilePair(edge, cloud)


def measure_machine(draft: DraftEngine, identity: PairIdentity, target: str) -> MachineTimes:
    """Time the steps of ``draft`` here, and the forwards of the model called ``target`` in another process.

    Raises ``AcespecError`` if that process fails.
    """
    measured = measure_target(target)
    return MachineTimes(
        machine=machine_name(),
        draft_fingerprint=identity.draft_fingerprint,
        target_fingerprint=identity.target_fingerprint,
        draft=draft_points(draft),
        target=tuple((width, each) for width, each in measured["points"]),
        num_layers=measured["num_layers"],
        hidden_size=measured["hidden_size"],
    )


def draft_points(engine: DraftEngine) -> Points:
    """Of every bucket, and of the widest step that feeds a prompt. The engine's rows are overwritten."""
    times = measure_steps({"draft": engine_steps(engine, CONTEXT)}, engine.buckets, REPETITIONS)
    points = {bucket: times.median("draft", bucket) for bucket in engine.buckets}
    prefill = measure_prefill(engine)
    points.setdefault(prefill.bucket, prefill.median_ms)
    return tuple(sorted(points.items()))


def measure_target(target: str) -> dict[str, Any]:
    """What ``target_times`` says of the model called ``target``."""
    arguments = [target, "--threads", str(THREADS), "--context", str(CONTEXT)]
    command = acespec_command(*arguments, module=TARGET_TIMES)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise AcespecError(f"the forwards of {target} could not be timed; what was said stands above")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def kept_times(folder: Path, identity: PairIdentity) -> MachineTimes | None:
    """What was measured for runs that lie in ``folder``; None if that was elsewhere, or of other models."""
    try:
        times = MachineTimes.model_validate_json((folder / FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    measured = (times.machine, times.draft_fingerprint, times.target_fingerprint)
    here = (machine_name(), identity.draft_fingerprint, identity.target_fingerprint)
    return times if measured == here else None


def keep_times(folder: Path, times: MachineTimes) -> None:
    """So that runs in ``folder`` that are made later are of the same settings."""
    write_whole(folder / FILE, times.model_dump_json(indent=1).encode(), PUBLIC, replace=True)
