"""The one error type that crosses the wire."""

from __future__ import annotations

from enum import Enum

from acespec.errors import AcespecError


class ErrorCode(str, Enum):
    """Why a session was refused or ended; the gRPC status of the same name carries it."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    """A message that breaks the protocol or is out of bounds."""
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    """Model, vocabulary or protocol version differ, or the context does not fit."""
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    """No credentials, or none that count."""
    PERMISSION_DENIED = "PERMISSION_DENIED"
    ABORTED = "ABORTED"
    """Another stream took the session over."""
    UNAVAILABLE = "UNAVAILABLE"
    """The server cannot be reached or is shutting down."""
    INTERNAL = "INTERNAL"


SERVER_FAILED = "the verifier failed"
"""How the verifier's own INTERNAL begins. Any other is gRPC's: a broken frame, RST_STREAM(INTERNAL_ERROR), or
a stream that ended while a message was being written."""


class SessionError(AcespecError):
    """A session ended by the other side or by the link. ``message`` is one line: the cause and the remedy."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def malformed(cause: str) -> SessionError:
    """The error for a message that breaks the protocol; ``cause`` is one line."""
    return SessionError(ErrorCode.INVALID_ARGUMENT, cause)
