"""Block quantisation: what it stands for, how good it is, and what ONNX Runtime makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from acespec.export.quantize import BLOCK, QuantizedMatrix, quantize_graph, quantize_matrix


def plain_rounding(block: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """The textbook way for one block: range from least to greatest (zero included), nearest level."""
    top = 2**bits - 1
    low, high = min(float(block.min()), 0.0), max(float(block.max()), 0.0)
    scale = (high - low) / top or 1.0
    zero = round(-low / scale)
    levels = [min(max(round(float(value) / scale) + zero, 0), top) for value in block]
    return np.array([(level - zero) * scale for level in levels], np.float32)


weights = npst.arrays(
    np.float32, st.tuples(st.sampled_from([32, 64]), st.integers(1, 4)), elements=st.floats(-8, 8, width=16)
)


@pytest.mark.parametrize("bits", [4, 8])
@given(weight=weights)
@settings(max_examples=60)
def test_no_block_is_worse_than_by_plain_rounding(bits: int, weight: NDArray[np.float32]) -> None:
    quantized = quantize_matrix(weight, bits)
    assert quantized.values.max(initial=0) < 2**bits
    error = np.square(quantized.dequantized() - weight)
    for first in range(0, weight.shape[0], BLOCK):
        for column in range(weight.shape[1]):
            block = weight[first : first + BLOCK, column]
            plain = np.square(plain_rounding(block, bits) - block).sum()
            assert error[first : first + BLOCK, column].sum() <= plain * 1.001 + 1e-9


@pytest.mark.parametrize("bits", [4, 8])
def test_values_on_the_grid_come_back(bits: int) -> None:
    generator, top = np.random.default_rng(0), 2**bits - 1
    codes = generator.integers(0, top + 1, (96, 5))
    codes[::BLOCK], codes[1::BLOCK] = 0, top  # every block uses its whole range
    zeros = np.repeat(generator.integers(0, top + 1, (3, 5)), BLOCK, axis=0)
    scales = np.repeat(generator.uniform(0.01, 3, (3, 5)), BLOCK, axis=0)
    weight = ((codes - zeros) * scales).astype(np.float32)
    np.testing.assert_allclose(quantize_matrix(weight, bits).dequantized(), weight, rtol=1e-5, atol=1e-6)


def test_a_block_of_zeros_stays_zero() -> None:
    assert not quantize_matrix(np.zeros((32, 3), np.float32), 4).dequantized().any()


def test_it_stands_for_value_minus_zero_point_times_scale() -> None:
    values = np.zeros((64, 2), np.uint8)
    values[0], values[33, 1] = 5, 15
    matrix = QuantizedMatrix(
        4, values, np.array([[1, 2], [3, 4]], np.float32), np.array([[1, 2], [0, 7]], np.uint8)
    )
    dequantized = matrix.dequantized()
    assert dequantized[0].tolist() == [4.0, 6.0]  # (5 - 1) * 1, (5 - 2) * 2
    assert dequantized[1].tolist() == [-1.0, -4.0]  # (0 - 1) * 1, (0 - 2) * 2
    assert dequantized[33].tolist() == [0.0, 32.0]  # (0 - 0) * 3, (15 - 7) * 4


def product_graph(weight: NDArray[np.float32]) -> onnx_ir.Model:
    """``product = rows @ weight``."""
    rows, features = weight.shape
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["rows", "weight"], ["product"])],
        "one_product",
        [onnx.helper.make_tensor_value_info("rows", onnx.TensorProto.FLOAT, ["N", rows])],
        [onnx.helper.make_tensor_value_info("product", onnx.TensorProto.FLOAT, ["N", features])],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    return onnx_ir.from_proto(model)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_graph_multiplies_by_what_the_matrix_stands_for_in_onnx_runtime_s_kernel(
    tmp_path: Path, bits: int
) -> None:
    weight = np.random.default_rng(bits).standard_normal((64, 48)).astype(np.float32)
    matrix = quantize_matrix(weight, bits)
    model = product_graph(weight)
    quantize_graph(model, {"weight": matrix})
    assert "weight" not in model.graph.initializers
    onnx_ir.save(model, tmp_path / "graph.onnx")
    onnx.checker.check_model(str(tmp_path / "graph.onnx"))

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "graph.onnx"), options, providers=["CPUExecutionProvider"]
    )
    rows = np.random.default_rng(9).standard_normal((5, 64)).astype(np.float32)
    (product,) = session.run(None, {"rows": rows})
    np.testing.assert_allclose(product, rows @ matrix.dequantized(), atol=1e-4)
    kernels = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kernels == ["MatMulNBits"]
