"""A clock for what the relay times, moved by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable


class ManualClock:
    """A clock that stands still until it is moved; ``timer_set`` tells that something is waiting for it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timer_set = asyncio.Event()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        heapq.heappush(
            self._timers, (when, -next(self._order), callback)
        )  # equal times: the last set goes first
        self.timer_set.set()

    @property
    def next_timer(self) -> float:
        """When the next thing is due."""
        return self._timers[0][0]

    def advance_to(self, when: float) -> None:
        while self._timers and self._timers[0][0] <= when:
            self.now, _, callback = heapq.heappop(self._timers)
            callback()
        self.now = when
