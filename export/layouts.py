"""Heads ``[1, H, N, D]`` and rows ``[1, N, H*D]``: one as the other, and no detour through both."""

from __future__ import annotations

import onnx_ir
from onnx_ir import Value
from onnx_ir.tape import Tape

from acespec.export.graph_constants import ints
from acespec.export.graph_patterns import made_by

SWAP_HEADS = (0, 2, 1, 3)
"""Exchanges the heads and the tokens of ``[1, H, N, D]``, and back."""


def to_rows(graph: onnx_ir.Graph, tape: Tape, heads: Value) -> Value:
    """``[1, H, N, D]`` as ``[1, N, H*D]``."""
    assert heads.shape is not None
    _, num_heads, tokens, head_dim = heads.shape
    assert isinstance(num_heads, int) and isinstance(head_dim, int)  # noqa: PT018
    swapped = _swap_heads(tape, heads)
    rows = tape.op("Reshape", [swapped, ints(graph, 1, -1, num_heads * head_dim)])
    rows.type, rows.shape = heads.type, onnx_ir.Shape([1, tokens, num_heads * head_dim])
    return rows


def to_heads(graph: onnx_ir.Graph, tape: Tape, rows: Value, num_heads: int) -> Value:
    """``[1, N, H*D]`` as ``[1, H, N, D]``."""
    assert rows.shape is not None
    _, tokens, width = rows.shape
    assert isinstance(width, int)
    split = tape.op("Reshape", [rows, ints(graph, 1, -1, num_heads, width // num_heads)])
    split.type, split.shape = rows.type, onnx_ir.Shape([1, tokens, num_heads, width // num_heads])
    return _swap_heads(tape, split)


def _swap_heads(tape: Tape, value: Value) -> Value:
    assert value.shape is not None
    swapped = tape.op("Transpose", [value], {"perm": SWAP_HEADS})
    swapped.type, swapped.shape = value.type, onnx_ir.Shape([value.shape[axis] for axis in SWAP_HEADS])
    return swapped


def cancel_layouts(graph: onnx_ir.Graph) -> None:
    """Let pairs of transpositions, and of reshapings, that undo each other be skipped by what uses them."""
    for node in list(graph):
        source = _undone(node)
        if source is not None:
            onnx_ir.convenience.replace_all_uses_with(node.outputs[0], source)


def _undone(node: onnx_ir.Node) -> Value | None:
    """What ``node`` restores, if the node before it is of its kind and did the opposite."""
    if node.op_type not in ("Transpose", "Reshape") or node.outputs[0].is_graph_output():
        return None
    before = made_by(node.inputs[0], node.op_type)
    source = None if before is None else before.inputs[0]
    if before is None or source is None:
        return None
    if node.op_type == "Transpose":
        first, second = (tuple(each.attributes["perm"].as_ints()) for each in (before, node))
        return source if [first[axis] for axis in second] == sorted(second) else None
    same = source.shape is not None and source.shape == node.outputs[0].shape
    return source if same else None
