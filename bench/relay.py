"""A TCP relay that behaves like a wide-area link: every byte comes out, in order, but later."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass

from acespec.bench.link import DelayLine, DirectionShape, LinkShape
from acespec.bench.outages import ALWAYS_UP, LinkOutages, OutageSchedule
from acespec.bench.pipe import Clock, Pipe

logger = logging.getLogger(__name__)


@dataclass
class Traffic:
    """Bytes that entered each direction: TCP payload, without headers."""

    up: int = 0
    down: int = 0


class Side(asyncio.Protocol):
    """One socket of a connection; ``outgoing`` carries what it receives, ``incoming`` what it is sent."""

    def __init__(self, on_connected: Callable[[Side], None] | None = None) -> None:
        self._on_connected = on_connected
        self.transport: asyncio.Transport | None = None
        self.outgoing: Pipe | None = None
        self.incoming: Pipe | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._on_connected is not None:
            self._on_connected(self)

    def data_received(self, data: bytes) -> None:
        assert self.outgoing is not None
        self.outgoing.feed(data)

    def eof_received(self) -> bool:
        assert self.outgoing is not None
        self.outgoing.feed_end()
        return True  # keep the other direction open

    def pause_writing(self) -> None:
        if self.incoming is not None:
            self.incoming.sink_full(True)

    def resume_writing(self) -> None:
        if self.incoming is not None:
            self.incoming.sink_full(False)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - a reset ends like a close
        self.lost.set()
        if self.outgoing is not None and self.incoming is not None:
            self.incoming.sink_lost()
            self.outgoing.source_lost()


def pause_reading(side: Side) -> None:
    """Take nothing from a server that speaks first, until there is a pipe to put it in."""
    assert side.transport is not None
    side.transport.pause_reading()


class Relay:
    """Listens, and carries each connection to ``target`` and back over a link of the given shape.

    Each connection has a link of its own. TCP's own handshake is not delayed: the client is connected to the
    relay at once, and what it sends is. ``on_closed`` is told the traffic of each connection that ends.
    Outages count from the moment the relay listens. That TCP would send again what an outage swallowed, some
    time after its end, is not imitated.
    """

    def __init__(
        self,
        target: tuple[str, int],
        shape: LinkShape,
        *,
        outages: LinkOutages | None = None,
        clock: Clock | None = None,
        seed: int = 0,
        on_closed: Callable[[Traffic], None] = lambda _: None,
    ) -> None:
        self.traffic = Traffic()
        """Of the connections that have ended."""
        self.num_connections = 0
        """So many were made, those closed at once included."""
        self._target = target
        self._shape = shape
        self._clock = clock
        self._jitter = random.Random(seed)  # noqa: S311 - jitter is no secret
        self._on_closed = on_closed
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._outages = outages or LinkOutages()
        self._up_outages = self._down_outages = self._cuts = ALWAYS_UP

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address: ``port`` 0 takes a free one. Raises ``OSError`` if it is taken."""
        started = self._timer().time()
        self._up_outages = OutageSchedule(self._outages.up, started)
        self._down_outages = OutageSchedule(self._outages.down, started)
        self._cuts = OutageSchedule(self._outages.cuts, started)
        self._server = await asyncio.get_running_loop().create_server(self._accept, host, port)
        address = self._server.sockets[0].getsockname()
        self._await_cut(started)
        return address[0], address[1]

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self) -> Side:
        return Side(self._connected)

    def _timer(self) -> Clock:
        return self._clock or asyncio.get_running_loop()

    def _await_cut(self, now: float) -> None:
        """Set the timer for the first cut that begins after ``now``."""
        begins = self._cuts.next_begin(now)
        if math.isfinite(begins):
            self._timer().call_at(begins, lambda: self._cut(begins))

    def _cut(self, now: float) -> None:
        """Close every connection, and be ready for the next time."""
        assert self._server is not None
        if self._server.is_serving():
            for connection in self._connections:
                connection.cancel()
            self._await_cut(now)

    def _connected(self, client: Side) -> None:
        self.num_connections += 1
        now = self._timer().time()
        if self._cuts.over(now) > now:
            assert client.transport is not None
            client.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._carry(client))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _carry(self, client: Side) -> None:
        """One connection from beginning to end."""
        assert client.transport is not None
        client.transport.pause_reading()  # until both ends stand
        try:
            transport, target = await asyncio.get_running_loop().create_connection(
                lambda: Side(pause_reading), *self._target
            )
            try:
                await self._carry_between(client, client.transport, target, transport)
            finally:
                transport.abort()
        except OSError as error:
            logger.warning("cannot reach %s:%d: %s", *self._target, error)
        finally:
            client.transport.abort()

    async def _carry_between(
        self,
        client: Side,
        client_transport: asyncio.Transport,
        target: Side,
        target_transport: asyncio.Transport,
    ) -> None:
        """Lay the two pipes between the sockets, let them flow, and wait until both sockets are closed."""
        clock = self._timer()

        def close_when_both_ended() -> None:
            if up.ended and down.ended:
                client_transport.close()
                target_transport.close()

        def pipe(
            shape: DirectionShape,
            outages: OutageSchedule,
            source: asyncio.Transport,
            sink: asyncio.Transport,
        ) -> Pipe:
            line = DelayLine(shape, self._jitter, outages)
            return Pipe(clock, line, source, sink, close_when_both_ended)

        up = pipe(self._shape.up, self._up_outages, client_transport, target_transport)
        down = pipe(self._shape.down, self._down_outages, target_transport, client_transport)
        client.outgoing, client.incoming = up, down
        target.outgoing, target.incoming = down, up
        client_transport.resume_reading()
        target_transport.resume_reading()
        try:
            await client.lost.wait()
            await target.lost.wait()
        finally:
            self.traffic.up += up.bytes_in
            self.traffic.down += down.bytes_in
            self._on_closed(Traffic(up.bytes_in, down.bytes_in))
