"""Rotation inside ONNX Runtime's attention operator, which then takes queries, keys and values as one.

Every operator of a step is started by one thread, with cold caches behind each large product: a layer has
three fewer, which takes 2 to 4 % off a one-token step of a small model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir
import onnxruntime as ort
from numpy.typing import NDArray
from onnx_ir import Value

from acespec.export.graph_constants import initializer
from acespec.export.graph_patterns import CONTRIB, made_by, nodes_of, remove_unused

Table = NDArray[np.float32]


def rotate_inside(graph: onnx_ir.Graph, opsets: Mapping[str, int], context: int, rows: int) -> None:
    """Let each ``GroupQueryAttention`` rotate its queries and keys itself, in place.

    Its tables are constants, one row for each of ``context`` positions and empty ones up to ``rows``, for the
    operator wants as many as there are rows in its buffer. It has one pair of tables for queries and keys:
    the scale that queries had in theirs becomes its square root in both, and so in the keys it keeps. Where
    one ``Split`` gave queries, keys and values, the operator is handed what was split. Attention whose tables
    are not of this kind, or whose heads it cannot rotate, stays as it is.
    """
    tables = _ConstantTables(graph, opsets, context, rows)
    for node in nodes_of(graph, "GroupQueryAttention", CONTRIB):
        query, key = (made_by(value, "RotaryEmbedding", CONTRIB) for value in node.inputs[:2])
        if query is None or key is None:
            continue
        cos, sin = (tables.shared_by(query.inputs[index], key.inputs[index]) for index in (2, 3))
        if cos is None or sin is None:
            continue
        parts = (query.inputs[0], key.inputs[0], node.inputs[2])
        whole = _split_whole(parts)
        operands = parts if whole is None else (whole, None, None)
        position_ids = next(value for value in graph.inputs if value.name == "position_ids")
        for index, operand in enumerate((*operands, *node.inputs[3:7], cos, sin, position_ids)):
            node.replace_input_with(index, operand)
        node.attributes.add(onnx_ir.AttrInt64("do_rotary", 1))
    remove_unused(graph)


def _split_whole(parts: tuple[Value | None, ...]) -> Value | None:
    """What ``parts`` are cut from, if they are all of it, in order."""
    split = made_by(parts[0], "Split")
    return split.inputs[0] if split is not None and tuple(split.outputs) == parts else None


class _ConstantTables:
    """Tables ``[N, D/2]`` that a step computes from its positions, as constants ``[rows, D/2]``."""

    def __init__(self, graph: onnx_ir.Graph, opsets: Mapping[str, int], context: int, rows: int) -> None:
        self._graph, self._opsets = graph, opsets
        self._context, self._rows = context, rows
        self._computed: dict[Value, Table | None] = {}
        self._made: dict[tuple[Value, Value], Value | None] = {}

    def shared_by(self, query: Value | None, key: Value | None) -> Value | None:
        """One table in place of ``query``'s and ``key``'s, or None where there is none."""
        if query is None or key is None:
            return None
        if (query, key) not in self._made:
            self._made[query, key] = self._share(query, key)
        return self._made[query, key]

    def _share(self, query: Value, key: Value) -> Value | None:
        scaled, plain = self._table(query), self._table(key)
        if scaled is None or plain is None or scaled.shape != plain.shape or plain.shape[1] % 8:
            return None
        peak = np.unravel_index(np.abs(plain).argmax(), plain.shape)
        scale = scaled[peak] / plain[peak]
        if not scale > 0 or not np.allclose(scaled, scale * plain, rtol=1e-6, atol=1e-7):
            return None
        table = np.zeros((self._rows, plain.shape[1]), np.float32)
        table[: self._context] = plain * np.sqrt(scale)
        return initializer(self._graph, f"acespec.table.{len(self._made)}", table)

    def _table(self, value: Value) -> Table | None:
        if value not in self._computed:
            self._computed[value] = self._compute(value)
        return self._computed[value]

    def _compute(self, value: Value) -> Table | None:
        """The table of all positions, if a position's row is the same whatever the others are."""
        try:
            part = onnx_ir.convenience.extract(self._graph, ["position_ids"], [value])
        except ValueError:  # it depends on more than positions
            return None
        part.opset_imports.update(self._opsets)
        proto = onnx_ir.to_proto(onnx_ir.Model(part, ir_version=10))
        session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])

        def rows_of(positions: NDArray[np.int64]) -> Table:
            (table,) = session.run(None, {"position_ids": positions[None]})
            return np.asarray(table, np.float32)

        table = rows_of(np.arange(self._context))
        alone = np.array([1, self._context // 2, self._context - 1])
        each = np.concatenate([rows_of(alone[index : index + 1]) for index in range(len(alone))])
        return table if np.allclose(each, table[alone], rtol=1e-5, atol=1e-6) else None
