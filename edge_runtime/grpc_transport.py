"""A session's link over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio

from acespec.edge_runtime.address import host_of
from acespec.edge_runtime.channel_security import ChannelSecurity
from acespec.edge_runtime.grpc_status import connect_error, is_unconnected, stream_error
from acespec.wire import NO_BANDWIDTH_PROBES, EdgeTransport, ErrorCode, LinkBytes, SessionError
from acespec.wire import verifier_pb2 as pb
from acespec.wire.verifier_pb2_grpc import VerifierStub

T = TypeVar("T")
Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.EdgeMessage, pb.CloudMessage]"


@dataclass(frozen=True)
class LinkSettings:
    """How to reach a verifier. Raises ``ValueError`` naming the field that is out of range."""

    security: ChannelSecurity = field(default_factory=ChannelSecurity)
    keepalive_s: float = 60.0
    """Seconds of silence before a ping asks whether the connection still stands: NAT tables forget a silent
    one after a few minutes. Servers refuse pings that come too often (AceSpec's: within 20 s)."""
    keepalive_timeout_s: float = 20.0
    """Seconds the ping may take to come back before the connection counts as lost."""

    def __post_init__(self) -> None:
        for name in ("keepalive_s", "keepalive_timeout_s"):
            if not 1.0 <= getattr(self, name) <= 86_400.0:
                raise ValueError(f"{name} must be between 1 and 86400, not {getattr(self, name)}")

    def channel_options(self) -> list[tuple[str, Any]]:
        """gRPC's settings."""
        return [
            ("grpc.keepalive_time_ms", round(1000 * self.keepalive_s)),
            ("grpc.keepalive_timeout_ms", round(1000 * self.keepalive_timeout_s)),
            ("grpc.http2.max_pings_without_data", 0),
            NO_BANDWIDTH_PROBES,
            # Another channel to the address is another connection: this one may be dead without knowing it.
            ("grpc.use_local_subchannel_pool", 1),
            *self.security.channel_options(),
        ]


class VerifierChannel:
    """A channel to one verifier; sessions may share it. An asynchronous context manager."""

    def __init__(self, address: str, settings: LinkSettings | None = None) -> None:
        """Raises ``AcespecError`` for an address that is not ``HOST:PORT`` and for unusable credentials."""
        self.address = address
        self._settings = settings or LinkSettings()
        self._settings.security.check_host(host_of(address))
        options = self._settings.channel_options()
        credentials = self._settings.security.credentials()
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=options)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options=options)

    async def __aenter__(self) -> VerifierChannel:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection and all streams over it."""
        await self._channel.close()

    def session(self) -> GrpcTransport:
        """A new stream; whether the verifier can be reached shows when it is used."""
        return GrpcTransport(self._call(), self.address)

    async def connect(self, timeout_s: float) -> GrpcTransport:
        """A stream to a verifier that is there.

        Raises ``SessionError``: if none is within ``timeout_s``, or with the reason of one that refuses.
        """
        call = self._call()
        security = self._settings.security
        try:
            await asyncio.wait_for(call.wait_for_connection(), timeout_s)
        except asyncio.TimeoutError:
            detail = f"no connection within {timeout_s:.3g} s"
            raise connect_error(detail, self.address, security) from None
        except grpc.aio.AioRpcError as error:
            detail = error.details() or ""
            if is_unconnected(error.code(), detail):
                raise connect_error(detail, self.address, security) from None
            raise stream_error(error.code(), detail, self.address) from None
        return GrpcTransport(call, self.address, on_close=self.close)

    def _call(self) -> Call:
        call: Call = VerifierStub(self._channel).Session(metadata=self._settings.security.metadata)
        return call


class GrpcConnector:
    """Reaches one verifier (a ``Connector``); each stream has a connection of its own.

    A lost stream may have left a connection that looks alive, and gRPC would wait as long as it likes before
    it made another.
    """

    def __init__(self, address: str, settings: LinkSettings | None = None) -> None:
        """Raises ``AcespecError`` as ``VerifierChannel`` does, when the first stream is made."""
        self._address = address
        self._settings = settings

    async def __call__(self, timeout_s: float) -> EdgeTransport:
        """One attempt. Raises ``SessionError`` if it fails."""
        channel = VerifierChannel(self._address, self._settings)
        try:
            return await channel.connect(timeout_s)
        except BaseException:
            await channel.close()
            raise


class GrpcTransport:
    """``EdgeTransport`` over one bidirectional gRPC stream."""

    def __init__(
        self,
        call: Call,
        address: str,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``on_close`` closes what was opened for this stream alone."""
        self._call: Call | None = call
        self._address = address
        self._on_close = on_close
        self._traffic = LinkBytes()
        self._status: tuple[grpc.StatusCode, str] | None = None
        call.add_done_callback(self._note_status)

    @property
    def traffic(self) -> LinkBytes:
        return self._traffic

    async def send(self, message: pb.EdgeMessage) -> None:
        # What is raised refers to the frames it passed through: none of them may hold the call (see `close`).
        over = False
        try:
            await self._open_call().write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            over = True
        if over:
            raise await self._reason()
        self._traffic.count_up(message.ByteSize())

    async def receive(self) -> pb.CloudMessage:
        message: object = None
        with contextlib.suppress(grpc.aio.AioRpcError):
            message = await self._open_call().read()
        if not isinstance(message, pb.CloudMessage):  # grpc.aio.EOF, or nothing
            raise await self._reason()
        self._traffic.count_down(message.ByteSize())
        return message

    async def close(self) -> None:
        call, self._call = self._call, None  # gRPC keeps a connection while anything refers to its calls
        if call is not None:
            call.cancel()
        if self._on_close is not None:
            await self._on_close()

    def _open_call(self) -> Call:
        if self._call is None:
            raise SessionError(ErrorCode.UNAVAILABLE, "this side closed the stream; open another")
        return self._call

    def _note_status(self, call: Call) -> None:
        """Keep the status the stream ended with, at the moment it is there.

        grpc.aio puts an INTERNAL of its own in its place if a message was being written meanwhile.
        """
        self._status = self._status or (
            result_at_once(call.code()),
            result_at_once(call.details()),
        )

    async def _reason(self) -> SessionError:
        """Why the stream is over, from its gRPC status."""
        await self._open_call().code()  # waits for the end
        assert self._status is not None
        status, detail = self._status
        return stream_error(status, detail or "", self._address)


def result_at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for, without giving other tasks a turn."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the coroutine waits for something")
