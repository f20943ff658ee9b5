"""What an export can be asked for. Free of torch, for the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from acespec.errors import AcespecError
from acespec.models.manifest import (
    DEFAULT_TREE_ROWS,
    MOST_POSITIONS,
    WIDEST_BUCKET,
    GraphName,
    Precision,
    Quantization,
)
from acespec.options import Runtime

Layout = Literal["profiles", "split"]
FloatPrecision = Literal["fp32", "fp16", "bf16"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
GRAPHS: tuple[GraphName, ...] = get_args(GraphName)
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
GRAPH_OF_RUNTIME: dict[Runtime, GraphName] = {
    "onnxruntime": "ort",
    "tensorrt": "portable",
    "tensorrt-rtx": "portable",
}
"""The graph a runtime runs best; ``native`` is for TensorRT 10.15 and later, on demand."""
DEFAULT_BUCKETS = (1, 8, 16, 32, 64)
DEFAULT_CONTEXT = 2048
DEFAULT_PREFILL = 256


@dataclass(frozen=True)
class ExportOptions:
    """What a bundle shall be like. Raises ``AcespecError`` naming the option that is out of range."""

    buckets: tuple[int, ...] = DEFAULT_BUCKETS
    """Step widths, ascending, each once."""
    context: int = DEFAULT_CONTEXT
    """Positions the draft may use at most."""
    prefill_chunk: int = DEFAULT_PREFILL
    """Tokens of a prompt fed at once; raised to the widest bucket."""
    tree_rows: int = DEFAULT_TREE_ROWS
    """Rows beyond the context, for the tree, where a graph's shapes are fixed."""
    graph: GraphName = "portable"
    layout: Layout = "profiles"
    """One graph for all buckets, or one with fixed shapes for each."""
    precision: Precision = "fp32"
    quantization: Quantization | None = None
    """How weights become integers; made by `default_quantization` for ``int8`` and ``int4``."""
    floats: FloatPrecision | None = None
    """What is computed in: as ``precision`` says, and where that is integers fp32, or fp16 for ``native``."""
    top_k: int | None = None
    """Logits of a row that leave the graph, with the row's log-sum-exp; None: all."""

    def __post_init__(self) -> None:
        self._check_steps()
        self._check_form()
        quantizes = self.precision in ("int8", "int4")
        if quantizes and self.quantization is None:
            object.__setattr__(self, "quantization", default_quantization(self.precision, self.graph))
        if not quantizes and self.quantization is not None:
            raise AcespecError(f"{self.precision} weights are not quantised; choose --precision int8 or int4")
        if self.quantization is not None:
            self._check_quantization(self.quantization)
        if self.floats is None:
            integers: FloatPrecision = "fp16" if self.graph == "native" else "fp32"
            floats = integers if self.precision in ("int8", "int4") else self.precision
            object.__setattr__(self, "floats", floats)
        if not quantizes and self.floats != self.precision:
            raise AcespecError(f"{self.precision} weights are multiplied in {self.precision} alone")
        self._check_floats()

    def _check_steps(self) -> None:
        """Put widths in order, and refuse numbers that no step can have."""
        if not self.buckets or min(self.buckets) < 1 or max(self.buckets) > WIDEST_BUCKET:
            listed = ", ".join(map(str, self.buckets)) or "none"
            raise AcespecError(f"bucket widths must be between 1 and {WIDEST_BUCKET}, not {listed}")
        object.__setattr__(self, "buckets", tuple(sorted(set(self.buckets))))
        for name, count in (("context", self.context), ("tree's rows", self.tree_rows)):
            if not 1 <= count < MOST_POSITIONS:
                raise AcespecError(f"the {name} must be between 1 and {MOST_POSITIONS - 1}, not {count}")
        if not 1 <= self.prefill_chunk <= WIDEST_BUCKET:
            raise AcespecError(
                f"a prefill chunk must be between 1 and {WIDEST_BUCKET} tokens, not {self.prefill_chunk}"
            )
        object.__setattr__(self, "prefill_chunk", max(self.prefill_chunk, self.buckets[-1]))
        if self.top_k is not None and self.top_k < 1:
            raise AcespecError(f"top-k logits must be at least 1, not {self.top_k}")

    def _check_form(self) -> None:
        parse_precision(self.precision)
        if self.graph not in GRAPHS:
            raise AcespecError(f"there is no graph {self.graph!r}; choose one of {', '.join(GRAPHS)}")
        if self.layout not in LAYOUTS:
            raise AcespecError(f"there is no layout {self.layout!r}; choose one of {', '.join(LAYOUTS)}")
        if self.layout == "split" and self.graph == "ort":
            raise AcespecError(
                "the ort graph has one form for all widths; for fixed shapes choose --graph portable"
            )

    def _check_floats(self) -> None:
        if self.graph == "native" and self.floats == "fp32":
            raise AcespecError(
                "TensorRT's fused attention takes 16-bit floats alone; "
                "choose --precision fp16, or --graph portable"
            )
        if self.graph == "ort" and self.floats != "fp32":
            raise AcespecError(
                "the ort graph is for CPUs, which would widen 16-bit floats at every step; "
                "choose --precision int8, int4 or fp32, or --graph portable"
            )

    def _check_quantization(self, quantization: Quantization) -> None:
        if quantization.activation_bits is not None and self.graph != "ort":
            raise AcespecError(
                f"the {self.graph} graph keeps activations in floats; quantise them with --graph ort alone"
            )
        if quantization.activation_bits is not None and (quantization.block or not quantization.symmetric):
            raise AcespecError(
                "products of integers need symmetric weights with one scale an output; "
                "choose --block column --symmetric, or --activations float"
            )


def default_quantization(precision: Precision, graph: GraphName) -> Quantization:
    """How ``int8`` and ``int4`` weights are quantised unless asked otherwise.

    ONNX Runtime's CPU multiplies int8 activations by int8 weights fastest from a few tokens on. int4 suits
    one-token steps; there a head in int4 is a tenth of the step quicker and, smoothed, drafts as well.
    """
    if precision == "int4":
        return Quantization(bits=4, block=32, symmetric=False, head_bits=4 if graph == "ort" else 8)
    if graph == "ort":
        return Quantization(bits=8, block=None, symmetric=True, head_bits=8, activation_bits=8)
    return Quantization(bits=8, block=32, symmetric=False, head_bits=8)


def parse_precision(text: str) -> Precision:
    """The precision called ``text``. Raises ``AcespecError`` listing those there are."""
    for precision in PRECISIONS:
        if text == precision:
            return precision
    raise AcespecError(f"there is no precision {text!r}; choose one of {', '.join(PRECISIONS)}")


def parse_buckets(text: str) -> tuple[int, ...]:
    """Numbers from ``1,8,16``. Raises ``AcespecError`` for anything else."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise AcespecError(
            f"bucket widths are numbers with commas between, such as 1,8,16; not {text!r}"
        ) from None


def parse_logits(text: str) -> int | None:
    """None from ``full``, K from ``topk:K``. Raises ``AcespecError`` for anything else."""
    if text == "full":
        return None
    kind, _, count = text.partition(":")
    if kind != "topk" or not re.fullmatch(r"0*[1-9][0-9]{0,8}", count, re.ASCII):
        raise AcespecError(f"logits are 'full' or 'topk:K', such as topk:64; not {text!r}")
    return int(count)
