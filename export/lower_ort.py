"""ONNX Runtime's form of a traced graph: its fused operators, the past updated in place."""

from __future__ import annotations

import numpy as np
import onnx_ir
from onnx_ir import Value
from onnx_ir.tape import Tape

from acespec.export.graph import ExportError, attention_nodes
from acespec.export.graph_constants import initializer
from acespec.export.graph_patterns import CONTRIB, remove_unused, take_over
from acespec.export.integer_products import round_activations
from acespec.export.layouts import cancel_layouts, to_heads, to_rows
from acespec.export.merge_products import merge_products
from acespec.export.ort_attention import rotate_inside
from acespec.export.ort_norms import fuse_norms
from acespec.export.ort_rotary import fuse_rotations
from acespec.models.exportable import DecoderShape

NO_SINK = -1e30
"""Far below every score, those of masked rows included."""


def lower_ort(
    model: onnx_ir.Model, shape: DecoderShape, context: int, rows: int, rounds_activations: bool = False
) -> None:
    """Write ``model`` with ONNX Runtime's operators, in place: attention always, the rest where recognised.

    Adds inputs ``past_length`` ``[1]`` int32 and ``past_key.i``, ``past_value.i`` ``[1, KVH, R, D]``, and
    outputs ``present_key.i``, ``present_value.i`` that must be bound to the same memory: the operator then
    writes the N new rows behind the first ``past_length`` and reads no others, so that a step costs what the
    rows in use cost. A token's row must come after the rows it may attend to. Masks have T = ``past_length``
    + N columns; the operator's own window counts rows, not positions, and is never used. Positions are below
    ``context`` and a buffer has at most ``rows``, for where the operator rotates, its tables end there. The
    past begins with a row that masks hide: without one the operator takes no notice of positions.

    With ``rounds_activations``, products with eight-bit weights become products of integers
    (`integer_products`). Raises `ExportError` unless the graph computes in float32.
    """
    graph = model.graph
    nodes = attention_nodes(graph)
    assert len(nodes) == shape.num_layers, (len(nodes), shape.num_layers)
    _require_float32(nodes[0])
    past_length = Value(
        name="past_length", shape=onnx_ir.Shape([1]), type=onnx_ir.TensorType(onnx_ir.DataType.INT32)
    )
    graph.inputs.append(past_length)
    lengths = _sequence_lengths(graph, past_length)
    for layer, node in enumerate(nodes):
        _lower_attention(graph, node, layer, shape, lengths)
    fuse_rotations(graph)
    cancel_layouts(graph)
    fuse_norms(graph)
    remove_unused(graph)
    merge_products(graph)
    model.opset_imports[CONTRIB] = 1
    if shape.head_dim % 16 == 0:  # others it refuses to rotate
        rotate_inside(graph, model.opset_imports, context, rows)
    if rounds_activations:
        round_activations(graph)


def _require_float32(node: onnx_ir.Node) -> None:
    """Raise `ExportError` unless the attention ``node`` computes in float32.

    No CPU that matters multiplies narrower floats: ONNX Runtime would widen the weights at every step.
    """
    query = node.inputs[0]
    if query is None or query.dtype != onnx_ir.DataType.FLOAT:
        raise ExportError(
            "the ort graph is for CPUs, which would widen 16-bit floats at every step; "
            "choose --precision int8, int4 or fp32, or --graph portable"
        )


def _sequence_lengths(graph: onnx_ir.Graph, past_length: Value) -> tuple[Value, Value]:
    """What the operator wants to know: the index of the last row in use, and their number, int32 ``[1]``."""
    tokens = next(value for value in graph.inputs if value.name == "input_ids")
    one = initializer(graph, "acespec.one", np.array([1], np.int32))
    tape = Tape()
    count = tape.op("Shape", [tokens], {"start": 1, "end": 2})
    total = tape.op("Add", [past_length, tape.op("Cast", [count], {"to": onnx_ir.DataType.INT32.value})])
    last = tape.op("Sub", [total, one])
    graph.insert_before(graph[0], tape.nodes)
    return last, total


def _lower_attention(
    graph: onnx_ir.Graph, node: onnx_ir.Node, layer: int, shape: DecoderShape, lengths: tuple[Value, Value]
) -> None:
    query, key, value, mask = node.inputs
    assert query is not None and key is not None and value is not None and mask is not None  # noqa: PT018
    assert query.shape is not None
    num_heads = query.shape[1]
    assert isinstance(num_heads, int)
    tape = Tape()
    scaled = tape.op("Mul", [query, _scale(graph, node.attributes["scale"].as_float())])
    scaled.type, scaled.shape = query.type, query.shape
    rows = [to_rows(graph, tape, heads) for heads in (scaled, key, value)]
    past = [_past_input(graph, kind, layer, shape) for kind in ("key", "value")]
    output, *present = tape.op_multi_out(
        "GroupQueryAttention",
        [*rows, *past, *lengths, None, None, None, mask, _no_sink(graph, num_heads)],
        {"num_heads": num_heads, "kv_num_heads": shape.num_kv_heads, "scale": 1.0},
        num_outputs=3,
        domain=CONTRIB,
    )
    for kind, after, before in zip(("key", "value"), present, past, strict=True):
        after.name = f"present_{kind}.{layer}"
        after.type, after.shape = before.type, before.shape
        graph.outputs.append(after)
    output.type = query.type
    output.shape = onnx_ir.Shape([1, query.shape[2], num_heads * shape.head_dim])
    heads = to_heads(graph, tape, output, num_heads)
    graph.insert_before(node, tape.nodes)
    take_over(heads, node.outputs[0])
    graph.remove(node, safe=True)


def _scale(graph: onnx_ir.Graph, scale: float) -> Value:
    """What queries are multiplied by. Not the operator's own scale: only with 1 it has a one-token kernel.

    The product usually ends up in the tables of the rotation, so that it costs nothing.
    """
    name = f"acespec.scale.{scale!r}"
    return graph.initializers.get(name) or initializer(graph, name, np.float32(scale))


def _no_sink(graph: onnx_ir.Graph, num_heads: int) -> Value:
    """A sink for each head that takes no attention: beside any score, masked or not, its exponential is zero.

    With one, ONNX Runtime 1.32 computes scores as a whole rather than in tiles as flash attention does, which
    its CPU kernel does slower for the widths of a draft's steps (measured: 1.1 to 1.8 times as long).
    """
    name = f"acespec.no_sink.{num_heads}"
    sink = np.full(num_heads, NO_SINK, np.float32)
    return graph.initializers.get(name) or initializer(graph, name, sink)


def _past_input(graph: onnx_ir.Graph, kind: str, layer: int, shape: DecoderShape) -> Value:
    rows = Value(
        name=f"past_{kind}.{layer}",
        shape=onnx_ir.Shape([1, shape.num_kv_heads, "R", shape.head_dim]),
        type=onnx_ir.TensorType(onnx_ir.DataType.FLOAT),
    )
    graph.inputs.append(rows)
    return rows
