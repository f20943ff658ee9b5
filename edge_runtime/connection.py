"""A session's way to the verifier: requests go out and answers come in, whatever becomes of the streams.

What to say on a stream is the ``Conversation``'s concern, how long to wait the ``Backoff``'s and the
``Patience``'s, when to give up the ``Outage``'s; this is the loop around them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from acespec.edge_runtime.backoff import Backoff, BackoffSettings, Patience, Random, around
from acespec.edge_runtime.errors import LinkError, cause_of, protocol_error
from acespec.edge_runtime.outage import Outage
from acespec.edge_runtime.statistics import Statistics
from acespec.edge_runtime.step_clock import now_ms
from acespec.wire import (
    Busy,
    Close,
    CloudMessage,
    Codec,
    EdgeMessage,
    EdgeTransport,
    ErrorCode,
    LinkBytes,
    Open,
    Opened,
    Reset,
    ResetReason,
    Resume,
    SessionError,
    pad,
)
from acespec.wire import verifier_pb2 as pb

logger = logging.getLogger(__name__)

ATTEMPT_S = 10.0
"""Longest that one attempt to connect may take."""

FAREWELL_S = 2.0
"""Longest that the server's end of a finished session is waited for."""

Connector = Callable[[float], Awaitable[EdgeTransport]]
"""Makes one attempt to reach the verifier, in at most so many seconds, and gives a new stream.

Raises ``SessionError``, with the code UNAVAILABLE if another attempt may succeed.
"""


class Conversation(Protocol):
    """What is said on a stream: by an ``EdgeSession``, or by a test."""

    def introduction(self, epoch: int) -> Open | Resume:
        """The first message of a stream."""

    @property
    def outstanding(self) -> EdgeMessage | None:
        """The request without a whole answer, which follows the introduction."""

    def note_opened(self, opened: Opened) -> None:
        """The server answered the introduction."""

    def note_forgotten(self) -> None:
        """The server has forgotten the session: from now on the introduction is an ``Open``."""


