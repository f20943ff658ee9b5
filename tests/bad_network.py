"""A verifier behind a network that fails by a plan, message by message, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from hypothesis import strategies as st

from acespec.cloud_verifier.verifier import Verifier
from acespec.wire import Busy, EdgeTransport, ErrorCode, LinkBytes, SessionError, encode_busy, memory_link
from acespec.wire import verifier_pb2 as pb
from acespec.wire.memory import Delay, MemoryCloud, MemoryEdge

BUSY_MS = 40


class Fault(Enum):
    """What becomes of a stream."""

    NONE = "none"
    REFUSE = "refuse"
    """It does not come about."""
    CUT = "cut"
    """It breaks, both sides are told, and the message at hand is lost."""
    FREEZE = "freeze"
    """Nothing passes any more and nobody is told."""
    DRAIN = "drain"
    """The server is stopped in an orderly way and another takes its place."""
    KILL = "kill"
    """The server is gone with all it knew, and another takes its place."""


@dataclass(frozen=True)
class StreamPlan:
    """What one stream is in for."""

    fault: Fault = Fault.NONE
    up: bool = True
    """Whether messages to the server are counted, or those from it."""
    at: int = 0
    """Which of them meets the fault, from 0."""
    busy: frozenset[int] = frozenset()
    """Which messages, counted as the server takes them, it has no room for."""


def stream_plans(
    *, last_at: int, last_busy: int, most_busy: int, most_plans: int
) -> st.SearchStrategy[list[StreamPlan]]:
    """Up to ``most_plans`` plans of any fault, at messages up to these."""
    plan = st.builds(
        StreamPlan,
        fault=st.sampled_from(Fault),
        up=st.booleans(),
        at=st.integers(0, last_at),
        busy=st.frozensets(st.integers(0, last_busy), max_size=most_busy),
    )
    return st.lists(plan, max_size=most_plans)


class BadNetwork:
    """Opens streams as planned, one plan each, and sound ones after that (a ``Connector``)."""

    def __init__(
        self, new_verifier: Callable[[], Verifier], plans: Sequence[StreamPlan], delay: Delay | None = None
    ) -> None:
        self.num_busy = 0
        self._new_verifier = new_verifier
        self._verifiers = [new_verifier()]
        self._plans = list(plans)
        self._delay = delay
        self._serving: list[asyncio.Task[None]] = []
        self._edges: list[MemoryEdge] = []

    async def __call__(self, timeout_s: float) -> EdgeTransport:
        plan = self._plans.pop(0) if self._plans else StreamPlan()
        if plan.fault is Fault.REFUSE:
            raise lost("refused")
        edge, cloud = memory_link(self._delay)
        link = BusyLink(cloud, plan.busy, self._note_busy)
        self._edges.append(edge)
        self._serving.append(asyncio.create_task(serve_over(link, self._verifiers[-1])))
        return FaultyEdge(edge, plan, self)

    def strike(self, fault: Fault) -> None:
        """What a fault does besides to its own stream."""
        if fault in (Fault.KILL, Fault.DRAIN):
            before = self._verifiers[-1]
            self._verifiers.append(self._new_verifier())
            if fault is Fault.DRAIN:
                self._serving.append(asyncio.create_task(before.drain(0.0)))

    async def end(self) -> None:
        """Close whatever froze, and wait until every verifier has freed what it held."""
        for edge in self._edges:
            await edge.close()
        await asyncio.gather(*self._serving)
        for verifier in self._verifiers:
            await verifier.drain(0.0)

    def _note_busy(self) -> None:
        self.num_busy += 1


class FaultyEdge:
    """The edge's end of a stream that meets its fault (an ``EdgeTransport``)."""

    def __init__(self, edge: MemoryEdge, plan: StreamPlan, network: BadNetwork) -> None:
        self._edge = edge
        self._plan = plan
        self._network = network
        self._left = plan.at
        self._struck = False

    @property
    def traffic(self) -> LinkBytes:
        return self._edge.traffic

    async def send(self, message: pb.EdgeMessage) -> None:
        await self._pass(up=True)
        if not self._frozen:
            await self._edge.send(message)

    async def receive(self) -> pb.CloudMessage:
        message = await self._edge.receive()
        await self._pass(up=False)
        if self._frozen:
            await asyncio.Event().wait()
        return message

    async def close(self) -> None:
        if not self._frozen:  # else the server does not learn of it
            await self._edge.close()

    @property
    def _frozen(self) -> bool:
        return self._struck and self._plan.fault is Fault.FREEZE

    async def _pass(self, up: bool) -> None:
        """A message passes, or the fault strikes."""
        if self._struck or up is not self._plan.up or self._plan.fault is Fault.NONE:
            return
        if self._left > 0:
            self._left -= 1
            return
        self._struck = True
        self._network.strike(self._plan.fault)
        if self._plan.fault in (Fault.CUT, Fault.KILL):
            await self._edge.close()
            raise lost("cut")


class BusyLink:
    """The server's end of a stream, on which some messages find no room (a ``CloudTransport``)."""

    def __init__(self, cloud: MemoryCloud, busy: frozenset[int], on_busy: Callable[[], None]) -> None:
        self.cloud = cloud
        self._busy = busy
        self._on_busy = on_busy
        self._count = 0
        self._drops_until_open = False
        self._opened = asyncio.Event()

    async def send(self, message: pb.CloudMessage) -> None:
        await self.cloud.send(message)
        if message.WhichOneof("kind") == "opened":
            self._opened.set()

    async def receive(self) -> pb.EdgeMessage | None:
        while True:
            message = await self.cloud.receive()
            kind = None if message is None else message.WhichOneof("kind")
            if self._drops_until_open and kind not in ("open", "close", None):
                continue
            self._drops_until_open = False
            if kind in ("close", "resume", "draft", None):  # a draft is no request: nothing answers it
                return message
            self._count += 1
            if self._count - 1 not in self._busy:
                return message
            self._drops_until_open = kind == "open"
            if kind != "open":
                await self._opened.wait()  # answers come in order
            self._on_busy()
            await self.cloud.send(encode_busy(Busy(BUSY_MS)))


async def serve_over(link: BusyLink, verifier: Verifier) -> None:
    """Serve one stream and end it as the gRPC service does."""
    try:
        await verifier.serve(link)
    except SessionError as error:
        await link.cloud.close(error)
    else:
        await link.cloud.close()


def lost(why: str) -> SessionError:
    return SessionError(ErrorCode.UNAVAILABLE, f"the link was {why}")
