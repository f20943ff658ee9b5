"""Graphs with fixed shapes: one a bucket, all reading the weights of the graph they were made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir


def save_fixed(source: Path, file: Path, sizes: Mapping[str, int]) -> None:
    """Write the graph of ``source`` to ``file`` beside it with its dimensions N, M, S, T, R as in ``sizes``.

    Weights stay in the external file of ``source``, which ``file`` refers to.
    """
    assert file.parent == source.parent, (file, source)
    model = onnx_ir.load(source)
    for value in (*model.graph.inputs, *model.graph.outputs):
        assert value.shape is not None
        value.shape = onnx_ir.Shape(
            [size if isinstance(size, int) else sizes[str(size.value)] for size in value.shape]
        )
    for node in model.graph:
        for output in node.outputs:
            if not output.is_graph_output():
                output.shape = None  # inferred anew from the fixed inputs
    onnx_ir.save(model, file)
