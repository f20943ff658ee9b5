"""What an outage is, what to do in one, and how long one has lasted. No I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from acespec.edge_runtime.errors import cause_of
from acespec.edge_runtime.statistics import Statistics
from acespec.wire import ErrorCode, SessionError


class OnOutage(str, Enum):
    """What a generation does while the verifier cannot be reached."""

    WAIT = "wait"
    """Wait and try again, until the time-out."""
    DRAFT = "draft"
    """Wait likewise, and go on from the draft model meanwhile: provisional tokens, verified on return."""
    FAIL = "fail"
    """End at once."""


@dataclass(frozen=True)
class OutageSettings:
    """How outages are met. Raises ``ValueError`` naming the field that is out of range."""

    on_outage: OnOutage = OnOutage.WAIT
    timeout_s: float = 120.0
    """An outage longer than this ends the generation; so does a server that is busy for as long."""
    first_timeout_s: float = 10.0
    """The same for a verifier that was never reached: most likely its address is wrong."""

    def __post_init__(self) -> None:
        for name in ("timeout_s", "first_timeout_s"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")


@dataclass(frozen=True)
class LinkChange:
    """The link was lost, or it is back: what a user is told once an outage."""

    is_up: bool
    said: str
    """A few words: what happened, and what is done about it."""


def ignore_change(_: LinkChange) -> None:
    """For callers that show nothing of it."""


class OutageError(SessionError):
    """The verifier could not be reached for longer than ``OutageSettings`` allow."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message)


class Outage:
    """Whether the verifier is out of reach, and since when. Times are loop milliseconds, passed in.

    The link is *down* from the loss of a stream to the next message of the server. But only an answer ends
    the outage as the time-out counts it: a server that takes every connection and answers nothing is none.
    """

    def __init__(
        self,
        settings: OutageSettings,
        statistics: Statistics,
        on_change: Callable[[LinkChange], object] = ignore_change,
    ) -> None:
        """``on_change`` is told when an outage begins that is waited for, and when an answer ends it."""
        self.settings = settings
        self.down = asyncio.Event()
        """Set while the link is down."""
        self._statistics = statistics
        self._on_change = on_change
        self._reached = False
        self._answered = False
        self._loss = ""
        """How the outage began."""
        self._began_ms: float | None = None
        self._down_since_ms = 0.0

    @property
    def drafts(self) -> bool:
        """Whether the draft model goes on while the link is down."""
        return self.settings.on_outage is OnOutage.DRAFT

    @property
    def drafts_alone(self) -> bool:
        """Whether the draft model has to go on without the verifier now."""
        return self.drafts and self.down.is_set()

    async def wait_beside(self, changed: asyncio.Event, timeout_s: float | None = None) -> None:
        """Wait for ``changed``, and clear it; not longer than until the draft model has to begin alone."""
        waits = [asyncio.ensure_future(changed.wait())]
        if self.drafts and not self.down.is_set():
            waits.append(asyncio.ensure_future(self.down.wait()))
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        changed.clear()

    def lost(self, error: SessionError, now_ms: float) -> None:
        """The stream is lost, or none came about, for the reason in ``error``."""
        if self._began_ms is None:
            self._began_ms = now_ms
            self._loss = cause_of(error)
            if self._limit_s > 0.0:
                self._on_change(LinkChange(False, f"{self._loss}; trying again for {self._limit_s:g} s"))
        if not self.down.is_set():
            self._down_since_ms = now_ms
            self.down.set()

    def heard(self, now_ms: float) -> None:
        """The server sent something."""
        self._reached = True
        if self.down.is_set():
            self._statistics.outage_ms += now_ms - self._down_since_ms
            self.down.clear()

    def answered(self, now_ms: float) -> None:
        """The server answered a request."""
        if self._began_ms is not None:
            away_s = (now_ms - self._began_ms) / 1000.0
            self._on_change(LinkChange(True, f"the verifier answers, after {away_s:.0f} s"))
        self._answered = True
        self._began_ms = None

    def connected(self) -> None:
        """A stream came about, if only that."""
        self._reached = True

    def left_s(self, now_ms: float) -> float:
        """Seconds left until the generation gives up; at most 0 if it does now."""
        if self._began_ms is None:
            return self._limit_s
        return self._limit_s - (now_ms - self._began_ms) / 1000.0

    def give_up(self, cause: SessionError, now_ms: float) -> OutageError:
        """The error that ends the generation; ``cause`` is the last thing that went wrong."""
        if self.down.is_set():
            self._statistics.outage_ms += now_ms - self._down_since_ms
        if self._limit_s == 0.0:
            return OutageError(cause.message)
        if not self._reached:
            return OutageError(f"{cause.message} (tried for {self._limit_s:g} s)")
        stands = "; the text so far stands" if self._answered else ""
        return OutageError(f"{self._loss}, and for {self._limit_s:g} s it gave no answer again{stands}")

    @property
    def _limit_s(self) -> float:
        if not self._reached:
            return self.settings.first_timeout_s
        return 0.0 if self.settings.on_outage is OnOutage.FAIL else self.settings.timeout_s
