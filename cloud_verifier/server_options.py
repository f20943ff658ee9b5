"""Where the server listens and what it takes of the network."""

from __future__ import annotations

from dataclasses import dataclass

from acespec.wire import NO_BANDWIDTH_PROBES

OPEN_BYTES_PER_POSITION = 12
"""Room for a prompt four times the context: a session refuses it with a better error than gRPC's."""
OPEN_BYTES = 65_536
"""What else an ``Open`` may have."""
MAX_METADATA_BYTES = 16_384
"""Of one stream: a token, and what gRPC adds."""


@dataclass(frozen=True)
class ServerOptions:
    """Bounds of the network. The defaults are safe for a server open to strangers. Raises ``ValueError``."""

    host: str = "127.0.0.1"
    port: int = 50051
    """0 picks a free one."""
    max_connections: int = 1024
    """TCP connections at a time; more are closed at once."""
    max_streams: int = 320
    """Streams at a time, those that wait for a session to be admitted included."""
    connection_idle_s: float = 300.0
    """How long a connection may be without a stream; then it is closed."""
    handshake_timeout_s: float = 20.0
    """How long TLS and HTTP/2 may take to stand."""
    keepalive_s: float = 60.0
    """Ping after so long a silence: NAT tables forget silent connections after a few minutes."""
    keepalive_timeout_s: float = 20.0
    """How long a ping may go unanswered; then the connection is lost."""
    drain_timeout_s: float = 5.0
    """How long requests under way may take when the server is told to stop."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"port must be 0..65535, not {self.port}")
        for name in ("max_connections", "max_streams"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("connection_idle_s", "handshake_timeout_s", "keepalive_s", "keepalive_timeout_s"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if not self.drain_timeout_s >= 0.0:
            raise ValueError(f"drain_timeout_s must be at least 0, not {self.drain_timeout_s}")


def channel_options(options: ServerOptions, max_context: int) -> list[tuple[str, int]]:
    """gRPC's settings (``grpc/impl/channel_arg_names.h``) for sessions of ``max_context`` positions."""
    return [
        # Without this a second server on the port would silently share it.
        ("grpc.so_reuseport", 0),
        # Open is the only large message: it carries the prompt.
        ("grpc.max_receive_message_length", OPEN_BYTES + OPEN_BYTES_PER_POSITION * max_context),
        # gRPC refuses at random between a soft and a hard limit; equal, they are one.
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_allowed_incoming_connections", options.max_connections),
        ("grpc.max_concurrent_streams", options.max_streams),
        ("grpc.max_connection_idle_ms", milliseconds(options.connection_idle_s)),
        ("grpc.server_handshake_timeout_ms", milliseconds(options.handshake_timeout_s)),
        ("grpc.keepalive_time_ms", milliseconds(options.keepalive_s)),
        ("grpc.keepalive_timeout_ms", milliseconds(options.keepalive_timeout_s)),
        # Clients may ping as well, also while idle, but no more often than it takes to keep a NAT's entry.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
        NO_BANDWIDTH_PROBES,
    ]


def milliseconds(seconds: float) -> int:
    """At least 1: 0 would switch some of gRPC's timers off."""
    return max(1, round(1000.0 * seconds))
