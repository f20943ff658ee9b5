"""Which of a decoder's matrices become integers, and how a graph that runtimes read holds them.

A quantised matrix product is opset-21 ``DequantizeLinear`` feeding ``MatMul``: TensorRT reads it, and ONNX
Runtime rewrites it to its ``MatMulNBits`` kernel where there are blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
import onnx_ir
import torch
from numpy.typing import NDArray
from torch import nn

from acespec.export.counted import ignore_count
from acespec.export.graph import MatrixProduct
from acespec.export.graph_constants import initializer, lazy_initializer
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
def quantize_decoder(
    decoder: ExportableDecoder,
    quantization: Quantization,
    for_tensorrt: bool = False,
    on_matrix: Callable[[int, int], object] = ignore_count,
) -> dict[str, QuantizedMatrix]:
    """Quantise the decoder's matrices as asked and put what each then stands for in its place.

    So PyTorch computes what the graph will. Returns the matrices ``[in, out]`` by the name their weights have
    in the graph; the embedding is the matrix from a hidden state to its tokens, with one scale a token. A
    matrix that does not divide into blocks stays as it is. ``for_tensorrt`` an eight-bit head beside four-bit
    layers has no blocks: early versions of TensorRT 10 take blocks of four bits alone. ``on_matrix`` is told
    before each product's matrix how many are done, and of how many.
    """
    matrices = {}
    head = decoder.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    products = [(path, each) for path, each in decoder.named_modules() if isinstance(each, MatrixProduct)]
    # The largest first: what it takes for a moment comes before the others' integers, not beside them.
    products.sort(key=lambda product: -product[1].weight.numel())
    for done, (path, module) in enumerate(products):
        on_matrix(done, len(products))
        bits: int | None = quantization.bits
        block = quantization.block
        if module is head:
            bits = quantization.head_bits
            block = None if for_tensorrt and (quantization.bits, bits) == (4, 8) else block
        if bits is None:
            continue
        rows = module.weight.shape[0]
        if block is not None and rows % block:
            logger.info("%s stays in floats: %d inputs make no blocks of %d", path, rows, block)
            continue
        matrix = quantize_matrix(module.weight.float().numpy(), bits, block, quantization.symmetric)
        _become(module.weight, matrix)
        matrices[f"{path}.weight"] = matrix
    if quantization.embedding_bits is not None:
        path, weight = _embedding(decoder)
        matrix = quantize_matrix(weight.float().numpy().T, quantization.embedding_bits, None, symmetric=True)
        _become(weight.T, matrix)
        matrices[f"{path}.weight"] = matrix
    return matrices


def _become(weight: torch.Tensor, matrix: QuantizedMatrix) -> None:
    """Put what ``matrix`` stands for into ``weight`` ``[in, out]``, without a second copy of it."""
    if weight.dtype is torch.bfloat16:  # NumPy has no such numbers
        weight.copy_(torch.from_numpy(matrix.dequantized()))
    else:
        matrix.dequantize_into(weight.detach().numpy())


def _embedding(decoder: ExportableDecoder) -> tuple[str, torch.Tensor]:
    """Name and weight ``[tokens, hidden]`` of the table of tokens."""
    table = decoder.model.get_input_embeddings()
    (path,) = (path for path, module in decoder.named_modules() if module is table)
    assert isinstance(table, nn.Embedding), type(table)
    return path, table.weight


def quantize_graph(
    model: onnx_ir.Model,
    matrices: Mapping[str, QuantizedMatrix],
    scale_type: onnx_ir.DataType | None = None,
    for_tensorrt: bool = False,
) -> None:
    """Replace the weights named in ``matrices`` by their quantised form, in place.

    What multiplied by a weight multiplies by its dequantised values instead. What gathered rows of it gathers
    rows of integers and scales them, or ``for_tensorrt``, which allows integers before ``DequantizeLinear``
    alone, rows of the dequantised table: TensorRT fuses the two, ONNX Runtime unpacks the table every step.
    Scales, and so dequantised values, are of ``scale_type``; None: of the weight's own.
    """
    for name, matrix in matrices.items():
        weight = model.graph.initializers[name]
        (use,) = weight.uses()  # a shared weight would be dequantised at every step: no kernel takes it
        dtype = scale_type or weight.dtype
        assert dtype is not None, name
        is_product = (use.node.op_type, use.idx) == ("MatMul", 1)
        assert is_product or (use.node.op_type, use.idx) == ("Gather", 0), (name, use.node.op_type)
        if is_product or for_tensorrt:
            _dequantize_operand(model.graph, use.node, weight, matrix, dtype)
        else:
            _gather_integers(model.graph, use.node, weight, matrix, dtype)
        del model.graph.initializers[name]


def _dequantize_operand(
    graph: onnx_ir.Graph,
    user: onnx_ir.Node,
    weight: onnx_ir.Value,
    matrix: QuantizedMatrix,
    dtype: onnx_ir.DataType,
) -> None:
    """``DequantizeLinear`` before a ``MatMul``, or, transposed, before a ``Gather``."""
    storage = STORAGE[matrix.bits, matrix.symmetric]
    gathers = user.op_type == "Gather"
    assert not gathers or matrix.block is None, weight.name
    stored = matrix.values.T if gathers else matrix.values
    operands = [
        _stored(graph, f"{weight.name}.values", stored, storage),
        initializer(graph, f"{weight.name}.scales", _scales(matrix.scales, dtype)),
    ]
    if matrix.zero_points is not None:
        zero_points = matrix.zero_points.astype(storage.numpy())
        operands.append(initializer(graph, f"{weight.name}.zero_points", zero_points))
    per_output = {"axis": 0 if gathers else 1}
    attributes = per_output if matrix.block is None else {"axis": 0, "block_size": matrix.block}
    dequantize = onnx_ir.node("DequantizeLinear", operands, attributes)
    dequantized = dequantize.outputs[0]
    dequantized.name = f"{weight.name}.dequantized"
    dequantized.shape, dequantized.type = weight.shape, onnx_ir.TensorType(dtype)
    graph.insert_before(user, dequantize)
    user.replace_input_with(0 if gathers else 1, dequantized)


def _gather_integers(
    graph: onnx_ir.Graph,
    gather: onnx_ir.Node,
    weight: onnx_ir.Value,
    matrix: QuantizedMatrix,
    dtype: onnx_ir.DataType,
) -> None:
    """Rows of integers times their scales, so that a step unpacks its own rows only."""
    assert matrix.block is None, weight.name
    assert matrix.symmetric, weight.name
    tokens = gather.inputs[1]
    values = _stored(graph, f"{weight.name}.values", matrix.values.T, onnx_ir.DataType.INT8)
    scales = initializer(graph, f"{weight.name}.scales", _scales(matrix.scales, dtype)[:, None])
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


def _stored(
    graph: onnx_ir.Graph, name: str, values: NDArray[np.int8] | NDArray[np.uint8], storage: onnx_ir.DataType
) -> onnx_ir.Value:
    """The constant ``values`` that the graph holds as ``storage``."""

    def numbers() -> NDArray[np.generic]:
        return np.ascontiguousarray(values).astype(storage.numpy(), copy=False)

    return lazy_initializer(graph, name, storage, onnx_ir.Shape(values.shape), numbers)
