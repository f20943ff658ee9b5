"""What a message costs on the wire beyond its payload: framing, headers, acknowledgements."""

from __future__ import annotations

from dataclasses import dataclass

from acespec.bench.link import SEGMENT_BYTES
from acespec.wire import GRPC_BYTES, GRPC_UPDATE_BYTES, TCP_IP_BYTES


@dataclass(frozen=True)
class WireOverhead:
    """Bytes added to messages in plaintext, on a connection that stands already (see `wire/framing.py`)."""

    message_bytes: int = GRPC_BYTES
    update_bytes: int = GRPC_UPDATE_BYTES
    """More with a message that is sent after one came."""
    segment_bytes: int = TCP_IP_BYTES
    ack_bytes: int = TCP_IP_BYTES
    """A segment without data."""
    ack_delay_ms: float = 40.0
    """How long an acknowledgement waits for data to travel with (Linux's least, RFC 1122 allows 500)."""

    def segments(self, payload_bytes: int, answers: bool = False) -> list[int]:
        """Bytes on the wire of each segment of one message; ``answers``: something came since the last."""
        left = payload_bytes + self.message_bytes + (self.update_bytes if answers else 0)
        sizes = []
        while left > 0:
            sizes.append(min(left, SEGMENT_BYTES) + self.segment_bytes)
            left -= SEGMENT_BYTES
        return sizes
