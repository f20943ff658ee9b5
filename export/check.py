"""Proof that a graph computes what PyTorch does: the same tokens through both, logits compared row by row."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from transformers import PreTrainedModel

from acespec.errors import AcespecError
from acespec.export.graph import ExportError
from acespec.machine import byte_precision
from acespec.models.exportable import plain_logits
from acespec.models.manifest import MASKED, GraphVariant
from acespec.models.probe import Probe
from acespec.models.tolerances import Tolerance
from acespec.speculation import DraftLogits


class ExportShapeError(AcespecError):
    """A graph returns an output of another shape than PyTorch."""


class ExportToleranceError(AcespecError):
    """A graph returns logits too far from PyTorch's."""


class GraphRunner:
    """Runs a portable graph step by step the obvious way: the past is concatenated anew after each.

    The past begins with a masked row of zeros, as in the runtime: ONNX Runtime 1.23 fails on an empty one.
    """

    def __init__(
        self, graph: Path, variant: GraphVariant, accuracy_level: int = 1, prepack: bool = True
    ) -> None:
        """``accuracy_level`` is ONNX Runtime's for int4 weights: 1 multiplies in float32, 4 in int8.

        Raises `ExportError` when the graph does not load.
        """
        self._session = open_graph(graph, accuracy_level, prepack)
        self.step_seconds: list[tuple[int, float]] = []
        """Width and time of every step so far."""
        self._masks = variant.masks
        self._past = [spec for spec in variant.inputs if spec.name.startswith("past_")]
        types = {spec.name: spec.type for spec in self._session.get_inputs()}
        self._dtype = np.float16 if types[self._past[0].name] == "tensor(float16)" else np.float32

    def run(self, probe: Probe, widths: tuple[int, ...]) -> DraftLogits:
        """Logits of the probe's n tokens, fed in steps of ``widths`` tokens, which sum to n."""
        assert sum(widths) == probe.count, (widths, probe.count)
        past = [np.zeros((1, *map(int, spec.shape[1:])), self._dtype) for spec in self._past]
        steps: list[list[NDArray[Any]]] = []
        first = 0
        for width in widths:
            end = first + width
            step: dict[str, NDArray[Any]] = {
                "input_ids": probe.tokens[None, first:end],
                "position_ids": probe.positions[None, first:end],
                "logit_rows": np.arange(width),
            }
            for mask in self._masks:
                seen = np.pad(probe.seen(mask.window), ((0, 0), (1, 0)))  # nothing sees the row of zeros
                additive = np.where(seen[first:end, : 1 + end], 0, MASKED)
                step[mask.name] = additive[None, None].astype(self._dtype)
            step.update(zip((spec.name for spec in self._past), past, strict=True))
            began = time.perf_counter()
            outputs = self._session.run(None, step)
            self.step_seconds.append((width, time.perf_counter() - began))
            new = outputs[-len(past) :]
            past = [np.concatenate(pair) for pair in zip(past, new, strict=True)]
            steps.append(outputs[: -len(past)])
            first = end
        return joined(steps)


def joined(steps: Sequence[Sequence[NDArray[Any]]]) -> DraftLogits:
    """The rows of several steps: each ``logits``, or ``top_logits``, ``top_ids`` and ``log_sum_exp``."""
    columns = [np.concatenate(parts, axis=1)[0] for parts in zip(*steps, strict=True)]
    return DraftLogits(*columns)


def open_graph(graph: Path, accuracy_level: int = 1, prepack: bool = True) -> onnxruntime.InferenceSession:
    """A session on the CPU. Raises `ExportError` when the graph does not load.

    Weights that are not prepacked are slower, and not held twice.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_prepacking", "0" if prepack else "1")
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", str(accuracy_level))
    options.add_session_config_entry("session.x64quantprecision", byte_precision())
    try:
        return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors share no narrower base
        cause = " ".join(str(error).split())
        raise ExportError(
            f"ONNX Runtime refuses {graph.name} ({cause}); please report the model's architecture"
        ) from error


def torch_logits(model: PreTrainedModel, probe: Probe, vocab_size: int) -> NDArray[np.float32]:
    """Logits ``[n, vocab_size]`` of the model's own eager attention under masks and positions of its own."""
    exported_attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    logits = plain_logits(model, probe, vocab_size)
    model.set_attn_implementation(exported_attention)
    return logits


def compare_logits(
    actual: DraftLogits, expected: NDArray[np.float32], graph: Path, tolerance: Tolerance
) -> float:
    """Largest absolute difference from ``expected`` ``[n, vocab_size]`` of what a graph returned of n tokens.

    Of a graph that returns each row's K largest logits: from the logits of its tokens, from the K largest
    whatever their tokens, and of the log-sum-exp. Raises `ExportShapeError` or `ExportToleranceError`.
    """
    wanted = expected.shape if actual.ids is None else actual.ids.shape
    if actual.values.shape != wanted or len(actual.values) != len(expected):
        raise ExportShapeError(
            f"{graph.name} returns logits of shape {actual.values.shape}, PyTorch {expected.shape}; "
            "please report the model's architecture"
        )
    allowed = tolerance.allowed(expected)
    if actual.ids is None:
        difference = float(np.max(np.abs(actual.values - expected)))
    else:
        difference = _top_difference(actual, actual.ids, expected)
    # A NaN must not pass: it compares false with everything.
    if not difference <= allowed:
        raise ExportToleranceError(
            f"{graph.name} differs from PyTorch by {difference:.2e} in a logit, allowed are {allowed:.1e}; "
            "please report the model's architecture"
        )
    return difference


def _top_difference(actual: DraftLogits, ids: NDArray[np.int64], expected: NDArray[np.float32]) -> float:
    assert actual.log_sum_exp is not None
    ascending = np.sort(expected, axis=1)
    highest = ascending[:, -1:]
    log_sum_exp = np.log(np.exp(expected - highest).sum(axis=1)) + highest[:, 0]
    differences = (
        actual.values - np.take_along_axis(expected, ids, axis=1),
        actual.values - ascending[:, : -ids.shape[1] - 1 : -1],
        actual.log_sum_exp - log_sum_exp,
    )
    return max(float(np.max(np.abs(difference))) for difference in differences)


def likeliest_tokens(logits: DraftLogits) -> NDArray[np.int64]:
    """The token ``[n]`` with the largest logit of each row."""
    places: NDArray[np.int64] = logits.values.argmax(axis=1)
    return places if logits.ids is None else np.take_along_axis(logits.ids, places[:, None], axis=1)[:, 0]
