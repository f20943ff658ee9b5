"""A graph of one operator and its weight, to be quantised."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
from numpy.typing import NDArray


def one_node_graph(
    weight: NDArray[np.float32], op_type: str, dtype: onnx_ir.DataType = onnx_ir.DataType.FLOAT
) -> onnx_ir.Model:
    """``product = rows @ weight`` for ``MatMul``, ``product = weight[rows]`` for ``Gather``."""
    inputs, kind, last, shape = ["rows", "weight"], dtype.value, weight.shape[0], ["N", weight.shape[1]]
    if op_type == "Gather":
        inputs, kind, last, shape = ["weight", "rows"], onnx.TensorProto.INT64, 3, ["N", 3, weight.shape[1]]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op_type, inputs, ["product"])],
        "one_node",
        [onnx.helper.make_tensor_value_info("rows", kind, ["N", last])],
        [onnx.helper.make_tensor_value_info("product", dtype.value, shape)],
        [onnx.numpy_helper.from_array(weight.astype(dtype.numpy()), "weight")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    return onnx_ir.from_proto(model)
