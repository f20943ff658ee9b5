"""When a link is out: a schedule as a user writes it, and what it does to the time things take. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from acespec.errors import AcespecError


@dataclass(frozen=True)
class Outage:
    """The link is out from ``at_s`` on for ``for_s`` seconds, and again every ``every_s``.

    Raises ``ValueError`` naming the field that is out of range.
    """

    at_s: float
    for_s: float
    every_s: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at_s) and self.at_s >= 0.0):
            raise ValueError(f"an outage begins at second 0 or later, not at {self.at_s}")
        if not (math.isfinite(self.for_s) and self.for_s > 0.0):
            raise ValueError(f"an outage lasts for more than 0 seconds, not for {self.for_s}")
        if self.every_s is not None and not (math.isfinite(self.every_s) and self.every_s > self.for_s):
            raise ValueError(
                f"an outage of {self.for_s:g} s comes again later than that, not after {self.every_s:g} s"
            )

    def last_begin(self, now: float) -> float | None:
        """When it began the last time up to ``now``; None if it has not yet."""
        if now < self.at_s:
            return None
        if self.every_s is None:
            return self.at_s
        count = math.floor((now - self.at_s) / self.every_s)
        while self._begin(count + 1) <= now:  # the division may have been rounded either way
            count += 1
        return self._begin(count if self._begin(count) <= now else count - 1)

    def next_begin(self, now: float) -> float:
        """When it begins the next time, after ``now``; infinity if it does not."""
        last = self.last_begin(now)
        if last is None:
            return self.at_s
        if self.every_s is None:
            return math.inf
        return self._begin(round((last - self.at_s) / self.every_s) + 1)

    def _begin(self, count: int) -> float:
        """When it begins after ``count`` times."""
        return self.at_s + count * (self.every_s or 0.0)


class OutageSchedule:
    """Several outages of one link, which may overlap, on a clock that the caller reads."""

    def __init__(self, outages: Sequence[Outage] = (), started: float = 0.0) -> None:
        """``started``: when the outages' seconds begin to count, on that clock.

        Raises ``ValueError`` if those that come again and again might leave no time between them.
        """
        share = sum(outage.for_s / outage.every_s for outage in outages if outage.every_s is not None)
        if share >= 1.0:
            raise ValueError(f"outages that take {share:.0%} of the time leave none between them")
        self._outages = tuple(replace(outage, at_s=outage.at_s + started) for outage in outages)

    def over(self, now: float) -> float:
        """The first moment from ``now`` on at which the link is not out."""
        while (later := max((self._end(outage, now) for outage in self._outages), default=now)) > now:
            now = later
        return now

    def next_begin(self, now: float) -> float:
        """When the next of them begins, after ``now``; infinity if none does."""
        return min((outage.next_begin(now) for outage in self._outages), default=math.inf)

    def finish(self, now: float, work_s: float) -> float:
        """When something is done that begins at ``now``, takes ``work_s`` and stands still in outages."""
        while True:
            now = self.over(now)
            begins = self.next_begin(now)
            if now + work_s <= begins:
                return now + work_s
            work_s -= begins - now
            now = begins

    @staticmethod
    def _end(outage: Outage, now: float) -> float:
        begin = outage.last_begin(now)
        return now if begin is None else max(now, begin + outage.for_s)


@dataclass(frozen=True)
class LinkOutages:
    """What a link is in for."""

    up: tuple[Outage, ...] = ()
    """Nothing passes towards the target: what would arrive meanwhile arrives when it is over, in order."""
    down: tuple[Outage, ...] = ()
    """The same from the target."""
    cuts: tuple[Outage, ...] = ()
    """Connections are closed when it begins, and those made meanwhile at once."""

    def __post_init__(self) -> None:
        for outages in (self.up, self.down, self.cuts):
            OutageSchedule(outages)


ALWAYS_UP = OutageSchedule()


def parse_outage(text: str) -> Outage:
    """``AT:FOR`` or ``AT:FOR,EVERY`` in seconds: ``10:2`` or ``10:2,30``. Raises ``AcespecError``."""
    when, comma, every = text.partition(",")
    at, colon, duration = when.partition(":")
    try:
        if not colon:
            raise ValueError("there is no colon")
        return Outage(float(at), float(duration), float(every) if comma else None)
    except ValueError as error:
        raise AcespecError(
            f"{text!r} is no outage ({error}); write AT:FOR or AT:FOR,EVERY in seconds, as 10:2 or 10:2,30"
        ) from None