class Connection:
    """Carries one conversation over as many streams as it takes.

    A stream is lost when it fails with UNAVAILABLE, ends, or is silent for longer than ``Patience`` allows.
    Any other ``SessionError`` is the server's last word and is raised by whatever met it.
    """

    def __init__(
        self,
        connector: Connector,
        conversation: Conversation,
        codec: Codec,
        outage: Outage,
        statistics: Statistics,
        random: Random,
        pad_sizes: bool = False,
    ) -> None:
        """``pad_sizes``: hide the sizes of all messages; without it, from when the server asks for it."""
        self.outage = outage
        self._connector = connector
        self._conversation = conversation
        self._codec = codec
        self._statistics = statistics
        self._random = random
        self._backoff = Backoff(BackoffSettings(), random)
        self._patience = Patience()
        self._pads = pad_sizes
        self._transport: EdgeTransport | None = None
        self._traffic = LinkBytes()
        self._epoch = -1
        self.num_introductions = 0
        """Times a server was told who we are: it may have forgotten what was hinted before."""
        self._sending = asyncio.Lock()
        self._introduced_by: Open | Resume | None = None
        """The introduction that waits for its answer."""
        self._cause: SessionError = LinkError("the verifier was not reached")
        self.opening_ms: float | None = None
        """How long the last introduction's answer took, which nothing is computed for. None before the first.

        Too long by what it waited for ``receive`` to be called.
        """
        self.introduction_bytes = 0
        """Of the last introduction, and the request that went with it."""
        self._introduced_ms = 0.0
        self._asked_ms = 0.0
        self._busy_since_ms: float | None = None

    @property
    def traffic(self) -> LinkBytes:
        """Of all streams together."""
        total = dataclasses.replace(self._traffic)
        if self._transport is not None:
            total.add(self._transport.traffic)
        return total

    async def open(self) -> None:
        """Make the first attempt to connect, and introduce the session; ``receive`` makes more."""
        await self._connect(self.outage.left_s(now_ms()))

    async def send(self, request: EdgeMessage) -> None:
        """Hand ``request`` to the link.

        If the link is down or gets lost over it nothing happens: the request is outstanding, and ``receive``
        sends it on the next stream.
        """
        self._asked_ms = now_ms()
        if self._transport is None:
            return
        try:
            await self._send(request)
        except SessionError as error:
            await self._lose(error)

    @property
    def stands(self) -> bool:
        """Whether a server took us in on the stream under way."""
        return self._transport is not None and self._introduced_by is None

    @property
    def num_streams(self) -> int:
        """Streams so far, the one under way included."""
        return self._epoch + 1

    async def hint(self, message: EdgeMessage) -> None:
        """Hand over what needs no answer, while ``stands``.

        Nothing happens if the link gets lost over it: ``receive`` finds that out.
        """
        transport = self._transport
        if not self.stands:
            return
        try:
            await self._send(message)
        except SessionError:
            pass
        except asyncio.CancelledError:
            if transport is self._transport:
                raise  # else it was gRPC's word for a stream that was closed meanwhile

    async def receive(self) -> CloudMessage:
        """The next answer to the request outstanding, over this stream or a later one.

        Raises ``OutageError`` when an outage has outlasted its time-out, and ``SessionError`` with the
        server's reason if it refuses.
        """
        while True:
            if self._transport is None:
                await self._reconnect()
            elif (message := await self._next(self._transport)) is None:
                continue
            elif isinstance(message, Opened):
                self._note_opened(message)
            elif isinstance(message, Busy):
                await self._wait_while_busy(message)
            elif isinstance(message, Reset):
                await self._begin_anew(message)
            else:
                self._note_answer()
                return message

    async def finish(self) -> None:
        """Say that nothing more comes, and wait a moment until the server has heard it.

        A stream that just ends leaves its session to be resumed, and what it holds in use. Nothing is raised:
        the text is whole, whether or not this arrives.
        """
        if self._transport is None:
            return
        with contextlib.suppress(SessionError, asyncio.TimeoutError):
            await self._send(Close())
            await asyncio.wait_for(self._transport.receive(), FAREWELL_S)

    async def close(self) -> None:
        """Close the stream under way, if there is one; idempotent."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self._traffic.add(transport.traffic)
            await transport.close()

    async def _reconnect(self) -> None:
        """Wait as long as the backoff says, then make one attempt."""
        wait_s = self._backoff.next_s()
        await asyncio.sleep(max(min(wait_s, self.outage.left_s(now_ms())), 0.0))
        left_s = self.outage.left_s(now_ms())
        if left_s <= 0.0:
            raise self.outage.give_up(self._cause, now_ms())
        await self._connect(left_s)

    async def _connect(self, timeout_s: float) -> None:
        """One attempt: a new stream, who we are, and the request that has no answer."""
        try:
            self._transport = await self._connector(min(timeout_s, ATTEMPT_S))
        except SessionError as error:
            await self._lose(error)
            return
        self.outage.connected()
        self._epoch += 1
        self._sending = asyncio.Lock()
        if self._epoch > 0:
            self._statistics.reconnects += 1
            logger.info("connected to the verifier again")
        await self._introduce()

    async def _introduce(self) -> None:
        """Say who we are, and what has no answer: together, which saves a round trip."""
        self._introduced_by = self._conversation.introduction(self._epoch)
        self.num_introductions += 1
        self._introduced_ms = self._asked_ms = now_ms()
        sent_before = self.traffic.up
        try:
            await self._send(self._introduced_by)
            await self._send_outstanding()
            self.introduction_bytes = self.traffic.up - sent_before
        except SessionError as error:
            await self._lose(error)

    async def _send_outstanding(self) -> None:
        if self._conversation.outstanding is not None:
            await self._send(self._conversation.outstanding)

    async def _send(self, message: EdgeMessage) -> None:
        """Raises ``SessionError``: also where the link takes nothing for longer than an answer may take."""
        assert self._transport is not None
        encoded = self._codec.encode_edge(message)
        if self._pads:
            pad(encoded)
        try:
            await asyncio.wait_for(self._send_next(self._transport, encoded), self._patience.limit_s)
        except asyncio.TimeoutError:
            raise self._stalled() from None

    async def _send_next(self, transport: EdgeTransport, encoded: pb.EdgeMessage) -> None:
        async with self._sending:  # a stream takes one message at a time, and hints come when they like
            await transport.send(encoded)

    async def _next(self, transport: EdgeTransport) -> CloudMessage | None:
        """The next message; None if the stream is lost."""
        try:
            message = await asyncio.wait_for(transport.receive(), self._patience.limit_s)
        except asyncio.TimeoutError:
            await self._lose(self._stalled())
            return None
        except SessionError as error:
            await self._lose(error)
            return None
        self.outage.heard(now_ms())
        return self._codec.decode_cloud(message)

    async def _lose(self, error: SessionError) -> None:
        """The stream is over. Raises ``error`` if it is not the link's but the server's doing."""
        await self.close()
        if error.code is not ErrorCode.UNAVAILABLE:
            raise error
        logger.info("%s", cause_of(error))
        self._cause = error
        self.outage.lost(error, now_ms())

    def _stalled(self) -> SessionError:
        waited_s = self._patience.limit_s
        self._patience.observe_timeout()
        return LinkError(f"the verifier was silent for {waited_s:.0f} s", "; is the network up?")

    def _note_opened(self, opened: Opened) -> None:
        if self._introduced_by is None:
            raise protocol_error("it sent Opened twice")
        if opened.epoch != self._introduced_by.epoch:
            raise protocol_error(f"it opened epoch {opened.epoch} where {self._introduced_by.epoch} was due")
        self._introduced_by = None
        self.opening_ms = now_ms() - self._introduced_ms
        self._pads = self._pads or opened.pad_sizes
        self._conversation.note_opened(opened)

    def _note_answer(self) -> None:
        if self._introduced_by is not None:
            raise protocol_error("it answered a request before it opened the session")
        arrived_ms = now_ms()
        self.outage.answered(arrived_ms)
        self._backoff.reset()
        self._busy_since_ms = None
        self._patience.observe_answer(arrived_ms - self._asked_ms)
        self._asked_ms = arrived_ms  # the next token the cloud decodes is due from here

    async def _wait_while_busy(self, busy: Busy) -> None:
        """The server has no room: send what it did not take once more when it says."""
        self._statistics.busy += 1
        if self._busy_since_ms is None:
            self._busy_since_ms = now_ms()
        limit_s = self.outage.settings.timeout_s
        left_s = limit_s - (now_ms() - self._busy_since_ms) / 1000.0
        if left_s <= 0.0:
            raise SessionError(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"the verifier has been without room for {limit_s:g} s; try again later",
            )
        wait_s = around(busy.retry_ms / 1000.0, self._random)
        await asyncio.sleep(min(wait_s, left_s))  # a last try when patience ends
        if self._introduced_by is not None:  # what followed it was dropped
            await self._introduce()
            return
        self._asked_ms = now_ms()
        try:
            await self._send_outstanding()
        except SessionError as error:
            await self._lose(error)

    async def _begin_anew(self, reset: Reset) -> None:
        """The session is gone, or the server is about to be."""
        if reset.reason is ResetReason.SHUTTING_DOWN:
            await self._lose(LinkError("the verifier is shutting down"))
            return
        if isinstance(self._introduced_by, Open):
            raise protocol_error("it does not know the session it was asked to open")
        if self._introduced_by is None:  # in mid-session: should that go on, not as fast as the link can
            await asyncio.sleep(self._backoff.next_s())
        logger.info("the verifier has forgotten the session: opening another")
        self._conversation.note_forgotten()
        await self._introduce()
