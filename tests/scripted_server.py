"""A server that does with each stream of an edge what a test says, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from acespec.bench.virtual_clock import run_virtual
from acespec.edge_runtime.drafter import Chain
from acespec.edge_runtime.outage import LinkChange, OutageSettings, ignore_change
from acespec.edge_runtime.request import GenerationRequest
from acespec.edge_runtime.session import EdgeSession, SessionSettings
from acespec.edge_runtime.statistics import Statistics
from acespec.wire import (
    AcceptanceMode,
    CloudMessage,
    Codec,
    EdgeMessage,
    EdgeTransport,
    ErrorCode,
    Opened,
    PrefixCheck,
    Reset,
    ResetReason,
    Round,
    SessionError,
    TargetDraws,
    TokenVerdict,
    memory_link,
)
from acespec.wire.memory import MemoryCloud

VOCAB = 8
PROMPT = (1, 2)
ID = b"the session"
CUT = SessionError(ErrorCode.UNAVAILABLE, "the link was cut")
DRAWS = TargetDraws(16, 0, (3, 3), (2**15, 2**15))


def opened(epoch: int, pad_sizes: bool = False) -> Opened:
    return Opened(ID, epoch, "table", "f", max_context=64, max_chain=63, pad_sizes=pad_sizes)


def forgotten(epoch: int) -> Reset:
    return Reset(epoch, ResetReason.UNKNOWN_SESSION)


class Server:
    """Takes streams, one after the other, and does with them what the test says (a ``Connector``)."""

    def __init__(self, mode: AcceptanceMode) -> None:
        self.codec = Codec(VOCAB, mode)
        self.attempts_s: list[float] = []
        self.refuses = False
        self._links: asyncio.Queue[MemoryCloud] = asyncio.Queue()

    async def __call__(self, timeout_s: float) -> EdgeTransport:
        assert timeout_s > 0.0
        self.attempts_s.append(asyncio.get_running_loop().time())
        if self.refuses:
            raise SessionError(ErrorCode.UNAVAILABLE, "no verifier answers")
        edge, cloud = memory_link()
        self._links.put_nowait(cloud)
        return edge

    async def stream(self) -> Stream:
        """The next stream."""
        return Stream(await self._links.get(), self.codec)


class Stream:
    """One stream as the server sees it."""

    def __init__(self, link: MemoryCloud, codec: Codec) -> None:
        self.link = link
        self.sizes: list[int] = []
        self._codec = codec

    async def receive(self) -> EdgeMessage:
        message = await self.link.receive()
        assert message is not None
        self.sizes.append(message.ByteSize())
        return self._codec.decode_edge(message)

    async def send(self, *messages: CloudMessage) -> None:
        for message in messages:
            await self.link.send(self._codec.encode_cloud(message))

    async def cut(self) -> None:
        await self.link.close(CUT)


def play(
    edge: Callable[[EdgeSession], Awaitable[object]],
    server: Callable[[Server], Awaitable[object]],
    mode: AcceptanceMode = AcceptanceMode.COUPLED,
    outage: OutageSettings | None = None,
    jitter: float = 0.5,
    pad_sizes: bool = False,
    scripted: Server | None = None,
    on_change: Callable[[LinkChange], object] = ignore_change,
) -> tuple[EdgeSession, Server]:
    """Let both sides play their parts to the end, in simulated time; every random number is ``jitter``.

    ``scripted`` is the server to take, by default a new one that takes all streams.
    """
    scripted = scripted or Server(mode)

    async def main() -> tuple[EdgeSession, Server]:
        session = EdgeSession(
            scripted,
            GenerationRequest(PROMPT, (), max_new_tokens=20, mode=mode),
            VOCAB,
            Statistics(),
            SessionSettings(outage=outage or OutageSettings(), pad_sizes=pad_sizes),
            jitter=lambda: jitter,
            on_change=on_change,
        )
        serving = asyncio.ensure_future(server(scripted))
        try:
            await edge(session)
            await serving
        finally:
            serving.cancel()
            await session.connection.close()
        return session, scripted

    return run_virtual(main())


async def one_round(session: EdgeSession) -> None:
    """Open, send an empty chain, commit what comes back."""
    await session.open()
    await session.send_round(Chain())
    verdict = (await session.receive_verdict()).verdict
    assert isinstance(verdict, TokenVerdict)
    session.commit([verdict.next_token])


def check_of(*tokens: int) -> int:
    check = PrefixCheck()
    check.update(tokens)
    return check.value


ROUND = Round(0, check_of(*PROMPT), ())
VERDICT = TokenVerdict(0, 0, 5)
