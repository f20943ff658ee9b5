"""Rotary position embedding as one operator of ONNX Runtime, where a model rotates the usual halves."""

from __future__ import annotations

import onnx_ir
from onnx_ir import Node, Value
from onnx_ir.tape import Tape

from acespec.export.graph_constants import ints
from acespec.export.graph_patterns import (
    CONTRIB,
    attribute,
    made_by,
    nodes_of,
    only_use,
    pairs,
    size_of,
    small_constant,
    take_over,
)
from acespec.export.layouts import to_heads, to_rows


def fuse_rotations(graph: onnx_ir.Graph) -> None:
    """Write ``x * cos + rotate_half(x) * sin`` over heads ``[1, H, N, D]`` as ``RotaryEmbedding``, in place.

    ``cos`` and ``sin`` ``[1, 1, N, D]`` stay as the model computes them from its positions, once a step: the
    operator is given their halves as its table, and looks token n up in row n. What has another form stays.
    """
    tables = _HalfTables(graph)
    for node in nodes_of(graph, "Add"):
        found = _match_rotation(node)
        if found is None:
            continue
        heads, cos, sin = found
        last, scale = _following_scale(node)
        num_heads = size_of(heads, 1)
        tape = Tape()
        rows = to_rows(graph, tape, heads)
        rotated = tape.op(
            "RotaryEmbedding",
            [rows, ints(graph, 0), tables.of(cos, scale), tables.of(sin, scale)],
            {"num_heads": num_heads},
            domain=CONTRIB,
        )
        rotated.type, rotated.shape = rows.type, rows.shape
        result = to_heads(graph, tape, rotated, num_heads)
        graph.insert_before(node, tape.nodes)
        take_over(result, last.outputs[0])


def _match_rotation(node: Node) -> tuple[Value, Value, Value] | None:
    """``x``, ``cos`` and ``sin`` of a rotation whose last node is ``node``."""
    for straight, turned in pairs(node):
        straight_product, turned_product = made_by(straight, "Mul"), made_by(turned, "Mul")
        if straight_product is None or turned_product is None:
            continue
        for half_turn, sin in pairs(turned_product):
            heads = _turned_heads(half_turn)
            if heads is None:
                continue
            for other, cos in pairs(straight_product):
                if other is heads and _is_table(cos, heads) and _is_table(sin, heads):
                    return heads, cos, sin
    return None


def _turned_heads(value: Value) -> Value | None:
    """``x`` of a ``value`` that is ``concat(-x[..., D/2:], x[..., :D/2])``."""
    turn = made_by(value, "Concat")
    if turn is None or len(turn.inputs) != 2 or attribute(turn, "axis") not in (-1, 3):
        return None
    negated, lower = made_by(turn.inputs[0], "Neg"), made_by(turn.inputs[1], "Slice")
    upper = None if negated is None else made_by(negated.inputs[0], "Slice")
    if upper is None or lower is None or upper.inputs[0] is not lower.inputs[0]:
        return None
    heads = lower.inputs[0]
    if heads is None or heads.shape is None or len(heads.shape) != 4:
        return None
    width = heads.shape[3]
    if not isinstance(width, int) or width % 2 or not isinstance(heads.shape[1], int):
        return None
    halves = _slice_of_last_axis(lower, width), _slice_of_last_axis(upper, width)
    return heads if halves == ((0, width // 2), (width // 2, width)) else None


def _slice_of_last_axis(node: Node, width: int) -> tuple[int, int] | None:
    """First and last (exclusive) index that a ``Slice`` takes of the last of four axes."""
    numbers = [small_constant(value) for value in node.inputs[1:]]
    if len(numbers) < 3 or any(array is None or array.size != 1 for array in numbers):
        return None
    first, last, axis, *steps = (int(array.item()) for array in numbers if array is not None)
    if axis not in (-1, 3) or steps not in ([], [1]):
        return None
    return first, min(last, width)


def _is_table(value: Value, heads: Value) -> bool:
    """Whether ``value`` is ``[1, 1, N, D]`` and its two halves along D are the same."""
    assert heads.shape is not None
    if value.shape is None or len(value.shape) != 4:
        return False
    if tuple(value.shape)[:2] != (1, 1) or value.shape[3] != heads.shape[3]:
        return False
    return _repeats(value)


def _repeats(value: Value | None) -> bool:
    """Whether ``value`` is computed element by element from a concatenation of something with itself."""
    node = None if value is None else value.producer()
    if node is None:
        return False
    if node.op_type == "Concat":
        return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1] and attribute(node, "axis") == -1
    if node.op_type in ("Cos", "Sin", "Cast", "Unsqueeze"):
        return _repeats(node.inputs[0])
    if node.op_type == "Mul":
        return any(
            _repeats(one) and (number := small_constant(other)) is not None and number.size == 1
            for one, other in pairs(node)
        )
    return False


def _following_scale(node: Node) -> tuple[Node, Value | None]:
    """The multiplication by a constant that alone uses what ``node`` gives, and the constant; or ``node``."""
    product = only_use(node.outputs[0])
    if product is not None and product.op_type == "Mul":
        for rotated, scale in pairs(product):
            number = small_constant(scale)
            if rotated is node.outputs[0] and number is not None and number.size == 1:
                return product, scale
    return node, None


class _HalfTables:
    """First halves along D of tables ``[1, 1, N, D]``, scaled, as ``[N, D/2]``; each made once."""

    def __init__(self, graph: onnx_ir.Graph) -> None:
        self._graph = graph
        self._made: dict[tuple[Value, Value | None], Value] = {}

    def of(self, table: Value, scale: Value | None) -> Value:
        if (table, scale) not in self._made:
            half = size_of(table, 3) // 2
            first, last, axis = (ints(self._graph, number) for number in (0, half, 3))
            tape = Tape()
            cut = tape.op("Slice", [table, first, last, axis])
            scaled = cut if scale is None else tape.op("Mul", [cut, scale])
            self._made[table, scale] = tape.op("Reshape", [scaled, ints(self._graph, -1, half)])
            producer = table.producer()
            assert producer is not None
            self._graph.insert_after(producer, tape.nodes)
        return self._made[table, scale]
