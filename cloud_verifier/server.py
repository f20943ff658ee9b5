"""The server process: gRPC, health, signals and an orderly end.

Two services answer: the verifier's, and the standard health service. There is no server reflection.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from acespec.cloud_verifier.addresses import authority, cannot_listen
from acespec.cloud_verifier.authentication import AnyoneAuthenticator
from acespec.cloud_verifier.gate import Gate
from acespec.cloud_verifier.health import HealthService
from acespec.cloud_verifier.observer import Observer
from acespec.cloud_verifier.security import Security
from acespec.cloud_verifier.server_options import ServerOptions, channel_options
from acespec.cloud_verifier.service import SERVICE_NAME, VerifierService
from acespec.cloud_verifier.verifier import Verifier
from acespec.wire.verifier_pb2_grpc import add_VerifierServicer_to_server

logger = logging.getLogger(__name__)

GOODBYE_S = 1.0
"""For the last messages and statuses to leave once nothing is served any more."""


class VerifierServer:
    """A gRPC server with the verifier and the standard health service."""

    def __init__(
        self,
        verifier: Verifier,
        options: ServerOptions,
        security: Security | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Make it inside the running event loop that will serve.

        ``security`` None serves everybody in plaintext. ``observer`` is told of streams that were not let in.
        """
        security = security or Security(credentials=None, authenticator=AnyoneAuthenticator())
        self._options = options
        self._credentials = security.credentials
        self._health = HealthService(SERVICE_NAME)
        self._server = grpc.aio.server(options=channel_options(options, verifier.max_context))
        self._verifier = verifier
        observer = observer or Observer()
        gate = Gate(security.authenticator, observer)
        service = VerifierService(verifier, options.max_streams, gate, observer)
        add_VerifierServicer_to_server(service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self) -> str:
        """Listen, and return the address with the port in use. Raises ``AcespecError`` if that cannot be."""
        host, port = self._options.host, self._options.port
        address = authority(host, port)
        try:
            if self._credentials is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise cannot_listen(host, port, "gRPC could not bind it") from error
        await self._server.start()
        self._health.report(health_pb2.HealthCheckResponse.SERVING)
        return authority(host, bound)

    async def stop(self, drain_timeout_s: float) -> None:
        """Report NOT_SERVING, answer what is under way, and free everything.

        What is not answered within ``drain_timeout_s`` seconds is ended all the same. Edges are told to
        connect elsewhere, or here again later.
        """
        self._health.report(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._verifier.drain(drain_timeout_s)
        await self._server.stop(GOODBYE_S)


def settle_memory() -> None:
    """Tell Python's garbage collector that what is loaded now stays, and to look for cycles less often.

    With many sessions it otherwise took an eighth of the server's time: every message makes short-lived
    objects, of which none is in a cycle. Each stream leaves one cycle of gRPC's own, so whole collections
    must not be rare either; they walk what sessions hold, and nothing else.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 5)


async def serve_until_signal(
    server: VerifierServer,
    signals: asyncio.Queue[signal.Signals],
    drain_timeout_s: float,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until one of ``signals``; a second one cuts draining short. ``on_ready`` is told the address.

    One that is there already does no harm: the server starts and stops.
    """
    on_ready(await server.start())
    logger.info("stopping on %s", (await signals.get()).name)
    stopping = asyncio.ensure_future(server.stop(drain_timeout_s))
    impatient = asyncio.ensure_future(signals.get())
    await asyncio.wait([stopping, impatient], return_when=asyncio.FIRST_COMPLETED)
    impatient.cancel()
    if not stopping.done():
        await server.stop(0.0)
    await stopping
