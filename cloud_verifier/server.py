"""The server process: gRPC, health, signals and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from acespec.cloud_verifier.service import SERVICE_NAME, VerifierService
from acespec.cloud_verifier.verifier import Verifier
from acespec.errors import AcespecError
from acespec.wire.verifier_pb2_grpc import add_VerifierServicer_to_server

logger = logging.getLogger(__name__)

OPEN_BYTES_PER_POSITION = 12
"""Room for a prompt four times the context: a session refuses it with a better error than gRPC's."""


GOODBYE_S = 1.0
"""For the last messages and statuses to leave once nothing is served any more."""


@dataclass(frozen=True)
class ServerOptions:
    """Where to listen and how much to take on. The connection is plaintext."""

    host: str = "127.0.0.1"
    port: int = 50051
    """0 picks a free one."""
    max_streams: int = 320
    """Streams at a time, those that wait for a session to be admitted included."""
    grace_s: float = 5.0
    """How long sessions under way may go on when the server is told to stop."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"port must be 0..65535, not {self.port}")
        if self.max_streams < 1:
            raise ValueError(f"max_streams must be at least 1, not {self.max_streams}")


def check_address(options: ServerOptions) -> None:
    """Raise ``AcespecError`` if the server could not listen: told before a large model is loaded in vain."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise cannot_listen(options, error.strerror or str(error)) from error


def cannot_listen(options: ServerOptions, reason: str) -> AcespecError:
    return AcespecError(
        f"cannot listen on {options.host} port {options.port} ({reason}); "
        "choose another --port, 0 for any that is free, or another --host"
    )


class VerifierServer:
    """A gRPC server with the verifier and the standard health service."""

    def __init__(
        self,
        verifier: Verifier,
        options: ServerOptions,
    ) -> None:
        """Make it inside the running event loop that will serve."""
        self._options = options
        self._health = health_aio.HealthServicer()
        self._server = grpc.aio.server(options=channel_options(verifier.max_context))
        self._verifier = verifier
        service = VerifierService(verifier, options.max_streams)
        add_VerifierServicer_to_server(service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self) -> str:
        """Listen, and return the address with the port in use. Raises ``AcespecError`` if that cannot be."""
        host, port = self._options.host, self._options.port
        address = f"[{host}]" if ":" in host else host
        try:
            bound = self._server.add_insecure_port(f"{address}:{port}")
        except RuntimeError as error:
            raise cannot_listen(self._options, "gRPC could not bind it") from error
        await self._server.start()
        await self._health.set(SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
        return f"{address}:{bound}"

    async def stop(self, grace_s: float) -> None:
        """Report NOT_SERVING, answer what is under way for up to ``grace_s`` seconds, and free everything.

        Edges are told to connect elsewhere, or here again later.
        """
        await self._health.enter_graceful_shutdown()
        await self._verifier.drain(grace_s)
        await self._server.stop(GOODBYE_S)


async def serve_until_signal(server: VerifierServer, grace_s: float, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; a second one cuts the grace short. ``on_ready`` is told the address."""
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    on_ready(await server.start())
    logger.info("stopping on %s", (await signals.get()).name)
    stopping = asyncio.ensure_future(server.stop(grace_s))
    impatient = asyncio.ensure_future(signals.get())
    await asyncio.wait([stopping, impatient], return_when=asyncio.FIRST_COMPLETED)
    impatient.cancel()
    if not stopping.done():
        await server.stop(0.0)
    await stopping


def channel_options(max_context: int) -> list[tuple[str, int]]:
    """gRPC's settings for a target of ``max_context`` positions."""
    return [
        # Without this a second server on the port would silently share it.
        ("grpc.so_reuseport", 0),
        # Open is the only large message: it carries the prompt.
        ("grpc.max_receive_message_length", 65_536 + OPEN_BYTES_PER_POSITION * max_context),
        # NAT tables forget silent connections after a few minutes; clients may ping as well, also while idle.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
    ]
