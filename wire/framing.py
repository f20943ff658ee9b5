"""What carries messages adds to them on the wire, in bytes, on a connection that stands.

Measured on streams of small messages; `tests/test_wire_overhead.py` counts gRPC's on real connections.
"""

from __future__ import annotations

GRPC_BYTES = 14
"""Of every message: HTTP/2's frame header and gRPC's prefix."""
GRPC_UPDATE_BYTES = 26
"""Of a message that is sent after one came: two HTTP/2 window updates, the stream's and the connection's."""
TLS_BYTES = 22
"""Of every message: the record that it travels in."""
TCP_IP_BYTES = 52
"""Headers of every segment: TCP with time stamps, and IPv4."""
