"""Progress of work in many equal parts: a line now and then, however fast the parts are."""

from __future__ import annotations

import time
from collections.abc import Callable

SILENCE_S = 5.0
"""Seconds without a line after which one is due."""


class Counted:
    """Called with the parts done and their total after each part; says so once some time has passed."""

    def __init__(
        self, say: Callable[[str], object], what: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``what`` names the parts: ``matrices quantised``. ``clock`` gives seconds."""
        self._say = say
        self._what = what
        self._clock = clock
        self._said_s = clock()

    def __call__(self, done: int, total: int) -> None:
        if self._clock() - self._said_s >= SILENCE_S and done < total:
            self._said_s = self._clock()
            self._say(f"{done} of {total} {self._what}")


def ignore_count(_done: int, _total: int) -> None:
    """For callers that show nothing of it."""
