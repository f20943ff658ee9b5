"""Products of eight-bit weights with activations rounded to eight bits, each row by its own scale.

One scale for a whole step would tie a token to its neighbours, and to what a bucket is padded with. With a
scale a row, a row of a product depends on that row alone, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import onnx_ir
from onnx_ir import Node, Value
from onnx_ir.tape import Tape

from acespec.export.graph import MatrixProduct
from acespec.export.graph_constants import initializer
from acespec.export.graph_patterns import (
    CONTRIB,
    attribute,
    made_by,
    nodes_of,
    remove_unused,
    size_of,
    take_over,
)
from acespec.export.quantized_matrix import QuantizedMatrix
from acespec.export.smooth import round_rows
from acespec.models.exportable import ExportableDecoder

LARGEST = 127
ZERO_POINT = 128
"""Activations are stored as 1 to 255: CPUs multiply unsigned by signed bytes, signed by signed only some."""


def round_activations(graph: onnx_ir.Graph) -> None:
    """Make products with symmetric eight-bit weights, one scale an output, products of integers, in place.

    ``rows @ weight`` becomes ``(codes @ values) * output scales * row scales``, ``codes`` being
    ``round(rows / row scales)`` and a row's scale its largest magnitude over 127. Rows that several products
    share are rounded once. A row of zeros gives zeros: its codes are arbitrary, its scale is zero. Other
    products stay as they are.
    """
    rounded: dict[Value, tuple[Value, Value]] = {}
    shared = _SharedConstants(graph)
    for node in nodes_of(graph, "MatMul"):
        dequantize = made_by(node.inputs[1], "DequantizeLinear")
        rows = node.inputs[0]
        if dequantize is None or rows is None or not _has_output_scales(dequantize):
            continue
        values, scales = dequantize.inputs
        if rows not in rounded:
            rounded[rows] = _round_rows(graph, node, rows, shared)
        codes, row_scales = rounded[rows]
        tape = Tape()
        product = tape.op(
            "MatMulIntegerToFloat",
            [codes, values, shared.one, scales, shared.zero_point],
            domain=CONTRIB,
        )
        scaled = tape.op("Mul", [product, row_scales])
        graph.insert_before(node, tape.nodes)
        take_over(scaled, node.outputs[0])
    remove_unused(graph)


def _has_output_scales(dequantize: Node) -> bool:
    """Whether what is dequantised are signed bytes ``[in, out]`` with one scale an output."""
    values, *others = dequantize.inputs
    if values is None or values.dtype != onnx_ir.DataType.INT8 or len(others) != 1 or others[0] is None:
        return False
    scales = others[0]
    axis, block = attribute(dequantize, "axis"), attribute(dequantize, "block_size")
    return axis in (1, -1) and not block and scales.shape is not None and len(scales.shape) == 1


class _SharedConstants:
    def __init__(self, graph: onnx_ir.Graph) -> None:
        self._graph = graph
        self.one = initializer(graph, "acespec.one_scale", np.float32(1))
        self.zero_point = initializer(graph, "acespec.zero_point", np.uint8(ZERO_POINT))
        self.unit = initializer(graph, "acespec.unit", np.float32(1 / LARGEST))
        self.last_axis = initializer(graph, "acespec.last_axis", np.array([-1], np.int64))
        self._zero_points: dict[tuple[object, ...], Value] = {}

    def zero_points(self, tape: Tape, row_scales: Value) -> Value:
        """A zero point for each of ``row_scales``; made once for all of the same shape."""
        assert row_scales.shape is not None
        shape = tuple(row_scales.shape)
        if shape not in self._zero_points:
            self._zero_points[shape] = tape.op("Expand", [self.zero_point, tape.op("Shape", [row_scales])])
        return self._zero_points[shape]


def _round_rows(
    graph: onnx_ir.Graph, before: Node, rows: Value, shared: _SharedConstants
) -> tuple[Value, Value]:
    """Codes ``[..., N, in]`` uint8 of ``rows`` and their scales ``[..., N, 1]``."""
    assert rows.shape is not None
    tape = Tape()
    largest = tape.op("ReduceMax", [tape.op("Abs", [rows]), shared.last_axis], {"keepdims": 1})
    row_scales = tape.op("Mul", [largest, shared.unit])
    row_scales.type, row_scales.shape = rows.type, onnx_ir.Shape([*rows.shape[:-1], 1])
    codes = tape.op(
        "QuantizeLinear",
        [rows, row_scales, shared.zero_points(tape, row_scales)],
        {"axis": -1, "block_size": size_of(rows, -1)},
    )
    graph.insert_before(before, tape.nodes)
    return codes, row_scales


@contextmanager
def rounded_activations(
    decoder: ExportableDecoder, matrices: Mapping[str, QuantizedMatrix]
) -> Iterator[None]:
    """Let PyTorch round, meanwhile, the activations that go into the quantised products of ``decoder``."""

    hooks = [
        module.register_forward_pre_hook(lambda _, inputs: (round_rows(inputs[0]),))
        for path, module in decoder.named_modules()
        if isinstance(module, MatrixProduct) and f"{path}.weight" in matrices
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
