"""Both ends of a session's stream in one process: for tests and simulation, exact about bytes and order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from google.protobuf.message import Message

from acespec.wire import verifier_pb2 as pb
from acespec.wire.errors import ErrorCode, SessionError
from acespec.wire.transport import LinkBytes

Delay = Callable[[int], Awaitable[None]]
"""Awaited once for each message before it is delivered; called with the message's size in bytes."""
MessageType = TypeVar("MessageType", bound=Message)


class _End:
    """The last item of a direction: closed, or broken by ``error``."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


class _Direction(Generic[MessageType]):
    """One direction: messages travel as bytes, together but never overtaking one another."""

    def __init__(self, message_type: type[MessageType], delay: Delay | None) -> None:
        self._message_type = message_type
        self._delay = delay
        self._arrived: asyncio.Queue[bytes | _End] = asyncio.Queue()
        self._newest: asyncio.Task[None] | None = None
        self.end: _End | None = None
        """Set when the end has arrived, even if messages before it are not yet read."""

    def send(self, message: MessageType) -> int:
        """Put a message on its way and return its size in bytes; never blocks."""
        data = message.SerializeToString()
        self._post(data)
        return len(data)

    def close(self, error: Exception | None = None) -> None:
        """Send the end; it follows the messages under way and has no delay of its own."""
        self._post(_End(error))

    def cut(self, error: Exception) -> None:
        """End the direction at its receiver, now: what is under way is lost, a waiting receiver wakes."""
        while not self._arrived.empty():
            self._arrived.get_nowait()
        self.end = self.end or _End(error)
        self._arrived.put_nowait(self.end)

    async def receive(self) -> tuple[MessageType, int] | None:
        """The next message and its size, or None at the end; raises the error it was closed with."""
        item = await self._arrived.get()
        if isinstance(item, _End):
            self._arrived.put_nowait(item)  # whoever asks again learns the same
            if item.error is not None:
                raise _again(item.error)
            return None
        return self._message_type.FromString(item), len(item)

    def _post(self, item: bytes | _End) -> None:
        if self._delay is None:
            self._deliver(item)
        else:
            self._newest = asyncio.create_task(self._travel(item, self._delay, self._newest))

    async def _travel(self, item: bytes | _End, delay: Delay, previous: asyncio.Task[None] | None) -> None:
        try:
            if isinstance(item, bytes):
                await delay(len(item))
        except Exception as error:  # a broken hook must fail its test, not hang it
            item = _End(error)
        if previous is not None:
            await previous
        self._deliver(item)

    def _deliver(self, item: bytes | _End) -> None:
        if self.end is not None:
            return  # nothing follows the end
        if isinstance(item, _End):
            self.end = item
        self._arrived.put_nowait(item)


class MemoryEdge:
    """The edge's end (an ``EdgeTransport``)."""

    def __init__(self, up: _Direction[pb.EdgeMessage], down: _Direction[pb.CloudMessage]) -> None:
        self._up = up
        self._down = down
        self._closed = False
        self._traffic = LinkBytes()

    @property
    def traffic(self) -> LinkBytes:
        return self._traffic

    async def send(self, message: pb.EdgeMessage) -> None:
        end = self._down.end
        if end is not None:
            raise _again(end.error) if end.error is not None else _ended()
        self._traffic.count_up(self._up.send(message))

    async def receive(self) -> pb.CloudMessage:
        received = await self._down.receive()
        if received is None:
            raise _ended()
        message, num_bytes = received
        self._traffic.count_down(num_bytes)
        return message

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._up.close()
            self._down.cut(SessionError(ErrorCode.UNAVAILABLE, "this side closed the session; open another"))


class MemoryCloud:
    """The verifier's end (a ``CloudTransport``)."""

    def __init__(self, up: _Direction[pb.EdgeMessage], down: _Direction[pb.CloudMessage]) -> None:
        self._up = up
        self._down = down

    async def receive(self) -> pb.EdgeMessage | None:
        received = await self._up.receive()
        return None if received is None else received[0]

    async def send(self, message: pb.CloudMessage) -> None:
        if self._up.end is not None:
            raise SessionError(ErrorCode.UNAVAILABLE, "the edge closed the session")
        self._down.send(message)

    async def close(self, error: SessionError | None = None) -> None:
        """End the stream as the gRPC service does when its handler returns, or raises ``error``."""
        self._down.close(error)


def memory_link(
    delay: Delay | None = None, *, up_delay: Delay | None = None, down_delay: Delay | None = None
) -> tuple[MemoryEdge, MemoryCloud]:
    """Both ends of one session's stream.

    ``delay`` is told each message's bytes and awaited before its delivery, in each direction unless
    ``up_delay`` or ``down_delay`` is given for it. Senders never wait for it: several messages may be under
    way, and arrive in the order sent. Messages are serialized and parsed on the way, so the ends share no
    object.
    """
    up = _Direction(pb.EdgeMessage, up_delay or delay)
    down = _Direction(pb.CloudMessage, down_delay or delay)
    return MemoryEdge(up, down), MemoryCloud(up, down)


def _again(error: Exception) -> Exception:
    """A fresh copy, so that raising it twice does not pile up tracebacks."""
    return SessionError(error.code, error.message) if isinstance(error, SessionError) else error


def _ended() -> SessionError:
    return SessionError(ErrorCode.UNAVAILABLE, "the server ended the session; open another")
