"""Runs graphs whose key/value rows are updated in place, for the check against PyTorch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acespec.export.check import joined, open_graph
from acespec.models.manifest import MASKED, GraphVariant
from acespec.models.probe import Probe
from acespec.speculation import DraftLogits


class InPlaceRunner:
    """Runs an ort or native graph step by step over buffers of rows that it updates, as a runtime does.

    Buffers that may be of any size hold one row more than the probe. Rows nobody has written are not zero:
    a graph that reads them computes something else. Nor is the row that an ort graph's past begins with.
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
        self._variant = variant
        self._lead = 1 if variant.name == "ort" else 0
        types = {spec.name: spec.type for spec in self._session.get_inputs()}
        self._dtype = np.float16 if types["past_key.0"] == "tensor(float16)" else np.float32

    def run(self, probe: Probe, widths: tuple[int, ...]) -> DraftLogits:
        """Logits of the probe's n tokens, fed in steps of ``widths`` tokens, which sum to n."""
        assert sum(widths) == probe.count, (widths, probe.count)
        buffers = {
            spec.name: np.full(
                [self._rows(probe) if size == "R" else int(size) for size in spec.shape], 7, self._dtype
            )
            for spec in self._variant.inputs
            if spec.name.startswith(("past_key", "past_value"))
        }
        steps: list[list[NDArray[Any]]] = []
        first = 0
        for width in widths:
            steps.append(self._step(probe, first, first + width, buffers))
            first += width
        return joined(steps)

    def _rows(self, probe: Probe) -> int:
        rows = self._variant.rows if self._variant.name == "native" else None
        return rows or self._lead + probe.count + 1

    def _step(
        self, probe: Probe, first: int, end: int, buffers: dict[str, NDArray[Any]]
    ) -> list[NDArray[Any]]:
        step: dict[str, NDArray[Any]] = {
            "input_ids": probe.tokens[None, first:end].copy(),
            "position_ids": probe.positions[None, first:end].copy(),
            "logit_rows": np.arange(end - first),
            "past_length": np.array([self._lead + first], np.int32),
        }
        for mask in self._variant.masks:
            seen = np.pad(probe.seen(mask.window)[first:end, :end], ((0, 0), (self._lead, 0)))
            if self._variant.name == "native":  # a column for each row of the buffer
                seen = np.pad(seen, ((0, 0), (0, self._rows(probe) - end)))
            step[mask.name] = np.where(seen, 0, MASKED)[None, None].astype(self._dtype)
        returned = {
            spec.name: np.empty(
                [end - first if size == "M" else int(size) for size in spec.shape],
                np.int64 if spec.dtype == "int64" else np.float32,
            )
            for spec in self._variant.outputs
            if not spec.name.startswith("present_")
        }
        binding = self._session.io_binding()
        for name, array in (step | buffers).items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        presents = {name.replace("past_", "present_"): rows for name, rows in buffers.items()}
        for name, array in (returned | presents).items():
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        began = time.perf_counter()
        self._session.run_with_iobinding(binding)
        self.step_seconds.append((end - first, time.perf_counter() - began))
        return list(returned.values())
