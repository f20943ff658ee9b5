"""One stream from an edge, from its first message to its end, whatever session is spoken over it."""

from __future__ import annotations

import asyncio
from enum import Enum

from acespec.cloud_verifier.inbox import Inbox
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.session import Session
from acespec.cloud_verifier.tenants import Tenant
from acespec.wire import CloudTransport, ErrorCode, SessionError, pad
from acespec.wire import verifier_pb2 as pb


class Waiting(Enum):
    """What a stream waits for."""

    EDGE = "edge"
    """The edge's next message."""
    READER = "reader"
    """Room for a message to the edge."""
    TARGET = "target"
    """An answer that is being computed."""


class Stream:
    """A link, who speaks over it, and the session they speak of.

    ``end`` may be called from outside the task that serves it; the task then raises ``error``.
    """

    def __init__(self, link: CloudTransport, tenant: Tenant, *, pad_sizes: bool) -> None:
        self.tenant = tenant
        self.session: Session | None = None
        self.inbox: Inbox | None = None
        self.committed = 0
        """Committed tokens the edge had when it resumed over this stream; 0 if it did not resume."""
        self.told = 0
        """Committed tokens it has once all commits sent over this stream have arrived; 0 before the first."""
        self.over = asyncio.Event()
        """Set once nobody serves it any more."""
        self.error: SessionError | None = None
        self.waiting = Waiting.EDGE
        loop = asyncio.get_running_loop()
        self.since = loop.time()
        """When it began to wait, by the loop's clock."""
        self._now = loop.time
        self._link = link
        self._pad_sizes = pad_sizes
        self._task = asyncio.current_task()

    @property
    def closed(self) -> bool:
        """Whether the edge is known to have gone."""
        return self.inbox is not None and self.inbox.closed

    async def first(self) -> pb.EdgeMessage | None:
        """The next message while no session stands; None at the end."""
        self.wait_for(Waiting.EDGE)
        return await self._link.receive()

    async def send(self, message: pb.CloudMessage) -> None:
        """Hand one message to the link; waits while the edge does not read."""
        self.wait_for(Waiting.READER)
        await self._link.send(pad(message) if self._pad_sizes else message)
        self.wait_for(Waiting.TARGET)

    def read_ahead(self, session: Session) -> Inbox:
        """From now on messages belong to ``session``."""
        self.session = session
        self.inbox = Inbox(self._link, session.codec.decode_edge, session.take_draft)
        return self.inbox

    def wait_for(self, waiting: Waiting) -> None:
        """Note what is waited for from now on."""
        self.waiting = waiting
        self.since = self._now()

    def end(self, error: SessionError) -> None:
        """End the stream with ``error``, unless it is ending already."""
        if self.error is None:
            self.error = error
            assert self._task is not None
            self._task.cancel()


def overdue(waiting: Waiting, waited_s: float, limits: Limits, *, known: bool) -> SessionError | None:
    """Why a stream that has waited ``waited_s`` seconds is ended; None if it may go on.

    ``known``: whether it has a session. A stream that waits for the target is never overdue.
    """
    if waiting is Waiting.READER and waited_s > limits.write_timeout_s:
        return SessionError(
            ErrorCode.UNAVAILABLE,
            f"nothing was read for {limits.write_timeout_s:g} s; connect again",
        )
    if waiting is Waiting.EDGE and not known and waited_s > limits.open_timeout_s:
        return SessionError(
            ErrorCode.UNAVAILABLE, f"no open came within {limits.open_timeout_s:g} s; connect again"
        )
    if waiting is Waiting.EDGE and known and waited_s > limits.idle_timeout_s:
        return SessionError(
            ErrorCode.UNAVAILABLE, f"no request came for {limits.idle_timeout_s:g} s; connect again to go on"
        )
    return None


def sweep_interval_s(limits: Limits) -> float:
    """How often to look for what is overdue: often enough for the shortest time-out, and cheap."""
    shortest = min(limits.open_timeout_s, limits.idle_timeout_s, limits.write_timeout_s)
    if limits.resume_ttl_s > 0.0:
        shortest = min(shortest, limits.resume_ttl_s)
    return min(1.0, max(0.01, shortest / 4.0))
