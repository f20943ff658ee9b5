"""Quantised weights in a decoder and in a graph: which matrices, and what they compute."""

from __future__ import annotations

import logging
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from acespec.export.graph import use_matrix_products
from acespec.export.quantize import quantize_decoder, quantize_graph
from acespec.export.quantized_matrix import quantize_matrix
from acespec.models.exportable import ExportableDecoder
from acespec.models.manifest import Quantization
from one_node_graph import one_node_graph
from tiny_target import MAX_CONTEXT, tiny_model

VOCAB = 257


def decoder(architecture: str = "llama") -> ExportableDecoder:
    made = ExportableDecoder(tiny_model(architecture), VOCAB, MAX_CONTEXT)
    use_matrix_products(made)
    return made


def asked(**changes: object) -> Quantization:
    plain = {"bits": 8, "block": None, "symmetric": True, "head_bits": 8}
    return Quantization.model_validate(plain | changes)


def weights_of(made: ExportableDecoder) -> dict[str, NDArray[np.float32]]:
    return {name: weight.detach().numpy().copy() for name, weight in made.named_parameters()}


def test_the_decoder_computes_with_what_its_matrices_stand_for() -> None:
    made = decoder()
    before = weights_of(made)
    matrices = quantize_decoder(made, asked(bits=4, head_bits=8))
    after = weights_of(made)
    assert len(matrices) == 2 * 7 + 1
    assert {matrix.bits for name, matrix in matrices.items() if "lm_head" not in name} == {4}
    assert matrices["model.lm_head.weight"].bits == 8
    for name, weight in after.items():
        if name in matrices:
            assert not np.array_equal(weight, before[name])
            np.testing.assert_array_equal(weight, matrices[name].dequantized())
        else:
            np.testing.assert_array_equal(weight, before[name])


def test_a_head_can_stay_in_floats() -> None:
    assert "model.lm_head.weight" not in quantize_decoder(decoder(), asked(head_bits=None))


def test_for_tensorrt_an_eight_bit_head_beside_four_bit_layers_has_no_blocks() -> None:
    for bits, for_tensorrt, block in ((4, True, None), (4, False, 32), (8, True, 32)):
        matrices = quantize_decoder(decoder(), asked(bits=bits, block=32), for_tensorrt=for_tensorrt)
        assert matrices["model.lm_head.weight"].block == block
        assert matrices["model.model.layers.0.mlp.up_proj.weight"].block == 32


def test_a_matrix_that_makes_no_blocks_stays_in_floats_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "acespec.export.quantize")
    matrices = quantize_decoder(decoder(), asked(bits=4, block=32))
    # 48 inputs are no multiple of 32
    assert "model.model.layers.0.mlp.up_proj.weight" in matrices
    assert not [name for name in matrices if "down_proj" in name]
    assert "model.model.layers.1.mlp.down_proj" in caplog.text


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])  # the second ties the embedding to the head
def test_the_embedding_has_one_scale_a_token(architecture: str) -> None:
    made = decoder(architecture)
    before = weights_of(made)["model.model.embed_tokens.weight"]
    head = weights_of(made)["model.lm_head.weight"]
    matrix = quantize_decoder(made, asked(head_bits=None, embedding_bits=8))[
        "model.model.embed_tokens.weight"
    ]
    after = weights_of(made)
    np.testing.assert_array_equal(after["model.model.embed_tokens.weight"], matrix.dequantized().T)
    np.testing.assert_array_equal(after["model.lm_head.weight"], head)
    error = np.abs(matrix.dequantized().T - before).max(axis=1)
    assert np.all(error <= np.abs(before).max(axis=1) / 127)


