"""From what was typed after ``acespec export`` to `ExportOptions`: a pure function. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from acespec.errors import AcespecError
from acespec.export.options import (
    DEFAULT_CONTEXT,
    DEFAULT_PREFILL,
    GRAPH_OF_RUNTIME,
    ExportOptions,
    Layout,
    default_quantization,
    parse_buckets,
    parse_logits,
)
from acespec.export.tensorrt_weights import refuse_for_tensorrt, tensorrt_quantization
from acespec.models.manifest import DEFAULT_TREE_ROWS, GraphName, Precision, Quantization
from acespec.options import Runtime

BLOCK_NAMES = {"32": 32, "128": 128, "column": None}
HEAD_BITS = {"float": None, "int8": 8, "int4": 4}
BITS = {"float": None, "int8": 8}
"""Of embeddings and activations."""
NARROW_FLOATS = ("fp16", "bf16")


@dataclass(frozen=True)
class ExportArguments:
    """What was typed; None: left to the runtime and precision."""

    buckets: str
    runtime: Runtime = "onnxruntime"
    graph: GraphName | Literal["auto"] = "auto"
    precision: Precision | None = None
    block: str | None = None
    """A key of `BLOCK_NAMES`."""
    symmetric: bool | None = None
    head: str | None = None
    """A key of `HEAD_BITS`."""
    embeddings: str | None = None
    activations: str | None = None
    """Keys of `BITS`."""
    context: int = DEFAULT_CONTEXT
    prefill_chunk: int = DEFAULT_PREFILL
    tree_rows: int = DEFAULT_TREE_ROWS
    layout: Layout = "profiles"
    logits: str = "full"


def export_options(arguments: ExportArguments) -> ExportOptions:
    """What to export. Raises ``AcespecError`` naming what cannot be had together, and the remedy."""
    on_tensorrt = arguments.runtime != "onnxruntime"
    precision: Precision = arguments.precision or ("fp16" if on_tensorrt else "int8")
    graph = _graph(arguments, precision)
    if precision == "bf16" and not on_tensorrt:
        raise AcespecError(
            "ONNX Runtime's CPU multiplies no bf16 matrices; choose --precision fp16 or --runtime tensorrt"
        )
    return ExportOptions(
        buckets=parse_buckets(arguments.buckets),
        context=arguments.context,
        prefill_chunk=arguments.prefill_chunk,
        tree_rows=arguments.tree_rows,
        graph=graph,
        layout=arguments.layout,
        precision=precision,
        quantization=_quantization(arguments, precision, graph),
        floats="fp16" if on_tensorrt and precision in ("int8", "int4") else None,
        top_k=parse_logits(arguments.logits),
    )


def _graph(arguments: ExportArguments, precision: Precision) -> GraphName:
    """The graph asked for, or the one the runtime runs best at ``precision``."""
    runtime, graph = arguments.runtime, arguments.graph
    if graph == "auto":
        if runtime == "onnxruntime" and (precision in NARROW_FLOATS or arguments.layout == "split"):
            return "portable"
        return GRAPH_OF_RUNTIME[runtime]
    if runtime == "onnxruntime" and graph == "native":
        raise AcespecError("the native graph is TensorRT's; choose --runtime tensorrt, or --graph ort")
    if runtime != "onnxruntime" and graph == "ort":
        raise AcespecError(f"the ort graph is ONNX Runtime's; choose --graph portable for {runtime}")
    return graph


def _quantization(arguments: ExportArguments, precision: Precision, graph: GraphName) -> Quantization | None:
    """How ``precision`` is quantised, with what was asked for in place of the defaults."""
    changes = _changes(arguments)
    if precision not in ("int8", "int4"):
        if changes:
            given = ", ".join(f"--{name}" for name in changes)
            raise AcespecError(
                f"{precision} weights are not quantised, so {given} says nothing; "
                "choose --precision int8 or int4"
            )
        return None
    on_tensorrt = arguments.runtime != "onnxruntime"
    if on_tensorrt:
        assert precision in ("int8", "int4")
        default = tensorrt_quantization(precision)
    else:
        default = default_quantization(precision, graph)
    fields = dict(changes.values())
    if fields.get("block") is not None or fields.get("symmetric") is False:
        # Products of integers want one scale an output: other weights bring float activations with them.
        fields.setdefault("activation_bits", None)
    chosen = Quantization.model_validate(default.model_dump() | fields)
    if on_tensorrt:
        refuse_for_tensorrt(chosen)
    return chosen


def _changes(arguments: ExportArguments) -> dict[str, tuple[str, object]]:
    """What was asked of the quantisation: option -> field of `Quantization` and its value."""

    def chosen(names: Mapping[str, int | None], typed: str, option: str) -> int | None:
        if typed not in names:
            raise AcespecError(f"--{option} is one of {', '.join(names)}; not {typed!r}")
        return names[typed]

    changes: dict[str, tuple[str, object]] = {}
    if arguments.block is not None:
        changes["block"] = ("block", chosen(BLOCK_NAMES, arguments.block, "block"))
    if arguments.symmetric is not None:
        changes["symmetric" if arguments.symmetric else "asymmetric"] = ("symmetric", arguments.symmetric)
    if arguments.head is not None:
        changes["head"] = ("head_bits", chosen(HEAD_BITS, arguments.head, "head"))
    if arguments.embeddings is not None:
        changes["embeddings"] = ("embedding_bits", chosen(BITS, arguments.embeddings, "embeddings"))
    if arguments.activations is not None:
        changes["activations"] = ("activation_bits", chosen(BITS, arguments.activations, "activations"))
    return changes
