"""What a wide-area link does to bytes: delay, serialisation at a limited rate, jitter. No I/O."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from acespec.bench.outages import ALWAYS_UP, OutageSchedule

SEGMENT_BYTES = 1448
"""Payload of a full TCP segment on an Ethernet path; a rate-limited link serialises one after the other."""


@dataclass(frozen=True)
class DirectionShape:
    """One direction of a link. Raises ``ValueError`` naming the field that is out of range."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Each segment is late by up to this much more, uniformly; segments never overtake each other."""
    bytes_per_second: float = math.inf

    def __post_init__(self) -> None:
        for name in ("delay_ms", "jitter_ms"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} must be a number of milliseconds from 0 up, not {value}")
        if not self.bytes_per_second > 0.0:
            raise ValueError(f"bytes_per_second must be above 0, not {self.bytes_per_second}")


@dataclass(frozen=True)
class LinkShape:
    """Both directions of a link; ``up`` is from the client to the target."""

    up: DirectionShape = field(default_factory=DirectionShape)
    down: DirectionShape = field(default_factory=DirectionShape)


class DelayLine:
    """When segments entering one direction of a link come out of it.

    A segment waits until those before it have left, takes ``size / rate`` to leave, and travels for the delay
    (and the jitter). Only bytes the relay sees count: TCP and IP headers, 52 bytes a segment, are not added.
    While the link is out nothing leaves, and what is under way arrives when that is over.
    """

    def __init__(
        self, shape: DirectionShape, jitter: random.Random, outages: OutageSchedule = ALWAYS_UP
    ) -> None:
        self._shape = shape
        self._jitter = jitter
        self._outages = outages
        self._busy_until = 0.0
        self._last_due = 0.0

    def due(self, now: float, size: int) -> float:
        """When ``size`` bytes that enter at ``now`` (seconds) come out; in the order they went in."""
        self._busy_until = self._outages.finish(
            max(now, self._busy_until), size / self._shape.bytes_per_second
        )
        travel_ms = self._shape.delay_ms + self._shape.jitter_ms * self._jitter.random()
        arrival = self._outages.over(self._busy_until + travel_ms / 1000.0)
        self._last_due = max(self._last_due, arrival)
        return self._last_due
