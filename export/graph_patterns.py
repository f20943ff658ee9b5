"""Small questions about the structure of a graph, for passes that rewrite what they recognise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir
from numpy.typing import NDArray
from onnx_ir import Node, Value

CONTRIB = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""


def made_by(value: Value | None, op_type: str, domain: str = "") -> Node | None:
    """The node ``value`` comes from, if it is such an operator."""
    node = None if value is None else value.producer()
    return node if node is not None and (node.domain, node.op_type) == (domain, op_type) else None


def nodes_of(graph: onnx_ir.Graph, op_type: str, domain: str = "") -> list[Node]:
    """The graph's nodes of an operator, in order, as a list: the graph may change meanwhile."""
    return [node for node in graph if (node.domain, node.op_type) == (domain, op_type)]


def constant(value: Value | None) -> NDArray[np.generic] | None:
    """The numbers of an initializer or a constant; None for anything else."""
    if value is None or value.is_graph_input():
        return None
    tensor = onnx_ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def is_scalar(value: Value | None, number: float) -> bool:
    """Whether ``value`` is a constant of one element, and that is ``number``."""
    array = small_constant(value)
    return array is not None and array.size == 1 and float(array.item()) == number


def small_constant(value: Value | None) -> NDArray[np.generic] | None:
    """The numbers of a constant scalar or short vector. Others are not even read: they may be weights."""
    sizes = None if value is None or value.shape is None else list(value.shape)
    if sizes is None or not all(isinstance(size, int) and size <= 16 for size in sizes):
        return None
    return constant(value) if len(sizes) <= 1 else None


def pairs(node: Node) -> Iterator[tuple[Value, Value]]:
    """The two operands of a commutative operator, either way round."""
    first, second = node.inputs
    if first is not None and second is not None:
        yield first, second
        yield second, first


def only_use(value: Value) -> Node | None:
    """The node that uses ``value``, if nothing else does."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    (use,) = uses
    return use.node


def size_of(value: Value, axis: int) -> int:
    """Length along an axis that does not vary."""
    assert value.shape is not None
    size = value.shape[axis]
    assert isinstance(size, int), (value.name, axis)
    return size


def attribute(node: Node, name: str) -> object:
    """An attribute's value; None where the node has none of that name."""
    found = node.attributes.get(name)
    return None if found is None else found.value


def take_over(new: Value, old: Value) -> None:
    """Put ``new`` wherever ``old`` is used, described as it was; as an output of the graph under its name."""
    new.type, new.shape = old.type, old.shape
    if old.is_graph_output():
        new.name, old.name = old.name, f"{old.name}.replaced"
    onnx_ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def remove_unused(graph: onnx_ir.Graph) -> None:
    """Remove nodes and initializers whose results nothing uses."""
    for node in reversed(list(graph)):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
