"""Types of command line options that several commands share."""

from __future__ import annotations

import math
import re
from typing import Any, Literal, get_args

import click

from acespec.errors import AcespecError

Runtime = Literal["onnxruntime", "tensorrt", "tensorrt-rtx"]
"""What can compute a draft's steps."""
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)

_RATE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<prefix>[kmg]?)bps", re.IGNORECASE)

THREADS = click.IntRange(1, 1024)
"""Threads of an engine. ONNX Runtime starts as many as it is told, and never returns from a million."""


class FiniteRange(click.FloatRange):
    """A range of numbers: click's own lets NaN through, and infinity where no end is set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class RangeOrAuto(click.ParamType):  # type: ignore[type-arg]
    """A whole number of a range, or ``auto``, which becomes None."""

    def __init__(self, least: int, most: int) -> None:
        self.name = f"{least}..{most}|auto"
        self._range = click.IntRange(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        return None if value == "auto" else self._range.convert(value, param, ctx)


class RateType(click.ParamType):  # type: ignore[type-arg]
    """``50kbps``, in bytes per second."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_rate(str(value))
        except AcespecError as error:
            self.fail(str(error), param, ctx)


def parse_rate(text: str) -> float:
    """Bytes per second of a rate in bits: ``50kbps``, ``1.5Mbps`` (decimal prefixes, any case).

    Raises ``AcespecError`` for anything else, and for a rate of 0.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None or float(match["number"]) == 0.0:
        raise AcespecError(f"{text!r} is not a rate; write it as 50kbps or 1.5Mbps")
    factor = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}[match["prefix"].lower()]
    return float(match["number"]) * factor / 8.0
