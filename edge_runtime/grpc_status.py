"""What the status a gRPC stream ended with says: is the link lost, or has the server refused? No I/O.

The texts looked for are those of gRPC's C core (1.85), read off by cutting connections and
failing handshakes.
"""

from __future__ import annotations

import re

import grpc

from acespec.edge_runtime.channel_security import ChannelSecurity
from acespec.edge_runtime.errors import LinkError
from acespec.wire import ErrorCode, SessionError
from acespec.wire.errors import SERVER_FAILED

LOST = frozenset(
    {
        grpc.StatusCode.OK,  # the server ended the stream, as it does with idle ones
        grpc.StatusCode.UNAVAILABLE,  # connection refused, reset or closed; GOAWAY; a server that stops
        grpc.StatusCode.CANCELLED,  # RST_STREAM(CANCEL), as proxies send it
        grpc.StatusCode.DEADLINE_EXCEEDED,  # the longest a proxy lets a stream live; the edge sets none
        grpc.StatusCode.UNKNOWN,  # a handler or a proxy that failed without a word
        grpc.StatusCode.DATA_LOSS,
    }
)
"""Statuses after which another stream may do better."""

MAX_DETAIL = 500
"""Characters of a text from the network that are shown."""


def stream_error(status: grpc.StatusCode, detail: str, address: str) -> SessionError:
    """Why a stream to ``address`` is over; UNAVAILABLE if it is worth another."""
    detail = one_line(detail)
    if is_lost(status, detail):
        said = f" ({detail})" if detail else ""
        return LinkError(f"lost the verifier at {address}{said}", "; is it still running?")
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in detail:  # gRPC's own words
        return SessionError(
            ErrorCode.RESOURCE_EXHAUSTED,
            f"the verifier takes no message as large as this prompt ({detail}); shorten the prompt",
        )
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return SessionError(ErrorCode.INTERNAL, f"{address} is no verifier ({detail}): check the address")
    known = {code.value for code in ErrorCode}
    code = ErrorCode(status.name) if status.name in known else ErrorCode.INTERNAL
    return SessionError(code, f"the verifier refused: {detail}")


def is_lost(status: grpc.StatusCode, detail: str) -> bool:
    """Whether the link was lost, and not a request refused."""
    if status is grpc.StatusCode.INTERNAL:
        return not detail.startswith(SERVER_FAILED)
    return status in LOST or "RST_STREAM" in detail


def is_unconnected(status: grpc.StatusCode, detail: str) -> bool:
    """Whether a stream ended before there was a connection for it."""
    texts = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
    return status is grpc.StatusCode.UNAVAILABLE and detail.startswith(texts)


def connect_error(detail: str, address: str, security: ChannelSecurity) -> SessionError:
    """Why no connection to ``address`` came about; UNAVAILABLE if another attempt may succeed.

    TLS may fail in ways that no attempt mends. gRPC calls those UNAVAILABLE as well: only its text tells.
    """
    detail = one_line(detail)
    refusal = tls_refusal(detail)
    if refusal is not None:
        return SessionError(
            ErrorCode.UNAUTHENTICATED, f"TLS with the verifier at {address} failed: {refusal}"
        )
    reason = last_reason(detail)
    hint = "check the address, or start one with: acespec serve"
    if security.certificate is not None and "Socket closed" in reason:
        hint = (
            f"does it speak TLS, and does it take {security.certificate} (--tls-cert): is that of a CA under "
            "the server's --tls-client-ca, and valid today?"
        )
    elif security.tls and "Socket closed" in reason:
        hint = "does it speak TLS, and does it ask for a client's certificate (--tls-cert, --tls-key)?"
    elif "Socket closed" in reason:
        hint = "does it ask for TLS (--tls, --tls-ca)? Otherwise " + hint
    return LinkError(f"no verifier answers at {address} ({reason})", f": {hint}")


def one_line(detail: str) -> str:
    """``detail`` in one line of bounded length: others wrote it."""
    line = " ".join(detail.split())
    return line if len(line) <= MAX_DETAIL else line[:MAX_DETAIL] + "…"


def tls_refusal(detail: str) -> str | None:
    """What is wrong with the other side's TLS and the remedy; None for anything that may pass."""
    if "Hostname Verification Check failed" in detail:
        return "its certificate is for another name; connect by that name, or give it with --tls-server-name"
    if "WRONG_VERSION_NUMBER" in detail:
        return "it does not speak TLS; leave out the --tls options, or start it with TLS"
    untrusted = re.search(r"CERTIFICATE_VERIFY_FAILED: ([^:]+)", detail)
    if untrusted is not None:
        reason = untrusted[1].strip()
        if "expired" in reason or "not yet valid" in reason:
            return f"its certificate is not valid now ({reason}); renew it, or set this machine's clock"
        return f"its certificate is not trusted ({reason}); give the CA it comes from with --tls-ca"
    failed = re.search(r"(?:Tls|Ssl) handshake failed.*?OPENSSL_internal:(\w+)", detail, re.IGNORECASE)
    if failed is not None:
        return f"the handshake was refused ({failed[1]}); check --tls-ca, --tls-cert and --tls-key"
    return None


def last_reason(detail: str) -> str:
    """The part of gRPC's text on a failed connection that says what happened."""
    reason = re.sub(r"^.*last error: \w+: (?:ipv[46]:\S+: )?", "", detail)
    lookup = re.search(r"address lookup failed for [^:]+(?::\d+)?: ([^\]]+)", reason)
    if lookup is not None:
        return lookup[1].strip()
    return reason.removeprefix("Failed to connect to remote host: ").strip() or "no reason given"
