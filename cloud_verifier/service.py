"""The gRPC service: each stream becomes a link that a session is served over."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from acespec.cloud_verifier.gate import Gate
from acespec.cloud_verifier.observer import Observer
from acespec.cloud_verifier.tenants import QuotaError, Tenant
from acespec.cloud_verifier.verifier import Verifier
from acespec.wire import ErrorCode, SessionError
from acespec.wire import verifier_pb2 as pb
from acespec.wire.errors import malformed
from acespec.wire.verifier_pb2_grpc import VerifierServicer

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["Verifier"].full_name
"""The name health checks may ask for."""

Context: TypeAlias = grpc.aio.ServicerContext[pb.EdgeMessage, pb.CloudMessage]


class StreamLink:
    """The verifier's end of one gRPC stream (a ``CloudTransport``)."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ended = False
        self.stuck = False
        """Whether gRPC still writes a message that was given up: nothing can follow it, no status either."""

    async def receive(self) -> pb.EdgeMessage | None:
        if self._ended:
            return None
        try:
            message: object = await self._context.read()
        except DecodeError as error:
            raise malformed("a message is no protobuf: both sides need the same AceSpec release") from error
        if not isinstance(message, pb.EdgeMessage):  # grpc.aio.EOF
            self._ended = True
            return None
        return message

    async def send(self, message: pb.CloudMessage) -> None:
        try:
            await self._context.write(message)
        except asyncio.CancelledError:
            self.stuck = True
            raise


class VerifierService(VerifierServicer):
    """Hands each stream to the verifier, and its end back as a status."""

    def __init__(self, verifier: Verifier, max_streams: int, gate: Gate, observer: Observer) -> None:
        self._verifier = verifier
        self._max_streams = max_streams
        self._gate = gate
        self._observer = observer
        self._streams_of: Counter[str] = Counter()
        self._num_stuck = 0

    async def Session(  # type: ignore[override]  # noqa: N802 - the .proto's name; a coroutine that reads and writes
        self,
        request_iterator: Any,  # noqa: ARG002 - gRPC's signature; messages are read from the context
        context: Context,
    ) -> None:
        """One stream; a ``SessionError`` becomes its status."""
        tenant = await self._gate.tenant(context)
        refusal = self._refusal(tenant)
        if refusal is not None:
            self._observer.refused(refusal.code.value)
            await context.abort(status_of(refusal.code), refusal.message)
        self._streams_of[tenant.name] += 1
        link = StreamLink(context)
        try:
            await self._verifier.serve(link, tenant)
        except SessionError as error:
            if link.stuck:
                await self._wait_for_its_edge_to_leave()
            await context.abort(status_of(error.code), error.message)
        finally:
            self._streams_of[tenant.name] -= 1
            if not self._streams_of[tenant.name]:
                del self._streams_of[tenant.name]

    async def _wait_for_its_edge_to_leave(self) -> None:
        """Hold a stream whose edge reads nothing, until gRPC cancels this.

        gRPC's server has no way to end it. Left alone it would go on unseen for as long as its connection.
        """
        self._num_stuck += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._num_stuck -= 1

    def _refusal(self, tenant: Tenant) -> SessionError | None:
        """Why there is no room for one more stream of ``tenant``; None if there is.

        A full server is UNAVAILABLE, so that edges come back after a while: it may be others' doing.
        """
        quota = tenant.quota.max_sessions
        if quota is not None and self._streams_of[tenant.name] >= streams_for(quota):
            return QuotaError(
                f"tenant {tenant.name!r} has the {streams_for(quota)} streams that its quota max_sessions "
                f"({quota}) is good for; close a session first"
            )
        if self._verifier.num_streams + self._num_stuck >= self._max_streams:
            return SessionError(
                ErrorCode.UNAVAILABLE,
                f"the server holds the {self._max_streams} streams it may hold; try again later",
            )
        return None


def streams_for(sessions: int) -> int:
    """Streams that so many sessions may need: some are just being replaced by others."""
    return sessions + max(1, sessions // 4)


def status_of(code: ErrorCode) -> grpc.StatusCode:
    """The gRPC status of the same name."""
    return grpc.StatusCode[code.value]
