"""Messages to protobuf and back, for one session.

Decoding is strict: whatever breaks a layout or a bound raises ``SessionError(INVALID_ARGUMENT)`` with one
precise line, before anything of a size the message does not justify is allocated. Encoding trusts its caller:
a value that does not fit is a bug and fails an assertion.
"""

from __future__ import annotations

from acespec.wire import verifier_pb2 as pb
from acespec.wire.cloud_codec import CloudCodec
from acespec.wire.edge_codec import EdgeCodec
from acespec.wire.handshake import decode_first, encode_busy, encode_open, encode_reset
from acespec.wire.messages import AcceptanceMode, CloudMessage, EdgeMessage

__all__ = ["Codec", "decode_first", "encode_busy", "encode_open", "encode_reset"]


class Codec:
    """Both directions of one session. The server reads ``Open`` with ``decode_first`` and then makes one."""

    def __init__(self, vocab_size: int, mode: AcceptanceMode) -> None:
        self._edge = EdgeCodec(vocab_size, mode)
        self._cloud = CloudCodec(vocab_size, mode)

    def encode_edge(self, message: EdgeMessage) -> pb.EdgeMessage:
        """Encode what the edge sends."""
        return self._edge.encode(message)

    def decode_edge(self, message: pb.EdgeMessage) -> EdgeMessage:
        """Check and decode what the edge sent; raises ``SessionError``."""
        return self._edge.decode(message)

    def encode_cloud(self, message: CloudMessage) -> pb.CloudMessage:
        """Encode what the cloud sends."""
        return self._cloud.encode(message)

    def decode_cloud(self, message: pb.CloudMessage) -> CloudMessage:
        """Check and decode what the cloud sent; raises ``SessionError``."""
        return self._cloud.decode(message)
