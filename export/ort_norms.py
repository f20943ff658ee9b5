"""RMS normalisation as one operator of ONNX Runtime, joined with the addition before it."""

from __future__ import annotations

import onnx_ir
from onnx_ir import Node, Value

from acespec.export.graph_patterns import (
    CONTRIB,
    attribute,
    is_scalar,
    made_by,
    nodes_of,
    pairs,
    small_constant,
    take_over,
)


def fuse_norms(graph: onnx_ir.Graph) -> None:
    """Write ``x / sqrt(mean(x^2) + epsilon) * weight`` as one operator, in place.

    Where ``x`` is the sum of two values of its shape, as it is behind a residual connection, the sum becomes
    the operator's too. What has another form stays as it is.
    """
    for node in nodes_of(graph, "Mul"):
        found = _match_norm(node)
        if found is None:
            continue
        source, weight, epsilon = found
        total = _residual_sum(source)
        if total is None:
            fused = onnx_ir.node(
                "SimplifiedLayerNormalization", [source, weight], {"axis": -1, "epsilon": epsilon}
            )
            graph.insert_before(node, fused)
        else:
            fused = onnx_ir.node(
                "SkipSimplifiedLayerNormalization",
                [*total.inputs, weight],
                {"epsilon": epsilon},
                num_outputs=4,
                domain=CONTRIB,
            )
            graph.insert_before(total, fused)
            take_over(fused.outputs[3], source)
        take_over(fused.outputs[0], node.outputs[0])


def _match_norm(node: Node) -> tuple[Value, Value, float] | None:
    """``x``, ``weight`` ``[D]`` and ``epsilon`` of a normalisation whose last node is ``node``."""
    for quotient, weight in pairs(node):
        division = made_by(quotient, "Div")
        if division is None or weight.shape is None or len(weight.shape) != 1:
            continue
        source, root = division.inputs
        epsilon = _root_of_mean_square(root, source)
        if source is not None and source.shape is not None and epsilon is not None:
            return (source, weight, epsilon) if source.shape[-1] == weight.shape[0] else None
    return None


def _root_of_mean_square(root: Value | None, source: Value | None) -> float | None:
    """Epsilon, if ``root`` is ``sqrt(mean(source^2) + epsilon)`` over the last axis."""
    taken = made_by(root, "Sqrt")
    summed = None if taken is None else made_by(taken.inputs[0], "Add")
    if summed is None or source is None or source.shape is None:
        return None
    for average, epsilon in pairs(summed):
        mean, number = made_by(average, "ReduceMean"), small_constant(epsilon)
        if mean is None or number is None or number.size != 1 or attribute(mean, "keepdims") not in (None, 1):
            continue
        power = made_by(mean.inputs[0], "Pow")
        last = any(is_scalar(mean.inputs[1], axis) for axis in (-1, len(source.shape) - 1))
        if power is not None and last and power.inputs[0] is source and is_scalar(power.inputs[1], 2):
            return float(number.item())
    return None


def _residual_sum(value: Value) -> Node | None:
    """The addition ``value`` comes from, if it is of two values ``[1, N, D]`` alike and no output."""
    total = made_by(value, "Add")
    if total is None or value.is_graph_output() or value.shape is None or len(value.shape) != 3:
        return None
    alike = all(addend is not None and addend.shape == value.shape for addend in total.inputs)
    return total if alike else None
