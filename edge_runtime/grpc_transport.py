"""A session's link over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

import grpc
import grpc.aio

from acespec.errors import AcespecError
from acespec.wire import ErrorCode, LinkBytes, SessionError
from acespec.wire import verifier_pb2 as pb
from acespec.wire.verifier_pb2_grpc import VerifierStub

T = TypeVar("T")

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    # NAT tables forget a silent TCP connection after a few minutes: ping before that.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
]


class VerifierChannel:
    """A connection to one verifier; sessions share it. An asynchronous context manager."""

    def __init__(self, address: str, connect_timeout_s: float = 10.0) -> None:
        """Raises ``AcespecError`` for an address that is not ``HOST:PORT``."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise AcespecError(f"the verifier's address must be HOST:PORT, not {address!r}")
        self.address = address
        self._connect_timeout_s = connect_timeout_s
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

    async def __aenter__(self) -> VerifierChannel:
        try:
            await asyncio.wait_for(self._channel.channel_ready(), self._connect_timeout_s)
        except asyncio.TimeoutError:
            await self._channel.close()
            raise SessionError(
                ErrorCode.UNAVAILABLE,
                f"no verifier answers at {self.address} (waited {self._connect_timeout_s:g} s): "
                "check the address, or start one with: acespec serve",
            ) from None
        except BaseException:
            await self._channel.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._channel.close()

    def session(self) -> GrpcTransport:
        """A new session's stream."""
        return GrpcTransport(VerifierStub(self._channel).Session(), self.address)


class GrpcTransport:
    """``EdgeTransport`` over one bidirectional gRPC stream."""

    def __init__(
        self, call: grpc.aio.StreamStreamCall[pb.EdgeMessage, pb.CloudMessage], address: str
    ) -> None:
        self._call = call
        self._address = address
        self._traffic = LinkBytes()
        self._status: tuple[grpc.StatusCode, str] | None = None
        call.add_done_callback(self._note_status)

    @property
    def traffic(self) -> LinkBytes:
        return self._traffic

    async def send(self, message: pb.EdgeMessage) -> None:
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._reason() from error
        self._traffic.count_up(message.ByteSize())

    async def receive(self) -> pb.CloudMessage:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise await self._reason() from error
        if not isinstance(message, pb.CloudMessage):  # grpc.aio.EOF
            raise await self._reason()
        self._traffic.count_down(message.ByteSize())
        return message

    async def close(self) -> None:
        self._call.cancel()

    def _note_status(self, _: object) -> None:
        """Keep the status the stream ended with, at the moment it is there.

        grpc.aio puts an INTERNAL of its own in its place if a message was being written meanwhile.
        """
        self._status = self._status or (
            result_at_once(self._call.code()),
            result_at_once(self._call.details()),
        )

    async def _reason(self) -> SessionError:
        """Why the stream is over, from its gRPC status."""
        await self._call.code()  # waits for the end
        assert self._status is not None
        status, detail = self._status
        if status is grpc.StatusCode.OK:
            return SessionError(
                ErrorCode.UNAVAILABLE, f"the verifier at {self._address} ended the session early; try again"
            )
        if status is grpc.StatusCode.UNAVAILABLE:
            return SessionError(
                ErrorCode.UNAVAILABLE,
                f"lost the verifier at {self._address} ({detail}); is it still running?",
            )
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in detail:  # gRPC's own words
            return SessionError(
                ErrorCode.RESOURCE_EXHAUSTED,
                f"the verifier takes no message as large as this prompt ({detail}); shorten the prompt",
            )
        known = {code.value for code in ErrorCode}
        code = ErrorCode(status.name) if status.name in known else ErrorCode.INTERNAL
        return SessionError(code, f"the verifier refused: {detail}")


def result_at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for, without giving other tasks a turn."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the coroutine waits for something")
