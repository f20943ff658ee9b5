"""How long to wait before the next attempt, and for an answer. No clock and no randomness of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from acespec.edge_runtime.estimators import SmoothedTime

Random = Callable[[], float]
"""The next number from 0 to below 1."""


@dataclass(frozen=True)
class BackoffSettings:
    """Seconds between attempts to connect. Raises ``ValueError`` naming the field that is out of range."""

    first_s: float = 0.2
    longest_s: float = 10.0
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not 0.0 < self.first_s <= self.longest_s:
            raise ValueError(f"first_s must be above 0 and at most longest_s, not {self.first_s}")
        if not self.factor >= 1.0:
            raise ValueError(f"factor must be at least 1, not {self.factor}")


class Backoff:
    """Exponential backoff with full jitter: each wait is uniform between 0 and a bound that doubles.

    Full jitter spreads thousands of edges that lost the same server evenly over the bound, where they would
    come back as one wave otherwise (Brooker, "Exponential Backoff and Jitter", AWS 2015).
    """

    def __init__(self, settings: BackoffSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._bound_s = settings.first_s

    def next_s(self) -> float:
        """Seconds to wait before the next attempt."""
        wait_s = self._random() * self._bound_s
        self._bound_s = min(self._bound_s * self._settings.factor, self._settings.longest_s)
        return wait_s

    def reset(self) -> None:
        """The verifier answered: the next trouble is a new one."""
        self._bound_s = self._settings.first_s


class Patience:
    """How long an answer may take before its stream counts as lost.

    ``max(shortest_s, 8 usual answers)``, twice as long with every time-out in a row: a server that is merely
    slow gets what it needs, and is never asked again and again for what it is working on.
    """

    def __init__(self, shortest_s: float = 10.0) -> None:
        self._shortest_s = shortest_s
        self._usual = SmoothedTime()
        self._timeouts = 0

    @property
    def limit_s(self) -> float:
        """Seconds the next answer may take."""
        return max(self._shortest_s, 8.0 * self._usual.mean_ms / 1000.0) * float(2**self._timeouts)

    def observe_answer(self, answer_ms: float) -> None:
        """An answer came, so long after it was asked for or after the one before it."""
        self._usual.observe(answer_ms)
        self._timeouts = 0

    def observe_timeout(self) -> None:
        """No answer came within ``limit_s``."""
        self._timeouts += 1


def around(seconds: float, random: Random) -> float:
    """``seconds`` give or take a fifth, so that those told to wait alike do not come back together."""
    return seconds * (0.8 + 0.4 * random())
