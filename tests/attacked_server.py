"""The server that is attacked, and streams to it that take any bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import grpc.aio

from acespec.edge_runtime.grpc_transport import result_at_once
from acespec.speculation import SamplingParams
from acespec.wire import (
    AcceptanceMode,
    CloudMessage,
    Codec,
    Open,
    encode_open,
)
from acespec.wire import verifier_pb2 as pb
from coupled_text import remembered
from fake_draft import hashed_table
from table_server import MAX_CONTEXT, VOCAB, table_server

SALT = 1
TABLE = remembered(hashed_table(VOCAB, SALT))
LIMITS = {
    "max_sessions": 64,
    "open_timeout_s": 1.0,
    "idle_timeout_s": 2.0,
    "write_timeout_s": 1.0,
    "resume_ttl_s": 2.0,
    "busy_retry_ms": 50,
}
OPTIONS = {"max_connections": 256, "max_streams": 96, "handshake_timeout_s": 2.0}
QUOTA = {"max_sessions": 48}
"""Of one tenant: some of the server is left for others."""
MALLORY, ALICE = "mallory", "alice"
Status = grpc.StatusCode


def server_command(port: int) -> list[str]:
    """The server under attack."""
    return table_server(
        "--port", str(port), "--salt", str(SALT), "--forward-ms", "1", "--kv-tokens", str(64 * MAX_CONTEXT),
        "--limits", json.dumps(LIMITS), "--options", json.dumps(OPTIONS), "--quota", json.dumps(QUOTA),
    )  # fmt: skip


def request_to_open(seed: int = 1, **changes: object) -> Open:
    """An ``Open`` the server accepts, with ``changes``."""
    request = Open(
        model="",
        fingerprint="",
        vocabulary_hash="a" * 64,
        vocab_size=VOCAB,
        end_token_ids=(),
        sampling=SamplingParams(),
        seed=seed,
        mode=AcceptanceMode.COUPLED,
        committed=(1, 2, 3),
        prompt_length=3,
        token_limit=40,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


OPEN = encode_open(request_to_open())
CODEC = Codec(VOCAB, AcceptanceMode.COUPLED)


@contextlib.asynccontextmanager
async def channel_to(address: str) -> AsyncIterator[grpc.aio.Channel]:
    """A connection of its own."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel


class RawStream:
    """A session's stream that takes bytes as they are."""

    def __init__(
        self, channel: grpc.aio.Channel, tenant: str = MALLORY, extra: tuple[tuple[str, str], ...] = ()
    ) -> None:
        metadata = (("authorization", f"Bearer {tenant}"), *extra)
        self._call = channel.stream_stream("/acespec.v1.Verifier/Session")(metadata=metadata)
        self._status: Status | None = None
        self._call.add_done_callback(self._note_status)

    async def say(self, *messages: bytes | pb.EdgeMessage) -> bool:
        """Send messages; False once the stream is over."""
        try:
            for message in messages:
                await self._call.write(message if isinstance(message, bytes) else message.SerializeToString())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            if not self._call.done():
                raise
            return False
        return True

    async def hear(self) -> CloudMessage | Status:
        """The next message, or the stream's status."""
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError:
            message = grpc.aio.EOF
        if isinstance(message, bytes):
            return CODEC.decode_cloud(pb.CloudMessage.FromString(message))
        await self._call.code()
        assert self._status is not None
        return self._status

    async def end(self) -> Status:
        """Read to the end."""
        while not isinstance(heard := await asyncio.wait_for(self.hear(), 20.0), Status):
            pass
        return heard

    def cancel(self) -> None:
        self._call.cancel()

    @property
    def over(self) -> bool:
        return self._call.done()

    def _note_status(self, _: object) -> None:
        """Keep the status at the moment it is there: grpc.aio may put an INTERNAL of its own in its place."""
        self._status = self._status or result_at_once(self._call.code())


async def ends_of(streams: list[RawStream]) -> Counter[str]:
    return Counter([status.name for status in await asyncio.gather(*(one.end() for one in streams))])
