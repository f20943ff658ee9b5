"""Which of a decoder's matrices become integers, and how a graph that runtimes read holds them.

A quantised matrix product is opset-21 ``DequantizeLinear`` feeding ``MatMul``: TensorRT reads it, and ONNX
Runtime rewrites it to its ``MatMulNBits`` kernel. A quantised embedding is gathered in integers and scaled
after, so that a step unpacks its own rows only.
"""

from __future__ import annotations

import logging

import ml_dtypes
import numpy as np
import onnx_ir
import torch
from numpy.typing import NDArray
from torch import nn

from acespec.export.graph import MatrixProduct
from acespec.export.quantized_matrix import QuantizedMatrix, quantize_matrix
from acespec.models.exportable import ExportableDecoder
from acespec.models.manifest import Quantization

logger = logging.getLogger(__name__)

STORAGE = {
    (4, False): onnx_ir.DataType.UINT4,
    (4, True): onnx_ir.DataType.INT4,
    (8, False): onnx_ir.DataType.UINT8,
    (8, True): onnx_ir.DataType.INT8,
}
"""How a graph stores values, by (bits, symmetric)."""


@torch.no_grad()
def quantize_decoder(decoder: ExportableDecoder, quantization: Quantization) -> dict[str, QuantizedMatrix]:
    """Quantise the decoder's matrices as asked and put what each then stands for in its place.

    So PyTorch computes what the graph will. Returns the matrices ``[in, out]`` by the name their weights have
    in the graph; the embedding is the matrix from a hidden state to its tokens, with one scale a token. A
    matrix that does not divide into blocks stays as it is.
    """
    matrices = {}
    head = decoder.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    for path, module in decoder.named_modules():
        if not isinstance(module, MatrixProduct):
            continue
        bits = quantization.head_bits if module is head else quantization.bits
        if bits is None:
            continue
        rows = module.weight.shape[0]
        if quantization.block is not None and rows % quantization.block:
            logger.info("%s stays in floats: %d inputs make no blocks of %d", path, rows, quantization.block)
            continue
        matrix = quantize_matrix(module.weight.numpy(), bits, quantization.block, quantization.symmetric)
        module.weight.copy_(torch.from_numpy(matrix.dequantized()))
        matrices[f"{path}.weight"] = matrix
    if quantization.embedding_bits is not None:
        path, weight = _embedding(decoder)
        matrix = quantize_matrix(weight.numpy().T, quantization.embedding_bits, None, symmetric=True)
        weight.copy_(torch.from_numpy(matrix.dequantized()).T)
        matrices[f"{path}.weight"] = matrix
    return matrices


def _embedding(decoder: ExportableDecoder) -> tuple[str, torch.Tensor]:
    """Name and weight ``[tokens, hidden]`` of the table of tokens."""
    table = decoder.model.get_input_embeddings()
    (path,) = (path for path, module in decoder.named_modules() if module is table)
    assert isinstance(table, nn.Embedding), type(table)
    return path, table.weight


def quantize_graph(
    model: onnx_ir.Model,
    matrices: dict[str, QuantizedMatrix],
    scale_type: onnx_ir.DataType | None = None,
) -> None:
    """Replace the weights named in ``matrices`` by their quantised form, in place.

    What multiplied by a weight multiplies by its dequantised values instead; what gathered rows of it gathers
    rows of integers. Scales, and so dequantised values, are of ``scale_type``; None: of the weight's own.
    """
    for name, matrix in matrices.items():
        weight = model.graph.initializers[name]
        (use,) = weight.uses()  # a shared weight would be dequantised at every step: no kernel takes it
        dtype = scale_type or weight.dtype
        assert dtype is not None, name
        if (use.node.op_type, use.idx) == ("MatMul", 1):
            _dequantize_operand(model.graph, use.node, weight, matrix, dtype)
        else:
            assert (use.node.op_type, use.idx) == ("Gather", 0), (name, use.node.op_type)
            _gather_integers(model.graph, use.node, weight, matrix, dtype)
        del model.graph.initializers[name]


