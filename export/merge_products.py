"""Matrix products of the same rows as one: queries, keys and values; gate and up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir
from onnx_ir import Node, Value
from onnx_ir.tape import Tape

from acespec.export.graph_constants import ints, lazy_initializer
from acespec.export.graph_patterns import (
    made_by,
    nodes_of,
    only_use,
    pairs,
    remove_unused,
    size_of,
    take_over,
)


@dataclass(frozen=True)
class Product:
    """``rows @ weight``, with a bias where one is added to it and to nothing else."""

    node: Node
    dequantize: Node | None
    """What the weight comes out of, unless it is stored as it is."""
    bias_node: Node | None
    bias: Value | None

    @property
    def stored(self) -> tuple[Value, ...]:
        """The weight as the graph holds it: one tensor, or values, scales and perhaps zero points."""
        source = self.node.inputs[1:] if self.dequantize is None else self.dequantize.inputs
        return tuple(value for value in source if value is not None)

    @property
    def columns(self) -> int:
        return size_of(self.stored[0], 1)

    @property
    def output(self) -> Value:
        return (self.bias_node or self.node).outputs[0]

    def merges_with(self, other: Product) -> bool:
        """Whether the two can be one product: weights stored alike, and both with a bias or neither."""
        return self._kind() == other._kind()

    def _kind(self) -> tuple[object, ...]:
        attributes = {} if self.dequantize is None else self.dequantize.attributes
        return (
            self.bias is None,
            tuple((value.dtype, None if value.shape is None else len(value.shape)) for value in self.stored),
            tuple(sorted((name, attribute.as_int()) for name, attribute in attributes.items())),
        )


def merge_products(graph: onnx_ir.Graph) -> None:
    """Join the matrix products of each value whose weights are stored alike, in place.

    Their weights stand side by side and what they gave is cut from the one result. A step then has fewer,
    larger products to spread over threads. A stored weight is joined when the graph is written, not before.
    """
    by_rows: dict[Value, list[Product]] = {}
    for node in nodes_of(graph, "MatMul"):
        product = _match_product(node)
        rows = node.inputs[0]
        if product is not None and rows is not None:
            by_rows.setdefault(rows, []).append(product)
    for rows, products in by_rows.items():
        alike = [product for product in products if product.merges_with(products[0])]
        if len(alike) > 1:
            _merge(graph, rows, alike)
    remove_unused(graph)


def _match_product(node: Node) -> Product | None:
    weight = node.inputs[1]
    dequantize = made_by(weight, "DequantizeLinear")
    stored = [weight] if dequantize is None else list(dequantize.inputs)
    if not all(value is not None and value.is_initializer() for value in stored):
        return None
    if weight is None or weight.shape is None or len(weight.shape) != 2 or len(weight.uses()) != 1:
        return None
    if any(len(value.uses()) != 1 for value in stored if value is not None):
        return None
    addition = only_use(node.outputs[0])
    if addition is not None and addition.op_type == "Add":
        for product, bias in pairs(addition):
            if product is node.outputs[0] and bias.is_initializer() and bias.shape == weight.shape[1:]:
                return Product(node, dequantize, addition, bias)
    return Product(node, dequantize, None, None)


def _merge(graph: onnx_ir.Graph, rows: Value, products: Sequence[Product]) -> None:
    assert rows.shape is not None
    tape = Tape()
    joined = [_side_by_side(graph, parts) for parts in zip(*(each.stored for each in products), strict=True)]
    first = products[0]
    columns = [product.columns for product in products]
    weight = joined[0]
    if first.dequantize is not None:
        weight = tape.op("DequantizeLinear", joined, first.dequantize.attributes)
        weight.type = onnx_ir.TensorType(onnx_ir.DataType.FLOAT)
        weight.shape = joined[0].shape
    product = _like(tape.op("MatMul", [rows, weight]), rows, sum(columns))
    biases = [each.bias for each in products if each.bias is not None]
    if biases:
        product = _like(tape.op("Add", [product, _side_by_side(graph, biases)]), rows, sum(columns))
    parts = tape.op_multi_out(
        "Split", [product, ints(graph, *columns)], {"axis": -1}, num_outputs=len(products)
    )
    graph.insert_before(first.node, tape.nodes)
    for each, part in zip(products, parts, strict=True):
        take_over(part, each.output)


def _like(value: Value, rows: Value, width: int) -> Value:
    """``value`` described as having the type and leading dimensions of ``rows``."""
    assert rows.shape is not None
    value.type, value.shape = rows.type, onnx_ir.Shape([*rows.shape[:-1], width])
    return value


def _side_by_side(graph: onnx_ir.Graph, parts: Sequence[Value]) -> Value:
    """One initializer of several along their last axis; their tensors are read when it is."""
    tensors = [part.const_value for part in parts]
    for part in parts:
        part.const_value = None  # the graph outlives its writing, and would keep these weights with it
    name = "+".join(str(part.name) for part in parts)
    sizes = [size_of(part, -1) for part in parts]
    first = parts[0]
    assert first.shape is not None and first.dtype is not None  # noqa: PT018
    shape = onnx_ir.Shape([*first.shape[:-1], sum(sizes)])

    def joined() -> np.ndarray:
        return np.concatenate([tensor.numpy() for tensor in tensors if tensor is not None], axis=-1)

    return lazy_initializer(graph, name, first.dtype, shape, joined)
