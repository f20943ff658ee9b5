"""What a graph's inputs and outputs must be. Buffers are bound to them by address: they must not be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from acespec.edge_runtime.ort_session import EngineError
from acespec.models.manifest import Bundle, BundleManifest, GraphVariant, TensorSpec

FLOAT_TYPES: dict[str, np.dtype[Any]] = {"float": np.dtype(np.float32), "float16": np.dtype(np.float16)}
Interface = dict[str, tuple[str, tuple[int | str, ...]]]
"""Type and shape by name."""


def row_type(variant: GraphVariant) -> str:
    """The type of keys and values, in ONNX Runtime's spelling."""
    return next((spec.dtype for spec in variant.inputs if spec.name.startswith("past_key.")), "float")


def check_variant(bundle: Bundle, variant: GraphVariant) -> None:
    """Raise `EngineError` unless the manifest describes a graph of its own numbers, of types known here."""
    manifest = bundle.manifest
    if row_type(variant) not in FLOAT_TYPES:
        raise EngineError(
            f"{bundle.folder} keeps its rows in {row_type(variant)}, which ONNX Runtime is not fed here; "
            "export it again with --precision fp32, fp16, int8 or int4, or run it on TensorRT"
        )
    expected = described_inputs(manifest, variant), described_outputs(manifest, variant)
    for described, specs in zip(expected, (variant.inputs, variant.outputs), strict=True):
        stated = {spec.name: (spec.dtype, spec.shape) for spec in specs}
        if stated.keys() != described.keys() or not all(
            agrees(stated[name], described[name]) for name in described
        ):
            raise EngineError(
                f"the manifest of {bundle.folder} contradicts itself: its graph's interface is not that of "
                f"{manifest.num_layers} layers with rows of {manifest.num_kv_heads} x {manifest.head_dim} "
                f"and {manifest.vocab_size} logits; export the bundle again"
            )


def agrees(stated: tuple[str, tuple[int | str, ...]], described: tuple[str, tuple[int | str, ...]]) -> bool:
    """Whether types and sizes are the same, and what may vary varies in both."""
    (stated_type, stated_shape), (described_type, described_shape) = stated, described
    return (
        stated_type == described_type
        and len(stated_shape) == len(described_shape)
        and all(
            a == b or (isinstance(a, str) and isinstance(b, str))
            for a, b in zip(stated_shape, described_shape, strict=True)
        )
    )


def described_inputs(manifest: BundleManifest, variant: GraphVariant) -> Interface:
    """The inputs that `GraphVariant` documents, for a model of these numbers."""
    mask_types = {spec.name: spec.dtype for spec in variant.inputs if spec.dtype in FLOAT_TYPES}
    inputs: Interface = {
        "input_ids": ("int64", (1, "N")),
        "position_ids": ("int64", (1, "N")),
        "logit_rows": ("int64", ("M",)),
    }
    inputs |= {mask.name: (mask_types.get(mask.name, "float"), (1, 1, "N", "T")) for mask in variant.masks}
    if variant.name != "portable":
        inputs["past_length"] = ("int32", (1,))
    return inputs | rows_interface(manifest, variant, "past", "S")


def described_outputs(manifest: BundleManifest, variant: GraphVariant) -> Interface:
    """The outputs that `GraphVariant` documents, for a model of these numbers."""
    if variant.top_k is None:
        logits: Interface = {"logits": ("float", (1, "M", manifest.vocab_size))}
    else:
        size = min(variant.top_k, manifest.vocab_size)
        logits = {
            "top_logits": ("float", (1, "M", size)),
            "top_ids": ("int64", (1, "M", size)),
            "log_sum_exp": ("float", (1, "M")),
        }
    return logits | rows_interface(manifest, variant, "new" if variant.name == "portable" else "present", "N")


def rows_interface(manifest: BundleManifest, variant: GraphVariant, prefix: str, rows: str) -> Interface:
    """Keys and values of every layer, in the order of the layers."""
    heads, head_dim = manifest.num_kv_heads, manifest.head_dim
    shape = (rows, heads, head_dim) if variant.name == "portable" else (1, heads, "R", head_dim)
    names = row_names(prefix, min(manifest.num_layers, len(variant.inputs)))
    return {name: (row_type(variant), shape) for name in names}


def row_names(prefix: str, num_layers: int) -> list[str]:
    """Names of the tensors of keys and values: ``past_key.0``, ``past_value.0``, ``past_key.1``, ..."""
    return [f"{prefix}_{kind}.{layer}" for layer in range(num_layers) for kind in ("key", "value")]


def check_session(
    path: Path, session: ort.InferenceSession, variant: GraphVariant, fixed: Mapping[str, int]
) -> None:
    """Raise `EngineError` unless the graph's inputs and outputs are the manifest's.

    A graph with fixed shapes has the sizes ``fixed`` in place of the manifest's letters.
    """
    for kind, actual, expected in (
        ("input", session.get_inputs(), variant.inputs),
        ("output", session.get_outputs(), variant.outputs),
    ):
        found = {spec.name: spec for spec in _specs(actual)}
        for spec in expected:
            shape = tuple(size if isinstance(size, int) else fixed.get(size, size) for size in spec.shape)
            if found.pop(spec.name, None) not in (spec, spec.model_copy(update={"shape": shape})):
                raise EngineError(f"{path} has no {kind} {spec}; export the bundle again")
        if found:
            raise EngineError(f"{path} has unexpected {kind}s {sorted(found)}; export the bundle again")


def _specs(arguments: Iterable[ort.NodeArg]) -> Iterable[TensorSpec]:
    for argument in arguments:
        dtype = argument.type.removeprefix("tensor(").removesuffix(")")
        yield TensorSpec(name=argument.name, dtype=dtype, shape=tuple(argument.shape))
