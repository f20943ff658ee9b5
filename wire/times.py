"""Durations in one byte, log scale: within 3 percent from 0.01 ms to 26 s."""

from __future__ import annotations

import math

SMALLEST_MS = 0.01
RATIO = 1.06
"""Between neighbouring codes; half a step is sqrt(1.06), an error of 2.96 percent at most."""

DURATIONS_MS = (0.0, *(SMALLEST_MS * RATIO**step for step in range(255)))
"""What each code means, in milliseconds."""


def encode_duration(duration_ms: float) -> int:
    """The code nearest to ``duration_ms`` (>= 0) on the log scale; longer ones saturate at 255."""
    assert duration_ms >= 0.0, f"a duration of {duration_ms} ms"
    if duration_ms < SMALLEST_MS / 2:
        return 0
    if duration_ms >= DURATIONS_MS[-1]:
        return 255
    return 1 + max(0, round(math.log(duration_ms / SMALLEST_MS) / math.log(RATIO)))


def decode_duration(code: int) -> float:
    """The duration in milliseconds that ``code`` (0..255) stands for."""
    return DURATIONS_MS[code]
