"""Which TensorRT plans stand beside a bundle, and whether each is of the bundle's present graphs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from acespec.edge_runtime.plan_files import PlanRecord
from acespec.models.manifest import BundleManifest


@dataclass(frozen=True)
class BuiltPlan:
    """A plan, as its record describes it. Nothing of the record is known where it cannot be read."""

    file: str
    size_bytes: int
    runtime: str
    """With its version."""
    compute_capability: str
    graph_file: str
    widths: tuple[int, ...]
    rows: int | None
    fault: str
    """Why an engine will not use it, whatever the device; empty when it may."""


def built_plans(folder: Path, manifest: BundleManifest) -> tuple[BuiltPlan, ...]:
    """Every plan in ``folder``, by name; none when there is no such folder. The plans are not read."""
    return tuple(_built_plan(file, manifest) for file in sorted(folder.glob("*.plan")))


def _built_plan(file: Path, manifest: BundleManifest) -> BuiltPlan:
    size = file.stat().st_size
    try:
        key = PlanRecord.model_validate_json(file.with_suffix(".json").read_bytes()).key
    except (OSError, ValidationError):
        fault = "its record is missing or cannot be read"
        return BuiltPlan(file.name, size, "?", "?", "?", (), None, fault)
    hashes = {key.graph_file: key.graph_sha256, **key.weights_sha256}
    changed = [name for name, digest in hashes.items() if manifest.file_sha256.get(name) != digest]
    return BuiltPlan(
        file=file.name,
        size_bytes=size,
        runtime=f"{key.runtime} {key.version}",
        compute_capability=key.compute_capability,
        graph_file=key.graph_file,
        widths=tuple(step.width for step in key.steps),
        rows=key.rows,
        fault=f"it was built of another {', '.join(changed)}" if changed else "",
    )
