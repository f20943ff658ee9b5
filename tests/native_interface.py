"""The tiny bundle's graph behind the interface of the native one, in operators that ONNX Runtime has.

Rows are cut by head and lie in one buffer, which the graph updates at the place it is told: what the engine
has to do differs from the portable graph, what is computed does not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from acespec.models.files import sha256_of
from acespec.models.manifest import Bundle, GraphVariant, TensorSpec

FILE = "native.onnx"


def native_bundle(bundle: Bundle) -> Bundle:
    """``bundle`` with a native graph alone; the file is written beside the portable one."""
    variant = bundle.graph("portable")
    model = onnx.load(bundle.path("portable.onnx"), load_external_data=False)
    rows = [spec.name.removeprefix("past_") for spec in variant.inputs if spec.name.startswith("past_")]
    before: list[Any] = list(_constants())
    after: list[Any] = []
    for name in rows:
        _rename_uses(model.graph, f"past_{name}", f"past_{name}.rows")
        before += [
            helper.make_node("Squeeze", [f"past_{name}", "axis0"], [f"past_{name}.heads"]),
            helper.make_node("Transpose", [f"past_{name}.heads"], [f"past_{name}.rows"], perm=[1, 0, 2]),
        ]
        after += [
            helper.make_node(
                "ScatterND", [f"past_{name}.rows", "own_index", f"new_{name}"], [f"present_{name}.rows"]
            ),
            helper.make_node(
                "Transpose", [f"present_{name}.rows"], [f"present_{name}.heads"], perm=[1, 0, 2]
            ),
            helper.make_node("Unsqueeze", [f"present_{name}.heads", "axis0"], [f"present_{name}"]),
        ]
    _rename_uses(model.graph, "mask", "mask.portable")
    before += _portable_mask()
    nodes = [*before, *model.graph.node, *after]
    native = _native_variant(variant)
    graph = helper.make_graph(
        nodes,
        "native",
        [_value(spec) for spec in native.inputs],
        [_value(spec) for spec in native.outputs],
        list(model.graph.initializer),
    )
    made = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.save(made, bundle.folder / FILE)
    hashes = bundle.manifest.file_sha256 | {FILE: sha256_of(bundle.folder / FILE)}
    return replace(
        bundle, manifest=bundle.manifest.model_copy(update={"graphs": (native,), "file_sha256": hashes})
    )


def _native_variant(variant: GraphVariant) -> GraphVariant:
    def changed(spec: TensorSpec) -> TensorSpec:
        if spec.name.startswith(("past_", "new_")):
            _, heads, size = spec.shape
            name = spec.name.replace("new_", "present_")
            return TensorSpec(name=name, dtype=spec.dtype, shape=(1, heads, "R", size))
        return spec

    assert variant.prefill is not None
    length = TensorSpec(name="past_length", dtype="int32", shape=(1,))
    return variant.model_copy(
        update={
            "name": "native",
            "bucket_files": dict.fromkeys(variant.buckets, FILE),
            "prefill": variant.prefill.model_copy(update={"file": FILE}),
            "inputs": (*map(changed, variant.inputs), length),
            "outputs": tuple(map(changed, variant.outputs)),
        }
    )


def _portable_mask() -> list[Any]:
    """The past's columns, those of rows not in use masked, and then the step's own columns."""
    return [
        helper.make_node("Shape", ["input_ids"], ["tokens"], start=1, end=2),
        helper.make_node("Squeeze", ["tokens"], ["count"]),
        helper.make_node("Range", ["zero", "count", "one"], ["steps"]),
        helper.make_node("Cast", ["past_length"], ["past"], to=TensorProto.INT64),
        helper.make_node("Add", ["steps", "past"], ["own"]),
        helper.make_node("Unsqueeze", ["own", "axis1"], ["own_index"]),
        helper.make_node("Shape", ["mask"], ["width"], start=3, end=4),
        helper.make_node("Squeeze", ["width"], ["columns"]),
        helper.make_node("Range", ["zero", "columns", "one"], ["column"]),
        helper.make_node("Less", ["column", "past"], ["is_past"]),
        helper.make_node("Where", ["is_past", "mask", "masked"], ["past_mask"]),
        helper.make_node("Gather", ["mask", "own"], ["own_mask"], axis=3),
        helper.make_node("Concat", ["past_mask", "own_mask"], ["mask.portable"], axis=3),
    ]


def _constants() -> list[Any]:
    values = {
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "axis0": np.array([0], np.int64),
        "axis1": np.array([1], np.int64),
        "masked": np.array(-1e4, np.float32),
    }
    return [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
        for name, value in values.items()
    ]


def _rename_uses(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new


def _value(spec: TensorSpec) -> Any:
    types = {"float": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64}
    return helper.make_tensor_value_info(spec.name, types[spec.dtype], list(spec.shape))
