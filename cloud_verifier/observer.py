"""What the verifier reports while it works: metrics and traces listen, and nothing depends on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

CloseReason = Literal["closed", "displaced", "drained", "expired", "failed"]
"""Why a session ended for good.

Its edge closed it; a new one took its place; the verifier stopped; no stream came in time; or it broke.
"""
CLOSE_REASONS: tuple[CloseReason, ...] = get_args(CloseReason)


@dataclass(frozen=True)
class BatchReport:
    """One forward of the target. Times are the event loop's, in seconds."""

    num_sequences: int
    num_tokens: int
    prefill_tokens: int
    """Those of ``num_tokens`` that only fill a sequence."""
    started: float
    ended: float


@dataclass(frozen=True)
class RoundReport:
    """One chain that was checked, or one token decoded (``drafted`` 0). Times are the event loop's."""

    session: str
    """What the log calls the session; not its id."""
    tenant: str
    drafted: int
    """Chain tokens sent."""
    accepted: int
    """Of them, those that stand."""
    arrived: float
    started: float
    ended: float


@dataclass(frozen=True)
class RaceReport:
    """One forward of a racing session. Times are the event loop's, in seconds."""

    session: str
    """What the log calls the session; not its id."""
    tenant: str
    drafted: int
    """Nodes that the forward took along."""
    committed: int
    """Tokens it committed: the nodes that came true and, unless the last of them ends the text, one more."""
    received: int
    """Nodes that came since the report before."""
    ignored: int
    """Of them, those that came late, twice, or out of nowhere, or found no room."""
    arrived: float
    """When the token was asked for: the end of the forward before."""
    started: float
    ended: float


class Observer:
    """Takes reports and does nothing with them; subclasses override what they care for.

    Called in the event loop's thread. Must be quick and must not raise.
    """

    def batch(self, report: BatchReport) -> None:
        """A forward is over."""

    def round(self, report: RoundReport) -> None:
        """A chain was decided, or a token decoded."""

    def race(self, report: RaceReport) -> None:
        """A racing session's forward was decided."""

    def opened(self, tenant: str) -> None:
        """A session began."""

    def resumed(self, tenant: str) -> None:
        """A session went on over a new stream."""

    def closed(self, tenant: str, reason: CloseReason) -> None:
        """A session ended for good."""

    def refused(self, code: str) -> None:
        """A stream was ended with the gRPC status ``code``."""

    def busy(self, tenant: str) -> None:
        """An edge was told to come again later."""

    def evicted(self, tenant: str) -> None:
        """An idle session's keys and values were given up."""

    def usage(self, attached: int, parked: int, kv_tokens: int) -> None:
        """How many sessions have a stream and how many wait for one, and the tokens with room in the pool."""


class Observers(Observer):
    """Passes every report on to several observers."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def batch(self, report: BatchReport) -> None:
        for observer in self._observers:
            observer.batch(report)

    def round(self, report: RoundReport) -> None:
        for observer in self._observers:
            observer.round(report)

    def race(self, report: RaceReport) -> None:
        for observer in self._observers:
            observer.race(report)

    def opened(self, tenant: str) -> None:
        for observer in self._observers:
            observer.opened(tenant)

    def resumed(self, tenant: str) -> None:
        for observer in self._observers:
            observer.resumed(tenant)

    def closed(self, tenant: str, reason: CloseReason) -> None:
        for observer in self._observers:
            observer.closed(tenant, reason)

    def refused(self, code: str) -> None:
        for observer in self._observers:
            observer.refused(code)

    def busy(self, tenant: str) -> None:
        for observer in self._observers:
            observer.busy(tenant)

    def evicted(self, tenant: str) -> None:
        for observer in self._observers:
            observer.evicted(tenant)

    def usage(self, attached: int, parked: int, kv_tokens: int) -> None:
        for observer in self._observers:
            observer.usage(attached, parked, kv_tokens)
