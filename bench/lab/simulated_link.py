"""A wide-area link in simulated time: delay, jitter, rate and loss, with every byte counted each way.

The connection stands before the request comes: no handshake is simulated. A message is cut into TCP segments;
each waits for those before it to leave at the link's rate, travels, and is lost with some probability, of
itself. The receiver sees what TCP would let it see: messages in order, those behind a lost segment after it.

A lost segment is sent again when the sender learns of it: a quarter of the round trip after the
acknowledgement of a segment sent later (RACK, RFC 8985), and by its retransmission time-out at the latest: a
round trip and 200 ms (Linux's least variance term) after it was sent, twice that the second time, and so on
(RFC 6298). Rounds are lone small segments, so it is mostly the time-out. Congestion control is left out: such
traffic does not fill a window.

Acknowledgements travel with data that goes the other way within 40 ms, else as segments of their own; of a
message of many segments every second is acknowledged at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from acespec.bench.lab.overhead import WireOverhead
from acespec.bench.link import DelayLine, DirectionShape

LEAST_TIMEOUT_S = 0.2
REORDERING_SHARE = 0.25
"""Of the round trip that a sender waits for a segment that may only be late (RFC 8985)."""
PAPER_BYTES_PER_SECOND = 100e6 / 8
"""The baseline bandwidth of the paper's testbed: 100 Mbps."""


class Charged(str, Enum):
    """Which bytes take up the link's rate."""

    PAYLOAD = "payload"
    """Serialized messages alone: the paper's way of counting."""
    WIRE = "wire"
    """All that a real link carries."""


