"""Rounded activations: a product against NumPy, and against itself in other company, to the bit."""

from __future__ import annotations

import numpy as np
import onnx_ir
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from acespec.export.graph_patterns import CONTRIB, nodes_of
from acespec.export.integer_products import round_activations
from acespec.export.merge_products import merge_products
from acespec.machine import byte_precision, bytes_overflow

INPUTS = 64


def weights(seed: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Each seed's have another number of outputs."""
    outputs = INPUTS - 8 * (seed - 1)
    generator = np.random.default_rng(seed)
    values = generator.integers(-127, 128, (INPUTS, outputs)).astype(np.int8)
    return values, generator.uniform(0.01, 0.02, outputs).astype(np.float32)


def rows(count: int, seed: int = 3) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, INPUTS)).astype(np.float32)


def integer_product(
    activations: NDArray[np.float32], values: NDArray[np.int8], scales: NDArray[np.float32]
) -> NDArray[np.float64]:
    """What the product shall be, one row after another."""
    result = []
    for row in activations:
        row_scale = np.abs(row).max() * np.float32(1 / 127)
        codes = np.rint(row / row_scale) if row_scale > 0 else np.zeros_like(row)
        result.append(
            (codes.astype(np.int64) @ values.astype(np.int64)) * scales.astype(np.float64) * row_scale
        )
    return np.array(result)


def constant(graph: onnx_ir.Graph, name: str, array: NDArray[np.generic]) -> onnx_ir.Value:
    tensor = onnx_ir.tensor(array, name=name)
    kind, shape = onnx_ir.TensorType(tensor.dtype), onnx_ir.Shape(array.shape)
    value = onnx_ir.Value(name=name, shape=shape, type=kind, const_value=tensor)
    graph.register_initializer(value)
    return value


def quantised_products(
    *seeds: int, attributes: dict[str, int] | None = None, bias: bool = False
) -> onnx_ir.Model:
    """A graph ``x [1, N, in] -> y0, y1, ...``, each a product with a quantised weight of its own."""
    float_type = onnx_ir.TensorType(onnx_ir.DataType.FLOAT)
    x = onnx_ir.Value(name="x", shape=onnx_ir.Shape([1, "N", INPUTS]), type=float_type)
    graph = onnx_ir.Graph([x], [], nodes=[], opset_imports={"": 21, CONTRIB: 1}, name="products")
    for index, seed in enumerate(seeds):
        tape = Tape()
        values, scales = weights(seed)
        stored = [constant(graph, f"values{index}", values), constant(graph, f"scales{index}", scales)]
        weight = tape.op("DequantizeLinear", stored, attributes or {"axis": 1})
        weight.shape, weight.type = onnx_ir.Shape(values.shape), float_type
        output = tape.op("MatMul", [x, weight])
        output.shape, output.type = onnx_ir.Shape([1, "N", values.shape[1]]), float_type
        if bias:
            output = tape.op("Add", [output, constant(graph, f"bias{index}", scales * 100)])
            output.shape, output.type = onnx_ir.Shape([1, "N", values.shape[1]]), float_type
        output.name = f"y{index}"
        graph.extend(tape.nodes)
        graph.outputs.append(output)
    return onnx_ir.Model(graph, ir_version=10)


def run(model: onnx_ir.Model, activations: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # in floats
    options.add_session_config_entry("session.x64quantprecision", byte_precision())
    session = onnxruntime.InferenceSession(
        onnx_ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [output[0] for output in session.run(None, {"x": activations[None]})]


@pytest.fixture(scope="module")
def rounded() -> onnx_ir.Model:
    model = quantised_products(1)
    round_activations(model.graph)
    assert not nodes_of(model.graph, "MatMul")
    return model


@pytest.mark.parametrize("count", [1, 2, 7, 33])
def test_a_product_is_numpys(rounded: onnx_ir.Model, count: int) -> None:
    (actual,) = run(rounded, rows(count))
    np.testing.assert_allclose(actual, integer_product(rows(count), *weights(1)), rtol=1e-5, atol=1e-6)


def test_a_row_is_the_same_to_the_bit_in_any_company(rounded: onnx_ir.Model) -> None:
    """Alone, beside rows a million times as large, beside zeros and beside what is not a number."""
    row = rows(1)
    (alone,) = run(rounded, row)
    for company in (rows(15, 4), rows(15, 4) * 1e6, np.zeros((15, INPUTS)), np.full((15, INPUTS), np.nan)):
        together = np.concatenate([company[:8], row, company[8:]]).astype(np.float32)
        np.testing.assert_array_equal(run(rounded, together)[0][8:9], alone)


def test_a_row_of_zeros_gives_zeros_and_extremes_stay_finite(rounded: onnx_ir.Model) -> None:
    (actual,) = run(rounded, np.concatenate([np.zeros((1, INPUTS)), rows(1) * 1e-43]).astype(np.float32))
    np.testing.assert_array_equal(actual[0], 0)
    assert np.isfinite(actual).all()
    (largest,) = run(rounded, rows(1) * np.float32(1e30))
    np.testing.assert_allclose(largest, integer_product(rows(1) * np.float32(1e30), *weights(1)), rtol=1e-5)


def test_products_of_the_same_rows_are_one_and_round_them_once() -> None:
    model = quantised_products(1, 2, 3)
    merge_products(model.graph)
    round_activations(model.graph)
    assert len(nodes_of(model.graph, "QuantizeLinear")) == 1
    assert len(nodes_of(model.graph, "MatMulIntegerToFloat", CONTRIB)) == 1
    for seed, actual in zip((1, 2, 3), run(model, rows(5)), strict=True):
        np.testing.assert_allclose(actual, integer_product(rows(5), *weights(seed)), rtol=1e-5, atol=1e-6)


def test_biases_are_merged_with_their_products() -> None:
    model = quantised_products(1, 2, bias=True)
    merge_products(model.graph)
    assert len(nodes_of(model.graph, "Add")) == 1
    assert set(model.graph.initializers) >= {"values0+values1", "scales0+scales1", "bias0+bias1"}
    assert "values0" not in model.graph.initializers
    for seed, actual in zip((1, 2), run(model, rows(5)), strict=True):
        values, scales = weights(seed)
        np.testing.assert_allclose(actual, rows(5) @ (values * scales) + scales * 100, rtol=1e-4, atol=1e-4)


def test_weights_stored_otherwise_are_neither_merged_nor_rounded() -> None:
    """Here the second product's scales belong to its inputs, which are as many as its outputs."""
    model = quantised_products(2, 1)
    _, second = nodes_of(model.graph, "DequantizeLinear")
    second.attributes["axis"] = onnx_ir.AttrInt64("axis", 0)
    merge_products(model.graph)
    assert len(nodes_of(model.graph, "MatMul")) == 2
    round_activations(model.graph)
    assert nodes_of(model.graph, "DequantizeLinear") == [second]
    assert len(nodes_of(model.graph, "MatMul")) == 1
    assert len(nodes_of(model.graph, "MatMulIntegerToFloat", CONTRIB)) == 1


@pytest.mark.parametrize(
    ("cpuinfo", "overflows"),
    [
        ("flags\t\t: fpu avx2 avx512f", True),
        ("flags\t\t: fpu avx2 avx512f avx512_vnni", False),
        ("flags\t\t: fpu avx2 avx_vnni", False),
        ("flags\t\t: fpu sse4_1", True),
        ("Features\t: fp asimd asimddp", False),
        ("", False),
    ],
)
def test_bytes_overflow_on_x86_without_vnni_alone(cpuinfo: str, overflows: bool) -> None:
    assert bytes_overflow(cpuinfo) is overflows
