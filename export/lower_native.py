"""The native form of a traced graph: ONNX's own operators for a cache in place and for attention, opset 24.

TensorRT 10.15 and later read them as one layer each: ``TensorScatter`` is its key/value cache update, whose
output must be bound to its input's memory, and ``Attention`` its fused attention.
"""

from __future__ import annotations

import onnx_ir
from onnx_ir import Value
from onnx_ir.tape import Tape

from acespec.export.graph import attention_nodes
from acespec.models.exportable import DecoderShape

OPSET = 24
IR_VERSION = 11
"""The first that has an opset this new; runtimes refuse files of a later one than they know."""


def lower_native(model: onnx_ir.Model, shape: DecoderShape, rows: int) -> None:
    """Write ``model``'s attention with the operators of opset 24, in place, for a buffer of R = ``rows``.

    Adds inputs ``past_length`` ``[1]`` int32 and ``past_key.i``, ``past_value.i`` ``[1, KVH, R, D]``, and
    outputs ``present_key.i``, ``present_value.i``: the same memory with the N new rows written from row
    ``past_length`` on. Masks have R columns, one a row of the buffer; those of rows not in use are masked,
    and what the rows hold must be finite. R is a number in the graph: TensorRT takes no cache of varying
    length.
    """
    graph = model.graph
    nodes = attention_nodes(graph)
    assert len(nodes) == shape.num_layers, (len(nodes), shape.num_layers)
    for value in graph.inputs:
        if value.name is not None and value.name.startswith("mask"):
            value.shape = onnx_ir.Shape([1, 1, "N", rows])
    past_length = Value(
        name="past_length", shape=onnx_ir.Shape([1]), type=onnx_ir.TensorType(onnx_ir.DataType.INT32)
    )
    graph.inputs.append(past_length)
    tape = Tape()
    write_index = tape.op("Cast", [past_length], {"to": onnx_ir.DataType.INT64.value})
    graph.insert_before(nodes[0], tape.nodes)
    buffer = onnx_ir.Shape([1, shape.num_kv_heads, rows, shape.head_dim])
    for layer, node in enumerate(nodes):
        _lower_node(graph, node, write_index, layer, buffer)
    model.opset_imports[""] = OPSET  # operators traced for an earlier opset mean the same in this one
    model.ir_version = max(model.ir_version, IR_VERSION)


def _lower_node(
    graph: onnx_ir.Graph, node: onnx_ir.Node, write_index: Value, layer: int, buffer: onnx_ir.Shape
) -> None:
    query, key, value, mask = node.inputs
    assert query is not None and key is not None and value is not None and mask is not None  # noqa: PT018
    tape = Tape()
    presents = []
    for kind, new in (("key", key), ("value", value)):
        past = Value(name=f"past_{kind}.{layer}", shape=buffer, type=new.type)
        graph.inputs.append(past)
        present = tape.op("TensorScatter", [past, new, write_index], {"axis": 2})
        present.name, present.shape, present.type = f"present_{kind}.{layer}", buffer, new.type
        graph.outputs.append(present)
        presents.append(present)
    # No softmax_precision: TensorRT refuses the attribute.
    scale = {"scale": node.attributes["scale"].as_float()}
    output = tape.op("Attention", [query, *presents, mask], scale)
    output.shape, output.type = node.outputs[0].shape, node.outputs[0].type
    graph.insert_before(node, tape.nodes)
    onnx_ir.convenience.replace_all_uses_with(node.outputs[0], output)
    graph.remove(node, safe=True)