@dataclass(frozen=True)
class LinkConditions:
    """A link as seen from its edge. Raises ``ValueError`` naming what is out of range."""

    up: DirectionShape
    down: DirectionShape
    loss_up: float = 0.0
    """Probability that a segment is lost."""
    loss_down: float = 0.0
    charged: Charged = Charged.WIRE
    overhead: WireOverhead = field(default_factory=WireOverhead)

    def __post_init__(self) -> None:
        for name in ("loss_up", "loss_down"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be from 0 to below 1, not {getattr(self, name)}")

    @classmethod
    def symmetric(
        cls,
        rtt_ms: float,
        jitter_ms: float = 0.0,
        bytes_per_second: float = PAPER_BYTES_PER_SECOND,
        loss: float = 0.0,
        charged: Charged = Charged.WIRE,
    ) -> LinkConditions:
        """The same in both directions: half of ``rtt_ms`` each way, and up to ``jitter_ms`` more."""
        shape = DirectionShape(rtt_ms / 2.0, jitter_ms, bytes_per_second)
        return cls(shape, shape, loss, loss, charged)

    @property
    def rtt_ms(self) -> float:
        """The least round trip."""
        return self.up.delay_ms + self.down.delay_ms


@dataclass
class DirectionTraffic:
    """What one direction carried so far."""

    messages: int = 0
    payload_bytes: int = 0
    wire_bytes: int = 0


class SimulatedDirection:
    """One direction of a link, in the running loop's time."""

    def __init__(
        self, shape: DirectionShape, loss: float, conditions: LinkConditions, seed: int, name: str
    ) -> None:
        """``seed`` and ``name`` decide jitter and loss."""
        self.traffic = DirectionTraffic()
        self.on_arrival: Callable[[int], None] = lambda _: None
        """Told the number of segments of each message that arrives."""
        self._loss = loss
        self._overhead = conditions.overhead
        self._counts_wire = conditions.charged is Charged.WIRE
        self._round_trip_s = conditions.rtt_ms / 1000.0
        self._back_s = (conditions.rtt_ms - shape.delay_ms) / 1000.0
        self._line = DelayLine(shape, random.Random(f"{seed} {name} jitter"))  # noqa: S311 - no secret
        self._losses = random.Random(f"{seed} {name} loss")  # noqa: S311
        self._unaware: list[asyncio.Future[float]] = []
        """Lost segments nothing was sent behind yet; they are told when what is sent next arrives."""
        self._ack_timer: asyncio.TimerHandle | None = None
        self._answers = False
        """Whether something has come from the other side since the last message."""

    async def delay(self, num_bytes: int) -> None:
        """Carry one message of ``num_bytes`` bytes of payload: returns when all of it has arrived.

        Whoever hands messages on keeps them in the order sent.
        """
        loop = asyncio.get_running_loop()
        sizes = self._overhead.segments(num_bytes, self._answers)
        self._answers = False
        self.traffic.messages += 1
        self.traffic.payload_bytes += num_bytes
        self._take_acknowledgement_along()
        charges = sizes if self._counts_wire else _parts(num_bytes, len(sizes))
        missing: list[asyncio.Task[float]] = []
        arrival = loop.time()
        for size, charge in zip(sizes, charges, strict=True):
            due = self._transmit(size, charge)
            if self._losses.random() < self._loss:
                missing.append(asyncio.create_task(self._recover(size, charge, self._await_next())))
            else:
                self._tell_the_unaware(due)
                arrival = max(arrival, due)
        for recovery in missing:
            arrival = max(arrival, await recovery)
        await _sleep_until(arrival)
        self.on_arrival(len(sizes))

    def owe_acknowledgement(self, num_segments: int) -> None:
        """A message of so many segments has come from the other side."""
        self._answers = True
        for _ in range(num_segments // 2):
            self._send_acknowledgement()
        if num_segments % 2 and self._ack_timer is None:
            delay_s = self._overhead.ack_delay_ms / 1000.0
            self._ack_timer = asyncio.get_running_loop().call_later(delay_s, self._send_owed)

    def _transmit(self, size: int, charge: int) -> float:
        """Put one segment on the line; returns when it would come out."""
        self.traffic.wire_bytes += size
        return self._line.due(asyncio.get_running_loop().time(), charge)

    async def _recover(self, size: int, charge: int, behind: asyncio.Future[float]) -> float:
        """Send a lost segment again until it is not lost; returns when it comes out.

        ``behind`` is the arrival of what is sent next.
        """
        loop = asyncio.get_running_loop()
        timeout_s = self._round_trip_s + LEAST_TIMEOUT_S
        while True:
            times_out = loop.time() + timeout_s
            await asyncio.wait([behind], timeout=timeout_s)
            if behind.done():
                learned = behind.result() + self._back_s + REORDERING_SHARE * self._round_trip_s
                await _sleep_until(min(learned, times_out))
            else:
                self._unaware.remove(behind)
            due = self._transmit(size, charge)
            if self._losses.random() >= self._loss:
                self._tell_the_unaware(due)
                return due
            behind = self._await_next()
            timeout_s *= 2.0

    def _await_next(self) -> asyncio.Future[float]:
        """The arrival of the next segment that is sent and not lost."""
        behind: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._unaware.append(behind)
        return behind

    def _tell_the_unaware(self, due: float) -> None:
        for behind in self._unaware:
            behind.set_result(due)
        self._unaware.clear()

    def _take_acknowledgement_along(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None

    def _send_owed(self) -> None:
        self._ack_timer = None
        self._send_acknowledgement()

    def _send_acknowledgement(self) -> None:
        """It takes up the line; that it might be lost changes nothing, the next one says the same."""
        size = self._overhead.ack_bytes
        self._transmit(size, size if self._counts_wire else 0)


class SimulatedLink:
    """Both directions. Jitter and loss are the same for the same ``seed``."""

    def __init__(self, conditions: LinkConditions, seed: int) -> None:
        self.conditions = conditions
        self.up = SimulatedDirection(conditions.up, conditions.loss_up, conditions, seed, "up")
        self.down = SimulatedDirection(conditions.down, conditions.loss_down, conditions, seed, "down")
        self.up.on_arrival = self.down.owe_acknowledgement
        self.down.on_arrival = self.up.owe_acknowledgement


class SimulatedChannel:
    """Messages of any kind over one direction, each with the size it is said to have (a ``Channel``)."""

    def __init__(self, carry: Callable[[int], Any]) -> None:
        """``carry`` is a direction's ``delay``."""
        self._carry = carry
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._newest: asyncio.Task[None] | None = None

    def send(self, message: Any, num_bytes: int) -> None:
        """Put ``message`` on its way as one of ``num_bytes`` bytes of payload; never waits."""
        self._newest = asyncio.create_task(self._travel(message, num_bytes, self._newest))

    async def receive(self) -> Any:
        """Wait for the next message."""
        return await self._arrived.get()

    async def _travel(self, message: Any, num_bytes: int, previous: asyncio.Task[None] | None) -> None:
        await self._carry(num_bytes)
        if previous is not None:
            await previous
        self._arrived.put_nowait(message)


def _parts(total: int, count: int) -> list[int]:
    """``total`` in ``count`` parts that differ by 1 at most."""
    ends = [total * (index + 1) // count for index in range(count)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


async def _sleep_until(when: float) -> None:
    await asyncio.sleep(max(when - asyncio.get_running_loop().time(), 0.0))
