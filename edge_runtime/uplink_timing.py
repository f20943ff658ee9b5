"""What is known of the times of a race: how long a message takes, and when the target's forwards begin.

All times are the edge's own. ``Commit.drafts`` tells how long a message had been at the server when the
commit left, so that only the way up and the way back of that commit are seen together; and only their sum
matters. A forward begins when the commit of the one before it leaves, which the edge sees when that commit
comes: what was sent a sum of both ways before that was in time. Pure: times are passed in.
"""

from __future__ import annotations

import math
from collections import deque

HISTORY = 32
"""Messages that the delay is learned from."""
KEPT = 0.93
"""Weight of a message against the one after it."""
KEPT_BASE = 0.75
"""The same for what is alike for messages of all sizes: queues and routes change, the rate seldom."""
NOISE_MS = 4.0
"""How far off a delay is believed to be before anything is known."""
OUTLIER = 4.0
"""How many times as far off as others a message that was held up may be: one says little of the next."""
SPREAD_BYTES = 30.0
"""How much messages must differ in size before their delays say more of the rate than is known of it."""
INTERVAL_WEIGHT = 0.2
"""Of a new interval between commits in their mean."""
PAUSE = 2.0
"""Intervals that the next commit counts for at most, however late it is."""
OVERDUE = 1.3
"""How many intervals after the last commit the next is overdue."""
HELD_UP = 1.05
"""How many times as long as a forward takes shows, as interval between commits, that these are held up."""


class UplinkDelay:
    """What a message takes there, and a commit back: ``base + byte_ms * its bytes``, by least squares."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=HISTORY)
        self.base_ms = 0.0
        self.byte_ms = 0.0
        """What a byte takes on the link."""
        self.noise_ms = NOISE_MS
        """Mean absolute error."""
        self._error = 0.0

    @property
    def least_byte_ms(self) -> float:
        """What a byte takes at least, a standard error below the estimate."""
        return max(self.byte_ms - self._error, 0.0)

    @property
    def most_byte_ms(self) -> float:
        """What a byte takes at most, two standard errors above the estimate.

        While one message alone has been seen, all its time: it may have been nothing but bytes.
        """
        if len(self._seen) == 1:
            num_bytes, delay_ms = self._seen[0]
            return delay_ms / num_bytes
        return self.byte_ms + 2.0 * self._error

    def ms(self, num_bytes: float) -> float:
        """What a message of so many bytes is expected to take, with what it may well take longer."""
        return self.base_ms + self.byte_ms * num_bytes + self.noise_ms

    def observe(self, num_bytes: float, delay_ms: float) -> None:
        """A message that waited for none before it took ``delay_ms``."""
        if self._seen:
            delay_ms = min(delay_ms, self.ms(num_bytes) + OUTLIER * self.noise_ms)
        self._seen.append((num_bytes, delay_ms))
        seen = [(KEPT**age, size, ms) for age, (size, ms) in enumerate(reversed(self._seen))]
        total = sum(weight for weight, _, _ in seen)
        mean_bytes = sum(weight * size for weight, size, _ in seen) / total
        mean_ms = sum(weight * ms for weight, _, ms in seen) / total
        spread = sum(weight * (size - mean_bytes) ** 2 for weight, size, _ in seen)
        common = sum(weight * (size - mean_bytes) * (ms - mean_ms) for weight, size, ms in seen)
        believed = SPREAD_BYTES**2
        self.byte_ms = max((common + believed * self.byte_ms) / (spread + believed), 0.0)
        bases = [(KEPT_BASE**age, ms - self.byte_ms * size) for age, (_, size, ms) in enumerate(seen)]
        weights = sum(weight for weight, _ in bases)
        self.base_ms = sum(weight * base for weight, base in bases) / weights
        off = sum(weight * abs(base - self.base_ms) for weight, base in bases)
        self.noise_ms = (off + NOISE_MS) / (weights + 1.0)
        self._error = self.noise_ms / math.sqrt(spread + believed)


class ForwardTimes:
    """When the target's forwards begin, by when the commits of those before them come.

    Forwards are counted from the one whose commit comes next: 0 began as the last commit left.
    """

    def __init__(self) -> None:
        self._last_ms: float | None = None
        self.interval_ms = 0.0
        """From one commit to the next, in the mean."""
        self._compute_ms = 0.0
        self._late_ms = 0.0
        """Of the last pause what was not counted: commits that come all at once behind it waited as well."""

    @property
    def known(self) -> bool:
        """Whether a commit has come."""
        return self._last_ms is not None and self.interval_ms > 0.0

    @property
    def held_up(self) -> bool:
        """Whether commits come more slowly than the target computes: the way back is full, or the server."""
        return self.interval_ms > HELD_UP * self._compute_ms

    def committed(self, now_ms: float, compute_ms: float) -> None:
        """A commit came, whose forward took ``compute_ms``."""
        self._compute_ms += INTERVAL_WEIGHT * (compute_ms - self._compute_ms) if self.known else compute_ms
        if self._last_ms is None or self.interval_ms <= 0.0:
            self.interval_ms = compute_ms
        else:
            since_ms = self._counted(now_ms - self._last_ms)
            self.interval_ms += INTERVAL_WEIGHT * (since_ms - self.interval_ms)
        self._last_ms = now_ms

    def _counted(self, since_ms: float) -> float:
        """What a commit counts for that came so long after the one before it."""
        counted_ms = min(since_ms, PAUSE * self.interval_ms)
        if since_ms >= self.interval_ms / 2.0:
            self._late_ms = since_ms - counted_ms
            return counted_ms
        waited_ms = min(self._late_ms, self.interval_ms - since_ms)
        self._late_ms -= waited_ms
        return since_ms + waited_ms

    def overdue(self, now_ms: float) -> int:
        """How many commits should have come by now that have not."""
        assert self._last_ms is not None
        return max(math.floor((now_ms - self._last_ms) / self.interval_ms + 1.0 - OVERDUE), 0)

    def begun_within(self, delay_ms: float) -> int:
        """How many forwards begin from one on, that one included, before ``delay_ms`` have passed."""
        return max(math.ceil(delay_ms / self.interval_ms - 1e-6), 0)

    def begins_ms(self, forward: int) -> float:
        """When ``forward`` begins: a message is in time that is expected to be there by then."""
        assert self._last_ms is not None
        return self._last_ms + forward * self.interval_ms
