"""A session's incoming messages, read one ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from acespec.wire import Close, CloudTransport, EdgeMessage
from acespec.wire import verifier_pb2 as pb


@dataclass(frozen=True)
class Received:
    """A message and when it arrived, by the loop's clock."""

    message: EdgeMessage
    arrived: float
    lost: bool = False
    """The stream ended without a ``Close``, which stands here in its place."""


class Inbox:
    """Reads one message ahead: its arrival is noted while the session computes, and a closed stream is seen.

    Never more than one, so that a flooding peer is held back by the transport.
    """

    def __init__(self, link: CloudTransport, decode: Callable[[pb.EdgeMessage], EdgeMessage]) -> None:
        self._link = link
        self._decode = decode
        self._ahead = asyncio.ensure_future(self._read())

    async def next(self) -> Received:
        """The next message. Raises ``SessionError`` if it is malformed."""
        received = await self._ahead
        if not isinstance(received.message, Close):
            self._ahead = asyncio.ensure_future(self._read())
        return received

    @property
    def closed(self) -> bool:
        """Whether the other side is known to have gone: nobody waits for what the session is doing."""
        if not self._ahead.done() or self._ahead.cancelled():
            return False
        return self._ahead.exception() is None and isinstance(self._ahead.result().message, Close)

    def stop(self) -> None:
        """Stop reading; what was read ahead is dropped, an error included."""
        self._ahead.cancel()
        if self._ahead.done() and not self._ahead.cancelled():
            self._ahead.exception()  # looked at, so that asyncio does not report it as lost

    async def _read(self) -> Received:
        message = await self._link.receive()
        arrived = asyncio.get_running_loop().time()
        if message is None:
            return Received(Close(), arrived, lost=True)
        return Received(self._decode(message), arrived)
