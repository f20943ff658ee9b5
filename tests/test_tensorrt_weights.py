"""Quantised weights as TensorRT wants them: what is refused in advance, and engines of all that is not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir
import pytest

from acespec.errors import AcespecError
from acespec.export.quantize import quantize_graph
from acespec.export.quantized_matrix import quantize_matrix
from acespec.export.tensorrt_weights import refuse_for_tensorrt, tensorrt_quantization
from acespec.models.manifest import Quantization
from one_node_graph import one_node_graph

FLOAT16 = onnx_ir.DataType.FLOAT16


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_the_default_is_not_refused(precision: Any) -> None:
    quantization = tensorrt_quantization(precision)
    assert f"int{quantization.bits}" == precision
    refuse_for_tensorrt(quantization)


def test_zero_points_and_activations_are_refused() -> None:
    plain = {"bits": 8, "block": None, "symmetric": True, "head_bits": 8}
    with pytest.raises(AcespecError, match="symmetrically"):
        refuse_for_tensorrt(Quantization.model_validate(plain | {"symmetric": False}))
    with pytest.raises(AcespecError, match="weights alone"):
        refuse_for_tensorrt(Quantization.model_validate(plain | {"activation_bits": 8}))


def engine_bytes(model: onnx_ir.Model) -> int:
    """Size of the engine TensorRT for RTX builds of ``model`` for compute capability 8.6."""
    trt = pytest.importorskip("tensorrt_rtx_bindings.tensorrt_rtx")

    class Silent(trt.ILogger):  # type: ignore[misc]
        def log(self, *_: object) -> None: ...

    logger = Silent()
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    parsed = parser.parse(onnx_ir.to_proto(model).SerializeToString())
    assert parsed, [parser.get_error(index).desc() for index in range(parser.num_errors)]
    config = builder.create_builder_config()
    given = network.get_input(0)
    profile = builder.create_optimization_profile()
    profile.set_shape(given.name, *((width, given.shape[1]) for width in (1, 8, 16)))
    config.add_optimization_profile(profile)
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    return int(plan.nbytes)


@pytest.mark.parametrize("dtype", [onnx_ir.DataType.FLOAT, FLOAT16, onnx_ir.DataType.BFLOAT16])
def test_an_engine_keeps_the_integers_of_every_symmetric_form(dtype: onnx_ir.DataType) -> None:
    weight = np.random.default_rng(0).standard_normal((512, 768)).astype(np.float32)
    for bits, block in itertools.product((4, 8), (32, 128, None)):
        model = one_node_graph(weight, "MatMul", dtype)
        quantize_graph(model, {"weight": quantize_matrix(weight, bits, block, symmetric=True)})
        # Less than half of what two bytes a weight would take; TensorRT widens four bits without blocks.
        assert engine_bytes(model) < weight.size * (2 if bits == 8 else 1), (bits, block)


def test_an_engine_keeps_the_integers_of_an_embedding() -> None:
    table = np.random.default_rng(0).standard_normal((4096, 256)).astype(np.float32)
    matrix = quantize_matrix(np.ascontiguousarray(table.T), 8, None, symmetric=True)
    model = one_node_graph(table, "Gather", FLOAT16)
    quantize_graph(model, {"weight": matrix}, for_tensorrt=True)
    assert engine_bytes(model) < 1.2 * table.size
