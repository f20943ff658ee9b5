"""The protocol between edge and cloud: messages as plain data, their packed encoding, and the session's link.

``verifier.proto`` documents every field and layout; ``Codec`` turns messages into it and back, strictly;
``EdgeTransport`` and ``CloudTransport`` are the two ends of a session whatever runs between them, and
``memory_link`` is such a pair in one process. gRPC itself is imported only where ``verifier_pb2_grpc`` is.
"""

from __future__ import annotations

from acespec.wire.codec import Codec, decode_first, encode_busy, encode_open, encode_reset
from acespec.wire.errors import ErrorCode, SessionError
from acespec.wire.framing import GRPC_BYTES, GRPC_UPDATE_BYTES, TCP_IP_BYTES, TLS_BYTES
from acespec.wire.layout import POSITION_LIMIT, downlink_bits_draws, downlink_bits_sparse, token_bits
from acespec.wire.memory import memory_link
from acespec.wire.messages import (
    DRAFTED_MODULUS,
    MAX_CHAIN,
    MAX_DRAFT_NODES,
    MAX_NODE_DISTANCE,
    MAX_RACE_NODES,
    PROTOCOL_VERSION,
    SEQ_MODULUS,
    AcceptanceMode,
    Busy,
    Close,
    CloudMessage,
    Commit,
    Decode,
    Draft,
    DraftNode,
    DraftsHeard,
    Eagerness,
    EdgeMessage,
    EndVerdict,
    MoreDraws,
    MoreTarget,
    Open,
    Opened,
    RejectVerdict,
    Reset,
    ResetReason,
    Resume,
    Round,
    ServerTimes,
    SparseTarget,
    TargetDraws,
    TokenVerdict,
    Verdict,
)
from acespec.wire.padding import pad
from acespec.wire.prefix_check import PrefixCheck
from acespec.wire.transport import NO_BANDWIDTH_PROBES, CloudTransport, EdgeTransport, LinkBytes

__all__ = [
    "DRAFTED_MODULUS",
    "GRPC_BYTES",
    "GRPC_UPDATE_BYTES",
    "MAX_CHAIN",
    "MAX_DRAFT_NODES",
    "MAX_NODE_DISTANCE",
    "MAX_RACE_NODES",
    "NO_BANDWIDTH_PROBES",
    "POSITION_LIMIT",
    "PROTOCOL_VERSION",
    "SEQ_MODULUS",
    "TCP_IP_BYTES",
    "TLS_BYTES",
    "AcceptanceMode",
    "Busy",
    "Close",
    "CloudMessage",
    "CloudTransport",
    "Codec",
    "Commit",
    "Decode",
    "Draft",
    "DraftNode",
    "DraftsHeard",
    "Eagerness",
    "EdgeMessage",
    "EdgeTransport",
    "EndVerdict",
    "ErrorCode",
    "LinkBytes",
    "MoreDraws",
    "MoreTarget",
    "Open",
    "Opened",
    "PrefixCheck",
    "RejectVerdict",
    "Reset",
    "ResetReason",
    "Resume",
    "Round",
    "ServerTimes",
    "SessionError",
    "SparseTarget",
    "TargetDraws",
    "TokenVerdict",
    "Verdict",
    "decode_first",
    "downlink_bits_draws",
    "downlink_bits_sparse",
    "encode_busy",
    "encode_open",
    "encode_reset",
    "memory_link",
    "pad",
    "token_bits",
]
