"""A bundle as the evaluation asks it: logits of a text, computed on this machine's CPU."""

from __future__ import annotations

import statistics

import numpy as np
from numpy.typing import NDArray

from acespec.export.check import GraphRunner
from acespec.export.check_in_place import InPlaceRunner
from acespec.models.manifest import Bundle
from acespec.models.probe import causal_probe
from acespec.speculation import DraftLogits

SINGLE_STEPS = 4
"""Tokens at the end of each text that are fed one by one, and so timed as a draft's steps are."""
INTEGER_LEVEL = 4
"""ONNX Runtime's kernels for quantised weights multiply in int8, as on the device."""


class BundleDraft:
    """Runs a bundle's first graph with ONNX Runtime, on all cores."""

    def __init__(self, bundle: Bundle) -> None:
        """Raises `ExportError` when the graph does not load."""
        variant = bundle.manifest.graphs[0]
        runner = GraphRunner if variant.name == "portable" else InPlaceRunner
        self._runner = runner(bundle.folder / f"{variant.name}.onnx", variant, INTEGER_LEVEL)

    def __call__(self, text: NDArray[np.int64]) -> DraftLogits:
        """Logits of every position of ``text`` ``[n]``."""
        singles = min(SINGLE_STEPS, len(text) - 1)
        return self._runner.run(causal_probe(text.tolist()), (len(text) - singles, *[1] * singles))

    @property
    def step_ms(self) -> float | None:
        """Median time of the one-token steps so far; None: there was none."""
        times = [seconds for width, seconds in self._runner.step_seconds if width == 1]
        return 1e3 * statistics.median(times) if times else None
