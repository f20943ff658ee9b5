"""Weights in four or eight bits: blocks of 32 along the input, each with a scale and a zero point.

A quantised matrix product is opset-21 block ``DequantizeLinear`` feeding ``MatMul``: TensorRT reads it, and
ONNX Runtime rewrites it to its ``MatMulNBits`` kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir
import torch
from numpy.typing import NDArray

from acespec.export.graph import MatrixProduct
from acespec.models.exportable import ExportableDecoder

BLOCK = 32
# What the range of a block is multiplied by, tried in turn: in four bits clipping an outlier often pays.
RANGE_FACTORS = {4: (1.06, 1.03, 1.0, 0.97, 0.94, 0.91, 0.88, 0.85), 8: (1.0,)}
LAYER_BITS = {"int4": 4, "int8": 8}
"""Bits of the layers' weights by precision."""
HEAD_BITS = 8
"""The head chooses among all tokens and suffers most from four bits, which are not faster there either."""


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix ``[in, out]`` that stands for ``(values - zero_points) * scales``, block by block."""

    bits: int
    values: NDArray[np.uint8]  # [in, out]
    scales: NDArray[np.float32]  # [in / BLOCK, out]
    zero_points: NDArray[np.uint8]  # [in / BLOCK, out]

    def dequantized(self) -> NDArray[np.float32]:
        """The matrix ``[in, out]`` it stands for."""
        zero_points = np.repeat(self.zero_points, BLOCK, axis=0).astype(np.float32)
        return (self.values.astype(np.float32) - zero_points) * np.repeat(self.scales, BLOCK, axis=0)


def quantize_matrix(weight: NDArray[np.float32], bits: int) -> QuantizedMatrix:
    """Quantise ``weight`` ``[in, out]``; ``in`` is a multiple of `BLOCK`.

    Each block gets the range, of those tried, whose squared error is least once its scale is the
    least-squares one.
    """
    assert weight.shape[0] % BLOCK == 0, weight.shape
    top = 2**bits - 1
    blocks = weight.reshape(-1, BLOCK, weight.shape[1])  # [B, BLOCK, out]
    low = np.minimum(blocks.min(axis=1), 0)
    span = np.maximum(np.maximum(blocks.max(axis=1), 0) - low, np.finfo(np.float32).tiny * top)
    zeros = np.rint(-low / span * top)  # [B, out]
    values = np.zeros(blocks.shape, np.uint8)
    scales = np.zeros(low.shape, np.float32)
    best = np.full(low.shape, -1, np.float32)
    for factor in RANGE_FACTORS[bits]:
        codes = np.clip(
            np.rint(blocks * (top / (span * factor))[:, None]), -zeros[:, None], top - zeros[:, None]
        )
        along, square = (codes * blocks).sum(axis=1), np.square(codes).sum(axis=1)
        scale = along / np.maximum(square, 1)
        explained = along * scale  # squared error = |block|^2 - explained
        better = explained > best
        values = np.where(better[:, None], codes + zeros[:, None], values).astype(np.uint8)
        scales = np.where(better, scale, scales)
        best = np.where(better, explained, best)
    return QuantizedMatrix(bits, values.reshape(weight.shape), scales, zeros.astype(np.uint8))


@torch.no_grad()
def quantize_decoder(decoder: ExportableDecoder, precision: str) -> dict[str, QuantizedMatrix]:
    """Quantise every matrix product of the decoder and put what it then stands for in its place.

    So PyTorch computes what the graph will. Returns the matrices by the name their weights have in the
    graph. A matrix that does not divide into blocks stays as it is.
    """
    head = decoder.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    matrices = {}
    for name, module in decoder.named_modules():
        if isinstance(module, MatrixProduct) and module.weight.shape[0] % BLOCK == 0:
            bits = HEAD_BITS if module is head else LAYER_BITS[precision]
            matrix = quantize_matrix(module.weight.numpy(), bits)
            module.weight.copy_(torch.from_numpy(matrix.dequantized()))
            matrices[f"{name}.weight"] = matrix
    return matrices


def quantize_graph(model: onnx_ir.Model, matrices: dict[str, QuantizedMatrix]) -> None:
    """Replace the weights named in ``matrices`` by their quantised form, in place.

    The ``MatMul`` by such a weight is fed by a ``DequantizeLinear`` instead.
    """
    graph = model.graph
    for name, matrix in matrices.items():
        weight = graph.initializers[name]
        storage = {4: ml_dtypes.uint4, 8: np.uint8}[matrix.bits]
        operands = [
            _initializer(graph, f"{name}.values", matrix.values.astype(storage)),
            _initializer(graph, f"{name}.scales", matrix.scales),
            _initializer(graph, f"{name}.zero_points", matrix.zero_points.astype(storage)),
        ]
        (use,) = weight.uses()  # a shared weight would be dequantised at every step: no kernel takes it
        assert (use.node.op_type, use.idx) == ("MatMul", 1), name
        dequantize = onnx_ir.node("DequantizeLinear", operands, {"axis": 0, "block_size": BLOCK})
        dequantized = dequantize.outputs[0]
        dequantized.name = f"{name}.dequantized"
        dequantized.type = weight.type
        graph.insert_before(use.node, dequantize)
        use.node.replace_input_with(use.idx, dequantized)
        del graph.initializers[name]


def _initializer(graph: onnx_ir.Graph, name: str, array: NDArray[np.generic]) -> onnx_ir.Value:
    tensor = onnx_ir.tensor(array, name=name)
    value = onnx_ir.Value(
        name=name,
        shape=onnx_ir.Shape(array.shape),
        type=onnx_ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value
