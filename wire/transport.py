"""A session's link as both ends see it, so that gRPC, an in-process queue and a simulated link are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from acespec.wire import verifier_pb2 as pb

NO_BANDWIDTH_PROBES = ("grpc.http2.bdp_probe", 0)
"""gRPC's channel option for both sides. Probes would widen the flow-control windows, whose 64 KiB are plenty
for our messages, and their pings took a tenth of a slow link (measured on a race's small messages)."""


@dataclass
class LinkBytes:
    """Serialized message bytes so far (payload: gRPC, TLS and TCP add their own).

    Counted at the edge: up when a message is sent, down when it is received.
    """

    up: int = 0
    down: int = 0
    messages_up: int = 0
    messages_down: int = 0

    def count_up(self, num_bytes: int) -> None:
        """One message of ``num_bytes`` was sent."""
        self.up += num_bytes
        self.messages_up += 1

    def count_down(self, num_bytes: int) -> None:
        """One message of ``num_bytes`` was received."""
        self.down += num_bytes
        self.messages_down += 1

    def add(self, other: LinkBytes) -> None:
        """Count what went over another stream too."""
        self.up += other.up
        self.down += other.down
        self.messages_up += other.messages_up
        self.messages_down += other.messages_down


class EdgeTransport(Protocol):
    """The edge's end of one session's stream."""

    @property
    def traffic(self) -> LinkBytes: ...

    async def send(self, message: pb.EdgeMessage) -> None:
        """Hand one message to the link. Raises ``SessionError`` if the session is over."""

    async def receive(self) -> pb.CloudMessage:
        """Wait for the next message. Raises ``SessionError`` with the server's reason if there is none."""

    async def close(self) -> None:
        """Close the stream; idempotent."""


class CloudTransport(Protocol):
    """The verifier's end of one session's stream.

    The verifier ends a session by leaving its handler: whoever called it turns a ``SessionError`` into the
    status the edge sees.
    """

    async def receive(self) -> pb.EdgeMessage | None:
        """Wait for the next message; None, and None again, once the edge has closed the stream."""

    async def send(self, message: pb.CloudMessage) -> None:
        """Hand one message to the link. Raises ``SessionError`` if the edge is gone."""
