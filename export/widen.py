"""A bfloat16 graph that computes in float32, for machines that do not multiply bfloat16.

ONNX Runtime's CPU has no such kernels. The twin has the same nodes and weights, so it shows whether the graph
is right; how a device rounds in between is not in it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir

NARROW, WIDE = onnx_ir.DataType.BFLOAT16, onnx_ir.DataType.FLOAT


def save_widened(source: Path, file: Path) -> None:
    """Write the graph of ``source`` to ``file``, each bfloat16 made float32; weights to ``file.data``."""
    model = onnx_ir.load(source)
    graph = model.graph
    for value in graph.initializers.values():
        if value.dtype == NARROW:
            assert value.const_value is not None
            value.const_value = _widened(value.const_value)
            value.type = onnx_ir.TensorType(WIDE)
    for value in graph.inputs:
        _retype(value)
    for node in graph:
        to = node.attributes.get("to")
        if to is not None and to.as_int() == NARROW.value:
            node.attributes["to"] = onnx_ir.AttrInt64("to", WIDE.value)
        for value in node.outputs:
            _retype(value)
    onnx_ir.save(model, file, external_data=f"{file.name}.data")


def _widened(tensor: onnx_ir.TensorProtocol) -> onnx_ir.TensorProtocol:
    """``tensor`` in float32, computed when it is written: one at a time is held."""
    shape = onnx_ir.Shape([int(size) for size in tensor.numpy().shape])
    return onnx_ir.LazyTensor(
        lambda: onnx_ir.tensor(tensor.numpy().astype(np.float32)), WIDE, shape, name=tensor.name
    )


def _retype(value: onnx_ir.Value) -> None:
    if value.dtype == NARROW:
        value.type = onnx_ir.TensorType(WIDE)
