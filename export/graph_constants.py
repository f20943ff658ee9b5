"""Constants of a graph: made at once, shared where the numbers are the same, or made as it is written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir
from onnx_ir import Value


def initializer(graph: onnx_ir.Graph, name: str, array: np.ndarray) -> Value:
    """A constant of the graph."""
    return _registered(graph, onnx_ir.Shape(array.shape), onnx_ir.tensor(array, name=name))


def lazy_initializer(
    graph: onnx_ir.Graph,
    name: str,
    dtype: onnx_ir.DataType,
    shape: onnx_ir.Shape,
    numbers: Callable[[], np.ndarray],
) -> Value:
    """A constant whose ``numbers`` are made when the graph is written: until then no second copy is held."""

    def tensor() -> onnx_ir.TensorProtocol:
        return onnx_ir.tensor(numbers(), name=name)

    return _registered(graph, shape, onnx_ir.LazyTensor(tensor, dtype, shape, name=name))


def ints(graph: onnx_ir.Graph, *numbers: int) -> Value:
    """An int64 vector; the same one for the same numbers."""
    name = "acespec.ints." + "_".join(map(str, numbers))
    known = graph.initializers.get(name)
    return known if known is not None else initializer(graph, name, np.array(numbers, np.int64))


def _registered(graph: onnx_ir.Graph, shape: onnx_ir.Shape, tensor: onnx_ir.TensorProtocol) -> Value:
    kind = onnx_ir.TensorType(tensor.dtype)
    value = Value(name=tensor.name, shape=shape, type=kind, const_value=tensor)
    graph.register_initializer(value)
    return value
