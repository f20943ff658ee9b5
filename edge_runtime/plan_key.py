"""What a TensorRT plan is of: its graph, the shapes it runs at, and the TensorRT and device it belongs to.

A plan is good for nothing else. Its key stands beside it, and whoever wants a plan compares keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from acespec.edge_runtime.trt_module import TensorRtError, TensorRtRuntime
from acespec.models.manifest import (
    DEFAULT_TREE_ROWS,
    Bundle,
    FileName,
    GraphVariant,
    Sealed,
    Sha256,
    TensorSpec,
    Width,
)

NATIVE_SINCE: dict[TensorRtRuntime, tuple[int, int]] = {"tensorrt": (10, 15), "tensorrt-rtx": (1, 7)}
"""The first version that knows the operators of the ``native`` graph."""

TensorRtGraph = Literal["portable", "native"]


class StepShape(Sealed):
    """The shape of a step: how many tokens it takes, and of how many it gives logits."""

    width: Width
    logit_rows: Width


class PlanKey(Sealed):
    """Everything a plan depends on."""

    runtime: TensorRtRuntime
    version: str
    """TensorRT's, in full."""
    compute_capability: str
    """Of the device, such as ``8.7``."""
    graph: TensorRtGraph
    graph_file: FileName
    graph_sha256: Sha256
    weights_sha256: dict[FileName, Sha256]
    """Files with weights, which the graph file only points to."""
    rows: Width
    """Rows of the key/value buffer."""
    steps: tuple[StepShape, ...]
    """One optimisation profile each, in this order."""

    @property
    def stem(self) -> str:
        """Name of the plan's files without what follows the last dot."""
        graph = self.graph_file.removesuffix(".onnx")
        return f"{graph}.{self.runtime}.{architecture(self.compute_capability)}"


def architecture(compute_capability: str) -> str:
    """``sm87`` for ``8.7``. Raises `TensorRtError` unless it is two numbers with a dot between."""
    if not re.fullmatch(r"[1-9][0-9]{0,2}\.[0-9]{1,2}", compute_capability, re.ASCII):
        raise TensorRtError(f"a compute capability is X.Y, such as 8.7; not {compute_capability!r}")
    return f"sm{compute_capability.replace('.', '')}"


def tensorrt_graph(bundle: Bundle, runtime: TensorRtRuntime, version: tuple[int, int]) -> GraphVariant:
    """The bundle's graph that this TensorRT runs: ``native`` where it knows its operators, else ``portable``.

    Raises `TensorRtError` when the bundle has neither.
    """
    variants = {variant.name: variant for variant in bundle.manifest.graphs}
    if "native" in variants and version >= NATIVE_SINCE[runtime]:
        return variants["native"]
    if "portable" in variants:
        return variants["portable"]
    since = ".".join(map(str, NATIVE_SINCE[runtime]))
    known = ", ".join(variants)
    raise TensorRtError(
        f"bundle {bundle.folder} has no graph for {runtime} {version[0]}.{version[1]} (it has: {known}; "
        f"native needs {since}); export it again with: acespec export MODEL --runtime {runtime} -o BUNDLE"
    )


def plan_keys(
    bundle: Bundle,
    variant: GraphVariant,
    runtime: TensorRtRuntime,
    version: str,
    compute_capability: str,
    rows: int | None = None,
) -> tuple[PlanKey, ...]:
    """The plans that ``variant`` needs: one a graph file, with a profile for each step it serves.

    ``rows`` is used where the graph leaves the number of rows open; by default the context and
    `DEFAULT_TREE_ROWS`. The plan of the prefill graph is last.
    """
    manifest = bundle.manifest
    steps_of: dict[str, list[StepShape]] = {}
    for step in variant.steps:
        shape = StepShape(width=step.width, logit_rows=step.logit_rows)
        steps_of.setdefault(step.file, []).append(shape)
    weights = {name: digest for name, digest in manifest.file_sha256.items() if name.endswith(".data")}
    assert variant.name != "ort"
    return tuple(
        PlanKey(
            runtime=runtime,
            version=version,
            compute_capability=compute_capability,
            graph=variant.name,
            graph_file=file,
            graph_sha256=manifest.file_sha256[file],
            weights_sha256=weights,
            rows=variant.rows or rows or manifest.max_context + DEFAULT_TREE_ROWS,
            steps=tuple(steps),
        )
        for file, steps in steps_of.items()
    )


def dimensions(key: PlanKey, step: StepShape) -> dict[str, int]:
    """The graph's dimensions at ``step``, by the letters `GraphVariant` uses.

    The portable graph's past is always the whole buffer, of which the mask leaves only what is in use: its
    shapes never change, so that a CUDA graph can be captured.
    """
    total = key.rows + step.width if key.graph == "portable" else key.rows
    return {"N": step.width, "M": step.logit_rows, "S": key.rows, "R": key.rows, "T": total}


def shape_at(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Shape of ``spec`` with its letters replaced. Raises `TensorRtError` for a letter that is not known."""
    unknown = [size for size in spec.shape if isinstance(size, str) and size not in sizes]
    if unknown:
        raise TensorRtError(f"{spec.name} has a dimension {unknown[0]!r} that nothing tells the size of")
    return tuple(sizes[size] if isinstance(size, str) else size for size in spec.shape)
