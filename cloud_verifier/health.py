"""The standard health service (``grpc.health.v1``), which strangers may ask."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

MAX_WATCHES = 64
"""Streams of ``Watch`` at a time. They need no credentials, and ``Check`` stays for everybody."""

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Response: Any = health_pb2.HealthCheckResponse  # protobuf makes its fields when it is loaded


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[name-defined, misc]
    """Tells one status for the server as a whole (the empty name) and for the one service it has.

    The library's own writes to its watchers under a lock that a change of the status waits for: one who does
    not read would keep a server from stopping.
    """

    def __init__(self, service: str, max_watches: int = MAX_WATCHES) -> None:
        self._names = ("", service)
        self._max_watches = max_watches
        self.num_watches = 0
        """Streams of ``Watch`` under way."""
        self._status: int = Response.NOT_SERVING
        self._changed = asyncio.Event()

    def report(self, status: int) -> None:
        """From now on it is ``status``, a ``HealthCheckResponse.ServingStatus``; who watches is told so."""
        self._status = status
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(self, request: Any, context: Context) -> Any:  # noqa: N802 - the protocol's name
        """The status. NOT_FOUND for a service that is not here."""
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service is here")
        return Response(status=self._status)

    async def Watch(self, request: Any, context: Context) -> None:  # noqa: N802 - the protocol's name
        """The status, and again whenever it has changed. RESOURCE_EXHAUSTED if too many watch."""
        if self.num_watches >= self._max_watches:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._max_watches} streams watch already; use Check"
            )
        self.num_watches += 1
        try:
            await self._tell(context, known=request.service in self._names)
        finally:
            self.num_watches -= 1

    async def _tell(self, context: Context, *, known: bool) -> None:
        told: int | None = None
        while True:
            changed = self._changed
            status = self._status if known else Response.SERVICE_UNKNOWN
            if status != told:
                await context.write(Response(status=status))
                told = status
            await changed.wait()
