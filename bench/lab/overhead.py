"""What a message costs on the wire beyond its payload: framing, headers, acknowledgements."""

from __future__ import annotations

from dataclasses import dataclass

from acespec.bench.link import SEGMENT_BYTES


@dataclass(frozen=True)
class WireOverhead:
    """Bytes added to messages on a connection that stands already.

    Measured on streams of small messages in plaintext (`tests/test_wire_overhead.py`); TLS adds 22 bytes a
    message. TCP and IPv4 headers with time stamps are 52 bytes a segment. Setting up a connection or a stream
    is not in it.
    """

    message_bytes: int = 14
    """HTTP/2's frame header and gRPC's prefix."""
    update_bytes: int = 26
    """With a message that is sent after one came: what that has taken of two flow-control windows."""
    segment_bytes: int = 52
    ack_bytes: int = 52
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
