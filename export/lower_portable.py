"""The portable form of a traced graph: attention in standard operators, the past read as rows."""

from __future__ import annotations

import numpy as np
import onnx_ir
from onnx_ir import Value
from onnx_ir.tape import Tape

from acespec.export.graph import attention_nodes
from acespec.export.graph_constants import initializer, ints
from acespec.models.exportable import DecoderShape


def lower_portable(model: onnx_ir.Model, shape: DecoderShape) -> None:
    """Write every attention node of ``model`` in primitives of its opset, in place.

    Adds inputs ``past_key.i``, ``past_value.i`` ``[S, KVH, D]`` and outputs ``new_key.i``, ``new_value.i``
    ``[N, KVH, D]``. The past is never concatenated with the new rows or copied: their scores are computed
    apart. The G = H / KVH queries that share a key head are rows of one matrix product.
    """
    graph = model.graph
    nodes = attention_nodes(graph)
    assert len(nodes) == shape.num_layers, (len(nodes), shape.num_layers)
    pasts = [_past_inputs(layer, shape, nodes[layer].inputs[1]) for layer in range(shape.num_layers)]
    shared = _SharedValues(graph, nodes, pasts[0][0], shape)
    for layer, (node, past) in enumerate(zip(nodes, pasts, strict=True)):
        _lower_node(graph, node, layer, past, shared, shape)
    graph.inputs.extend(value for past in pasts for value in past)


def _past_inputs(layer: int, shape: DecoderShape, key: Value | None) -> tuple[Value, Value]:
    assert key is not None
    rows = onnx_ir.Shape(["S", shape.num_kv_heads, shape.head_dim])
    key_rows, value_rows = (
        Value(name=f"past_{kind}.{layer}", shape=rows, type=key.type) for kind in ("key", "value")
    )
    return key_rows, value_rows


class _SharedValues:
    """What all layers use: constants, the number of rows before the step, folded masks."""

    def __init__(
        self, graph: onnx_ir.Graph, nodes: list[onnx_ir.Node], past: Value, shape: DecoderShape
    ) -> None:
        self._graph = graph
        tape = Tape()
        self.num_past = tape.op("Shape", [past], {"start": 0, "end": 1})  # [1]
        self.folded_masks: dict[Value, Value] = {}
        """A mask -> it in float32, repeated for each query of a key head: ``[1, G*N, T]``."""
        for node in nodes:
            query, mask = node.inputs[0], node.inputs[3]
            assert query is not None and query.shape is not None and mask is not None  # noqa: PT018
            num_heads = query.shape[1]
            assert isinstance(num_heads, int)
            if mask not in self.folded_masks:
                self.folded_masks[mask] = self._fold(tape, mask, num_heads // shape.num_kv_heads)
        graph.insert_before(nodes[0], tape.nodes)

    def constant(self, *numbers: int) -> Value:
        """An int64 vector."""
        return ints(self._graph, *numbers)

    def _fold(self, tape: Tape, mask: Value, groups: int) -> Value:
        wide = mask if mask.dtype == onnx_ir.DataType.FLOAT else tape.op("Cast", [mask], {"to": 1})
        flat = tape.op("Squeeze", [wide, self.constant(0)])
        return tape.op("Concat", [flat] * groups, {"axis": 1}) if groups > 1 else flat


def _lower_node(
    graph: onnx_ir.Graph,
    node: onnx_ir.Node,
    layer: int,
    past: tuple[Value, Value],
    shared: _SharedValues,
    shape: DecoderShape,
) -> None:
    query, key, value, mask = node.inputs
    assert query is not None and key is not None and value is not None and mask is not None  # noqa: PT018
    assert query.shape is not None and query.dtype is not None  # noqa: PT018
    num_heads, kv_heads, head_dim = query.shape[1], shape.num_kv_heads, shape.head_dim
    assert isinstance(num_heads, int)
    narrow = query.dtype != onnx_ir.DataType.FLOAT  # softmax always in float32, as the models do
    tape = Tape()

    scale = initializer(graph, f"acespec.scale.{layer}", np.float32(node.attributes["scale"].as_float()))
    if narrow:
        scale = tape.op("CastLike", [scale, query])
    scaled = tape.op("Mul", [query, scale])
    folded = tape.op("Reshape", [scaled, shared.constant(kv_heads, -1, head_dim)])  # [KVH, G*N, D]
    past_keys = tape.op("Transpose", [past[0]], {"perm": [1, 2, 0]})  # [KVH, D, S]
    new_keys = tape.op("Transpose", [tape.op("Squeeze", [key, shared.constant(0)])], {"perm": [0, 2, 1]})
    scores = tape.op(
        "Concat",
        [tape.op("MatMul", [folded, past_keys]), tape.op("MatMul", [folded, new_keys])],
        {"axis": -1},
    )  # [KVH, G*N, S + N]
    if narrow:
        scores = tape.op("Cast", [scores], {"to": onnx_ir.DataType.FLOAT})
    masked = tape.op("Add", [scores, shared.folded_masks[mask]])
    probs = tape.op("Softmax", [masked], {"axis": -1})
    if narrow:
        probs = tape.op("CastLike", [probs, query])
    ends = shared.constant(np.iinfo(np.int64).max)
    past_probs = tape.op("Slice", [probs, shared.constant(0), shared.num_past, shared.constant(2)])
    new_probs = tape.op("Slice", [probs, shared.num_past, ends, shared.constant(2)])
    past_values = tape.op("Transpose", [past[1]], {"perm": [1, 0, 2]})  # [KVH, S, D]
    new_values = tape.op("Squeeze", [value, shared.constant(0)])
    mixed = tape.op(
        "Add",
        [tape.op("MatMul", [past_probs, past_values]), tape.op("MatMul", [new_probs, new_values])],
    )
    output = tape.op("Reshape", [mixed, shared.constant(1, num_heads, -1, head_dim)])
    for kind, rows in (("key", key), ("value", value)):
        flat = tape.op("Squeeze", [tape.op("Transpose", [rows], {"perm": [0, 2, 1, 3]}), shared.constant(0)])
        flat.name = f"new_{kind}.{layer}"
        flat.type = rows.type
        flat.shape = onnx_ir.Shape(["N", kv_heads, head_dim])
        graph.outputs.append(flat)
    output.shape, output.type = node.outputs[0].shape, node.outputs[0].type
    graph.insert_before(node, tape.nodes)
    onnx_ir.convenience.replace_all_uses_with(node.outputs[0], output)
    graph.remove(node, safe=True)