def run(
    model: onnx_ir.Model, folder: Path, rows: NDArray[np.generic]
) -> tuple[NDArray[np.float32], list[str]]:
    """The product, and the operators ONNX Runtime made of the graph."""
    onnx_ir.save(model, folder / "graph.onnx")
    onnx.checker.check_model(str(folder / "graph.onnx"), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(
        str(folder / "graph.onnx"), options, providers=["CPUExecutionProvider"]
    )
    (product,) = session.run(None, {"rows": rows})
    return product, [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


@pytest.mark.parametrize("block", [32, 128, None])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_graph_multiplies_by_what_the_matrix_stands_for(
    tmp_path: Path, bits: int, symmetric: bool, block: int | None
) -> None:
    weight = np.random.default_rng(bits).standard_normal((256, 48)).astype(np.float32)
    matrix = quantize_matrix(weight, bits, block, symmetric)
    model = one_node_graph(weight, "MatMul")
    quantize_graph(model, {"weight": matrix})
    assert "weight" not in model.graph.initializers
    rows = np.random.default_rng(9).standard_normal((5, 256)).astype(np.float32)
    product, operators = run(model, tmp_path, rows)
    np.testing.assert_allclose(product, rows @ matrix.dequantized(), atol=2e-4)
    if block is not None:
        assert operators == ["MatMulNBits"]


@pytest.mark.parametrize("symmetric", [True, False])
def test_four_bits_take_half_a_byte_in_the_file(tmp_path: Path, symmetric: bool) -> None:
    weight = np.random.default_rng(0).standard_normal((512, 256)).astype(np.float32)
    model = one_node_graph(weight, "MatMul")
    quantize_graph(model, {"weight": quantize_matrix(weight, 4, 128, symmetric)})
    onnx_ir.save(model, tmp_path / "graph.onnx")
    weight_bytes = 512 * 256 // 2 + 4 * 256 * 4
    assert weight_bytes < (tmp_path / "graph.onnx").stat().st_size < weight_bytes + 2000


@pytest.mark.parametrize("for_tensorrt", [False, True])
@pytest.mark.parametrize("dtype", [onnx_ir.DataType.FLOAT, onnx_ir.DataType.FLOAT16])
def test_rows_of_an_embedding_are_what_the_integers_stand_for(
    tmp_path: Path, dtype: onnx_ir.DataType, for_tensorrt: bool
) -> None:
    table = np.random.default_rng(2).standard_normal((20, 16)).astype(np.float32)
    matrix = quantize_matrix(np.ascontiguousarray(table.T), 8, None, symmetric=True)
    model = one_node_graph(table, "Gather", dtype)
    quantize_graph(model, {"weight": matrix}, for_tensorrt=for_tensorrt)
    rows = np.array([[3, 0, 19]])
    product, operators = run(model, tmp_path, rows)
    assert ("DequantizeLinear" in operators) == for_tensorrt
    assert product.dtype == dtype.numpy()
    expected = matrix.dequantized().T[rows]
    np.testing.assert_allclose(product, expected, rtol=1e-6 if dtype == onnx_ir.DataType.FLOAT else 2e-3)


def test_scales_are_of_the_weight_s_own_type_unless_told_otherwise(tmp_path: Path) -> None:
    weight = np.random.default_rng(4).standard_normal((64, 8)).astype(np.float32) * 1e-3
    weight[:, 3] = 1e-20  # a scale below the least float16
    matrix = quantize_matrix(weight, 8, 32, symmetric=True)
    for given, own, expected in (
        (None, onnx_ir.DataType.FLOAT16, np.float16),
        (onnx_ir.DataType.FLOAT, onnx_ir.DataType.FLOAT16, np.float32),
        (onnx_ir.DataType.BFLOAT16, onnx_ir.DataType.FLOAT, ml_dtypes.bfloat16),
    ):
        model = one_node_graph(weight, "MatMul", own)
        quantize_graph(model, {"weight": matrix}, given)
        constant = model.graph.initializers["weight.scales"].const_value
        assert constant is not None
        scales = constant.numpy()
        assert scales.dtype == expected
        assert scales.astype(np.float32).min() > 0
    model = one_node_graph(weight, "MatMul", onnx_ir.DataType.FLOAT16)
    quantize_graph(model, {"weight": matrix})
    rows = np.ones((1, 64), np.float16)
    product, _ = run(model, tmp_path, rows)
    np.testing.assert_allclose(product, rows.astype(np.float32) @ matrix.dequantized(), atol=1e-3)


def test_the_whole_model_still_answers_alike() -> None:
    tokens = torch.arange(24)[None] * 7 % VOCAB
    exact = tiny_model()(input_ids=tokens).logits[..., :VOCAB]
    made = decoder()
    quantize_decoder(made, asked(embedding_bits=8))
    made.model.set_attn_implementation("eager")
    rounded = made.model(input_ids=tokens).logits[..., :VOCAB]
    assert not torch.equal(exact, rounded)
    assert (exact - rounded).abs().mean() < 0.05 * exact.abs().mean()
