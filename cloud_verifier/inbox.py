"""A session's incoming messages: requests wait their turn, drafts are taken up as they come."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from acespec.wire import Close, CloudTransport, Draft, EdgeMessage
from acespec.wire import verifier_pb2 as pb

NODES_PER_S = 8192
"""Drafted nodes a stream may bring in the long run: more than any target checks, and cheap to take."""
NODES_AT_ONCE = 2048
NODES_PER_DRAFT = 4
"""What a message costs besides its nodes, in nodes."""


@dataclass(frozen=True)
class Received:
    """A message and when it arrived, by the loop's clock."""

    message: EdgeMessage
    arrived: float
    lost: bool = False
    """The stream ended without a ``Close``, which stands here in its place."""


class Inbox:
    """Reads ahead: a message's arrival is noted while the session computes, and a closed stream is seen.

    Never more than two messages, one of them to hold, so that a flooding peer is held back by the transport;
    one that floods it with drafts is, for they are read no faster than ``NODES_PER_S``.
    """

    def __init__(
        self,
        link: CloudTransport,
        decode: Callable[[pb.EdgeMessage], EdgeMessage],
        take_draft: Callable[[Draft], bool],
    ) -> None:
        """``take_draft`` takes a draft, or says that it is for a request the session has not begun with."""
        self._link = link
        self._decode = decode
        self._take_draft = take_draft
        self._pace = DraftPace()
        self._ahead: asyncio.Queue[Received | Exception] = asyncio.Queue(maxsize=1)
        self._taken = asyncio.Event()
        self._closed = False
        self._reading = asyncio.ensure_future(self._read_on())

    async def next(self) -> Received:
        """The next message, never a ``Draft``. Raises ``SessionError`` if it is malformed."""
        received = await self._ahead.get()
        self._taken.set()
        if isinstance(received, Exception):
            raise received
        return received

    @property
    def closed(self) -> bool:
        """Whether the other side is known to have gone: nobody waits for what the session is doing."""
        return self._closed

    def stop(self) -> None:
        """Stop reading; what was read ahead is dropped, an error included."""
        self._reading.cancel()

    async def _read_on(self) -> None:
        """Read until the stream ends or breaks."""
        while not self._closed:
            try:
                received = await self._read()
            except Exception as error:
                await self._ahead.put(error)
                return
            if isinstance(received.message, Draft):
                await self._hand_over(received.message, received.arrived)
                continue
            await self._ahead.put(received)
            self._closed = isinstance(received.message, Close)

    async def _read(self) -> Received:
        message = await self._link.receive()
        arrived = asyncio.get_running_loop().time()
        if message is None:
            return Received(Close(), arrived, lost=True)
        return Received(self._decode(message), arrived)

    async def _hand_over(self, draft: Draft, arrived: float) -> None:
        if not self._take_draft(draft) and self._ahead.full():
            self._taken.clear()
            await self._taken.wait()  # for the request that stands before it, which may be its own
            self._take_draft(draft)
        pause_s = self._pace.pause_s(len(draft.nodes), arrived)
        if pause_s > 0.0:
            await asyncio.sleep(pause_s)


class DraftPace:
    """How fast drafts may come (the generic cell rate algorithm; ITU-T I.371)."""

    def __init__(self) -> None:
        self._paid_until = -math.inf

    def pause_s(self, num_nodes: int, now: float) -> float:
        """How long to wait before the next draft is read, after one of ``num_nodes`` that came at ``now``."""
        self._paid_until = max(self._paid_until, now) + (num_nodes + NODES_PER_DRAFT) / NODES_PER_S
        return max(0.0, self._paid_until - now - NODES_AT_ONCE / NODES_PER_S)
