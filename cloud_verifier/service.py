"""The gRPC service: each stream becomes a link that a session is served over."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from acespec.cloud_verifier.engine import TargetEngine
from acespec.cloud_verifier.session import SessionLimits, serve_session
from acespec.compute import StepRunner
from acespec.wire import ErrorCode, SessionError
from acespec.wire import verifier_pb2 as pb
from acespec.wire.errors import malformed
from acespec.wire.verifier_pb2_grpc import VerifierServicer

SERVICE_NAME = "acespec.v1.Verifier"
"""The name health checks may ask for."""

Context: TypeAlias = grpc.aio.ServicerContext[pb.EdgeMessage, pb.CloudMessage]


class StreamLink:
    """The verifier's end of one gRPC stream (a ``CloudTransport``)."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ended = False

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
        await self._context.write(message)


class VerifierService(VerifierServicer):
    """Serves sessions on one target engine. What ends a session ends no other."""

    def __init__(
        self,
        engine: TargetEngine,
        runner: StepRunner,
        max_sessions: int,
        limits: SessionLimits | None = None,
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._max_sessions = max_sessions
        self._limits = limits
        self._num_sessions = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def drained(self) -> None:
        """Wait until no session is left, and what each held is freed."""
        await self._idle.wait()

    async def Session(  # type: ignore[override]  # noqa: N802 - the .proto's name; a coroutine that reads and writes
        self,
        request_iterator: Any,  # noqa: ARG002 - gRPC's signature; messages are read from the context
        context: Context,
    ) -> None:
        """One session; a ``SessionError`` becomes the stream's status."""
        if self._num_sessions >= self._max_sessions:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the server holds the {self._max_sessions} sessions it may hold; try again later",
            )
        self._num_sessions += 1
        self._idle.clear()
        try:
            await serve_session(StreamLink(context), self._engine, self._runner, limits=self._limits)
        except SessionError as error:
            await context.abort(status_of(error.code), error.message)
        finally:
            self._num_sessions -= 1
            if self._num_sessions == 0:
                self._idle.set()


def status_of(code: ErrorCode) -> grpc.StatusCode:
    """The gRPC status of the same name."""
    return grpc.StatusCode[code.value]
