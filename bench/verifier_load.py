"""Sessions that load a verifier: each sends its next round as soon as the last one is answered.

They speak gRPC with messages encoded beforehand, so that on a machine shared with the server most of the time
is the server's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import grpc
import grpc.aio
import numpy as np

from acespec.bench.verifier_script import Script, encode_greedy_open
from acespec.cloud_verifier.service import SERVICE_NAME
from acespec.errors import AcespecError
from acespec.wire import AcceptanceMode, Codec, Commit, Decode, PrefixCheck, Resume
from acespec.wire import verifier_pb2 as pb
from acespec.wire.handshake import encode_resume

METHOD = f"/{SERVICE_NAME}/Session"
CLOSE = pb.EdgeMessage(close=pb.Close()).SerializeToString()

Streams: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, bytes]"
Stream: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"


@contextlib.asynccontextmanager
async def connect(address: str, num_channels: int) -> AsyncIterator[list[Streams]]:
    """The verifier's method over ``num_channels`` connections, which end with the block."""
    options = [("grpc.use_local_subchannel_pool", 1)]  # or channels to one address would share a connection
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options))
            for _ in range(num_channels)
        ]
        yield [channel.stream_stream(METHOD) for channel in channels]


class Edge:
    """One session's client."""

    def __init__(self, streams: Streams, script: Script) -> None:
        self._streams = streams
        self._script = script
        self._stream: Stream | None = None
        self._session_id = b""
        self._epoch = 0
        self.num_rounds = 0
        """Rounds answered."""

    @property
    def finished(self) -> bool:
        """Whether all rounds of the script are answered."""
        return self.num_rounds == len(self._script.rounds)

    async def open(self) -> None:
        """Begin a new session. Raises ``AcespecError`` if the verifier refuses it, as all methods do."""
        self.num_rounds = self._epoch = 0
        await self._begin(self._script.open)

    async def round(self) -> None:
        """Send the next round and hear its verdict."""
        answer = await self._ask(self._script.rounds[self.num_rounds])
        if not self._script.accepts(self.num_rounds, answer):
            kind = pb.CloudMessage.FromString(answer).WhichOneof("kind")
            raise AcespecError(
                f"round {self.num_rounds} was answered with another {kind} than the script has: "
                "the text differs from the one decoded before"
            )
        self.num_rounds += 1

    async def drop(self) -> None:
        """Break the stream off; the verifier keeps the session."""
        assert self._stream is not None
        self._stream.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._stream.code()

    async def resume(self) -> None:
        """Go on with the session over a new stream."""
        self._epoch += 1
        committed = self._script.committed(self.num_rounds)
        resume = Resume(self._session_id, self._epoch, committed)
        await self._begin(encode_resume(resume).SerializeToString())

    async def close(self) -> None:
        """End the session."""
        assert self._stream is not None
        await self._stream.write(CLOSE)
        await self._stream.done_writing()
        code = await self._stream.code()
        if code is not grpc.StatusCode.OK:
            raise AcespecError(f"a session that was closed ended with {code.name}")

    async def _begin(self, first: bytes) -> None:
        self._stream = self._streams()
        opened = pb.CloudMessage.FromString(await self._ask(first))
        if opened.WhichOneof("kind") != "opened":
            raise AcespecError(f"the verifier answered {opened.WhichOneof('kind')} to a session's beginning")
        self._session_id = opened.opened.session_id

    async def _ask(self, message: bytes) -> bytes:
        assert self._stream is not None
        await self._stream.write(message)
        return await read(self._stream)


async def read(stream: Stream) -> bytes:
    """The next message. Raises ``AcespecError`` if the stream has ended."""
    try:
        message: object = await stream.read()
    except grpc.aio.AioRpcError as error:
        raise AcespecError(
            f"the verifier ended a session ({error.code().name}: {error.details()})"
        ) from error
    if not isinstance(message, bytes):  # grpc.aio.EOF
        raise AcespecError("the verifier ended a session before it was closed")
    return message


async def decode_text(
    streams: Streams,
    vocabulary_hash: str,
    vocab_size: int,
    prompt: Sequence[int],
    num_tokens: int,
    race: bool = False,
) -> list[int]:
    """What the target itself makes of ``prompt`` at temperature 0, ``num_tokens`` of it.

    ``race``: as a race to which nothing is drafted.
    """
    codec = Codec(vocab_size, AcceptanceMode.COUPLED)
    stream = streams()
    await stream.write(
        encode_greedy_open(
            vocabulary_hash, vocab_size, prompt, len(prompt) + num_tokens, race
        ).SerializeToString()
    )
    request = Decode(seq=0, prefix_check=PrefixCheck(prompt).value, count=num_tokens, race=race)
    await stream.write(codec.encode_edge(request).SerializeToString())
    text: list[int] = []
    while len(text) < num_tokens:
        message = codec.decode_cloud(pb.CloudMessage.FromString(await read(stream)))
        if isinstance(message, Commit):
            text += message.tokens
    await stream.write(CLOSE)
    return text


@dataclass(frozen=True)
class Load:
    """What so many sessions got out of the verifier."""

    num_sessions: int
    rounds_per_s: float
    p50_ms: float
    p99_ms: float


async def measure_load(
    address: str, scripts: Sequence[Script], num_channels: int, warm_up_s: float, seconds: float
) -> Load:
    """Load the verifier with a session of each script, and count what is answered after the warm-up.

    A session whose script has ended begins anew. Raises ``AcespecError`` if any session fails.
    """
    async with connect(address, min(num_channels, len(scripts))) as channels:
        edges = [Edge(channels[index % len(channels)], script) for index, script in enumerate(scripts)]
        await asyncio.gather(*[edge.open() for edge in edges])
        latencies = array("d")
        begin = time.perf_counter() + warm_up_s
        end = begin + seconds
        await asyncio.gather(*[_drive(edge, begin, end, latencies) for edge in edges])
        await asyncio.gather(*[edge.close() for edge in edges])
    p50, p99 = np.percentile(latencies, [50, 99]) * 1000.0
    return Load(len(scripts), len(latencies) / seconds, float(p50), float(p99))


async def _drive(edge: Edge, begin: float, end: float, latencies: array[float]) -> None:
    """Send round after round until ``end``, and note the seconds of those answered after ``begin``."""
    asked = time.perf_counter()
    while asked < end:
        await edge.round()
        answered = time.perf_counter()
        if begin <= answered < end:
            latencies.append(answered - asked)
        if edge.finished:
            await edge.close()
            await edge.open()
        asked = time.perf_counter()


async def time_rounds(edges: Sequence[Edge], num_rounds: int) -> float:
    """The seconds it takes until each of ``edges`` has had so many rounds answered."""

    async def drive(edge: Edge) -> None:
        for _ in range(num_rounds):
            await edge.round()

    begin = time.perf_counter()
    await asyncio.gather(*[drive(edge) for edge in edges])
    return time.perf_counter() - begin