def _dequantize_operand(
    graph: onnx_ir.Graph,
    product: onnx_ir.Node,
    weight: onnx_ir.Value,
    matrix: QuantizedMatrix,
    dtype: onnx_ir.DataType,
) -> None:
    storage = STORAGE[matrix.bits, matrix.symmetric]
    operands = [
        _lazy_initializer(graph, f"{weight.name}.values", matrix.values, storage),
        _initializer(graph, f"{weight.name}.scales", _scales(matrix.scales, dtype)),
    ]
    if matrix.zero_points is not None:
        zero_points = matrix.zero_points.astype(storage.numpy())
        operands.append(_initializer(graph, f"{weight.name}.zero_points", zero_points))
    blocks = {"axis": 1} if matrix.block is None else {"axis": 0, "block_size": matrix.block}
    dequantize = onnx_ir.node("DequantizeLinear", operands, blocks)
    dequantized = dequantize.outputs[0]
    dequantized.name = f"{weight.name}.dequantized"
    dequantized.shape, dequantized.type = weight.shape, onnx_ir.TensorType(dtype)
    graph.insert_before(product, dequantize)
    product.replace_input_with(1, dequantized)


def _gather_integers(
    graph: onnx_ir.Graph,
    gather: onnx_ir.Node,
    weight: onnx_ir.Value,
    matrix: QuantizedMatrix,
    dtype: onnx_ir.DataType,
) -> None:
    """Rows as integers times their scales. Not ``DequantizeLinear``, whose scales TensorRT wants constant."""
    assert matrix.block is None, weight.name
    assert matrix.symmetric, weight.name
    tokens = gather.inputs[1]
    values = _lazy_initializer(graph, f"{weight.name}.values", matrix.values.T, onnx_ir.DataType.INT8)
    scales = _initializer(graph, f"{weight.name}.scales", _scales(matrix.scales, dtype)[:, None])
    rows, row_scales = (onnx_ir.node("Gather", [table, tokens], {"axis": 0}) for table in (values, scales))
    cast = onnx_ir.node("Cast", [rows.outputs[0]], {"to": dtype.value})
    product = onnx_ir.node("Mul", [cast.outputs[0], row_scales.outputs[0]])
    onnx_ir.convenience.replace_nodes_and_values(
        graph, gather, [gather], [rows, row_scales, cast, product], gather.outputs, product.outputs
    )
    product.outputs[0].type = onnx_ir.TensorType(dtype)


def _scales(scales: NDArray[np.float32], dtype: onnx_ir.DataType) -> NDArray[np.generic]:
    """Scales of another type; none becomes zero, which TensorRT refuses."""
    least = float(ml_dtypes.finfo(dtype.numpy()).smallest_subnormal)  # type: ignore[no-untyped-call]
    return np.maximum(scales, least).astype(dtype.numpy())


def _lazy_initializer(
    graph: onnx_ir.Graph,
    name: str,
    values: NDArray[np.int8] | NDArray[np.uint8],
    storage: onnx_ir.DataType,
) -> onnx_ir.Value:
    """An initializer that becomes ``storage`` when it is written: until then no second copy is held."""

    def stored() -> onnx_ir.TensorProtocol:
        return onnx_ir.tensor(np.ascontiguousarray(values).astype(storage.numpy(), copy=False), name=name)

    shape = onnx_ir.Shape(values.shape)
    return _register(graph, name, shape, onnx_ir.LazyTensor(stored, storage, shape, name=name))


def _initializer(graph: onnx_ir.Graph, name: str, array: NDArray[np.generic]) -> onnx_ir.Value:
    return _register(graph, name, onnx_ir.Shape(array.shape), onnx_ir.tensor(array, name=name))


def _register(
    graph: onnx_ir.Graph, name: str, shape: onnx_ir.Shape, tensor: onnx_ir.TensorProtocol
) -> onnx_ir.Value:
    kind = onnx_ir.TensorType(tensor.dtype)
    value = onnx_ir.Value(name=name, shape=shape, type=kind, const_value=tensor)
    graph.register_initializer(value)
    return value
