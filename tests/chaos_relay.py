"""A TCP relay that treats connections badly: by a plan, so that a seed gives the same trouble again.

Each connection passes through a shaped link (``bench.link``) and then through a gate, which lets the planned
number of bytes out and does what the plan says next.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from acespec.bench.link import DelayLine, DirectionShape, LinkShape
from acespec.bench.pipe import Pipe
from acespec.bench.relay import Side, pause_reading


class Fault(str, Enum):
    """What happens to a connection once so many bytes have come out of one of its directions."""

    NONE = "none"
    REFUSE = "refuse"
    """It is reset as soon as it is made."""
    CUT = "cut"
    """Both ends are closed, in the middle of a message more often than not."""
    HALF_OPEN = "half-open"
    """Nothing passes any more, in either direction, and nobody is told."""
    ONE_WAY = "one way"
    """The same in that direction alone."""
    REORDER = "reorder"
    """What the client sends is kept, and the client loses the connection; the server gets those bytes only
    after a newer connection has brought it some."""


@dataclass(frozen=True)
class ConnectionPlan:
    """What one connection is in for."""

    fault: Fault = Fault.NONE
    up: bool = True
    """Whether bytes to the server are counted, or those from it."""
    at_byte: int = 0
    """How many pass before."""
    linger_s: float = 0.2
    """How long a connection that is dead to its client stays before it is reset."""
    reset: bool = True
    """Whether a cut is a reset, or an orderly close."""
    shape: LinkShape = field(default_factory=LinkShape)

    def __str__(self) -> str:
        if self.fault in (Fault.NONE, Fault.REFUSE):
            return str(self.fault.value)
        return f"{self.fault.value} after {self.at_byte} B {'up' if self.up else 'down'}"


def draw_plan(draws: random.Random) -> ConnectionPlan:
    """A plan at random: the faults are alike likely, and most happen within the first few messages."""
    fault = draws.choice([Fault.CUT, Fault.CUT, *(fault for fault in Fault if fault is not Fault.NONE)])
    return ConnectionPlan(
        fault,
        up=fault is Fault.REORDER or draws.random() < 0.5,
        at_byte=int(10 ** draws.uniform(1.5, 3.2)),
        linger_s=draws.choice([draws.uniform(0.02, 0.3), 10.0]),
        reset=draws.random() < 0.5,
        shape=draw_shape(draws),
    )


def draw_shape(draws: random.Random) -> LinkShape:
    """A link with some delay, some jitter, and now and then hardly any rate."""

    def direction() -> DirectionShape:
        delay_ms = draws.choice([0.0, 0.0, draws.uniform(0.0, 20.0)])
        rate = draws.choice([1e9, 1e9, 1e9, draws.uniform(5_000.0, 50_000.0)])
        return DirectionShape(delay_ms, jitter_ms=delay_ms / 2.0, bytes_per_second=rate)

    return LinkShape(direction(), direction())


class Gate:
    """The end of one direction: passes bytes to a socket until ``limit`` of them are out."""

    def __init__(self, sink: asyncio.Transport, limit: int | None, on_limit: Callable[[], None]) -> None:
        self.on_passed: Callable[[], None] = lambda: None
        self.passed = 0
        self.held = bytearray()
        """What came after the gate was shut."""
        self.shut = False
        self._sink = sink
        self._limit = limit
        self._on_limit = on_limit

    def write(self, data: bytes) -> None:
        if self.shut:
            self.held += data
            return
        room = len(data) if self._limit is None else self._limit - self.passed
        self._pass(data[:room])
        if self._limit is not None and self.passed >= self._limit:
            self._limit = None
            self._on_limit()
            self.write(data[room:])

    def write_eof(self) -> None:
        if not self.shut and not self._sink.is_closing():
            self._sink.write_eof()

    def close(self) -> None:
        if not self.shut:
            self._sink.close()

    def open(self) -> None:
        """Let out what was held, and pass everything from now on."""
        self.shut = False
        held, self.held = bytes(self.held), bytearray()
        self._pass(held)

    def _pass(self, data: bytes) -> None:
        self.passed += len(data)
        if data and not self._sink.is_closing():
            self._sink.write(data)
            self.on_passed()


class Connection:
    """One connection between its two sockets, and the trouble planned for it."""

    def __init__(
        self,
        plan: ConnectionPlan,
        client: asyncio.Transport,
        target: asyncio.Transport,
        on_fault: Callable[[Connection], None],
    ) -> None:
        self.plan = plan
        self.client = client
        self.target = target
        self._on_fault = on_fault
        troubled = plan.fault is not Fault.NONE
        self.up = Gate(target, plan.at_byte if troubled and plan.up else None, self._fault)
        self.down = Gate(client, plan.at_byte if troubled and not plan.up else None, self._fault)

    def lay(self, client: Side, target: Side, jitter: random.Random) -> None:
        """Put the link between the two sockets."""
        loop = asyncio.get_running_loop()

        def close_when_both_ended() -> None:
            if up.ended and down.ended:
                self.up.close()
                self.down.close()

        up = Pipe(loop, DelayLine(self.plan.shape.up, jitter), self.client, self.up, close_when_both_ended)
        down = Pipe(
            loop, DelayLine(self.plan.shape.down, jitter), self.target, self.down, close_when_both_ended
        )
        client.outgoing, client.incoming = up, down
        target.outgoing, target.incoming = down, up

    def release(self) -> None:
        """Let the bytes that were held reach the server after all."""
        self.up.open()
        asyncio.get_running_loop().call_later(self.plan.linger_s, self.target.close)

    def abort(self) -> None:
        """Reset both ends."""
        self.client.abort()
        self.target.abort()

    def _fault(self) -> None:
        fault, loop = self.plan.fault, asyncio.get_running_loop()
        if fault is Fault.CUT:
            for end in (self.client, self.target):
                (end.abort if self.plan.reset else end.close)()
        elif fault is Fault.REORDER:
            self.up.shut = self.down.shut = True
            loop.call_later(self.plan.linger_s, self.client.abort)
        else:
            self.up.shut = self.plan.up or fault is Fault.HALF_OPEN
            self.down.shut = not self.plan.up or fault is Fault.HALF_OPEN
            loop.call_later(self.plan.linger_s, self.abort)
        self._on_fault(self)


class ChaosRelay:
    """Listens on the loopback and carries connections to ``target``, each as the next plan says.

    An asynchronous context manager that yields itself; ``address`` is where it listens.
    """

    def __init__(
        self, target: tuple[str, int], plans: Iterator[ConnectionPlan], seed: int, release_after: int = 300
    ) -> None:
        """``release_after``: bytes a newer connection must have brought before an older one's are let go."""
        self.num_connections = 0
        """Those that reached the server."""
        self.num_released = 0
        """Those whose bytes arrived after the bytes of a newer one."""
        self.faults: Counter[Fault] = Counter()
        """Those that happened: a connection may be over before its fault is due."""
        self.address = ""
        self._target = target
        self._plans = plans
        self._jitter = random.Random(seed)
        self._release_after = release_after
        self._held: list[Connection] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> ChaosRelay:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Side(self._connected), "127.0.0.1", 0)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, client: Side) -> None:
        task = asyncio.ensure_future(self._carry(client))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _carry(self, client: Side) -> None:
        assert client.transport is not None
        client.transport.pause_reading()
        try:
            transport, target = await asyncio.get_running_loop().create_connection(
                lambda: Side(pause_reading), *self._target
            )
        except OSError:  # the server is being restarted: no connection, and no plan is used up
            client.transport.abort()
            return
        self.num_connections += 1
        plan = next(self._plans)
        if plan.fault is Fault.REFUSE:
            self.faults[plan.fault] += 1
            client.transport.abort()
            transport.abort()
            return
        connection = Connection(plan, client.transport, transport, self._note_fault)
        try:
            connection.up.on_passed = lambda: self._release_older(connection)
            connection.lay(client, target, self._jitter)
            client.transport.resume_reading()
            transport.resume_reading()
            await client.lost.wait()
            await target.lost.wait()
        finally:
            connection.abort()

    def _release_older(self, connection: Connection) -> None:
        """Let older connections through, once ``connection`` has brought enough."""
        if connection.up.passed >= self._release_after:
            older = [held for held in self._held if held is not connection]
            self._held = [held for held in self._held if held is connection]
            self.num_released += len(older)
            for held in older:
                held.release()

    def _note_fault(self, connection: Connection) -> None:
        self.faults[connection.plan.fault] += 1
        if connection.plan.fault is Fault.REORDER:
            self._held.append(connection)
