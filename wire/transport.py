"""A session's link as both ends see it, so that gRPC, an in-process queue and a simulated link are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from acespec.wire import verifier_pb2 as pb


@dataclass
class LinkBytes:
    """Serialized message bytes so far (payload: gRPC, TLS and TCP add their own)."""

    up: int = 0
    down: int = 0
    messages_up: int = 0
    messages_down: int = 0


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
