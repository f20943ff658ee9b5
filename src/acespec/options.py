"""Types of command line options that several commands share."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import click

Runtime = Literal["onnxruntime", "tensorrt", "tensorrt-rtx"]
"""What can compute a draft's steps."""
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)

THREADS = click.IntRange(1, 1024)
"""Threads of an engine. ONNX Runtime starts as many as it is told, and never returns from a million."""


class FiniteRange(click.FloatRange):
    """A range of numbers: click's own lets NaN through, and infinity where no end is set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
