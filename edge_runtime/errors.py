"""The error for a verifier that does what the protocol forbids."""

from __future__ import annotations

from acespec.wire import CloudMessage, ErrorCode, SessionError


def protocol_error(cause: str) -> SessionError:
    """The error for a verifier that breaks the protocol; ``cause`` says what it did."""
    return SessionError(
        ErrorCode.INTERNAL,
        f"the verifier broke the protocol: {cause}; check that both sides run the same version of acespec",
    )


def unexpected(message: CloudMessage, expected: str) -> SessionError:
    """The error for a message that came where another had to."""
    return protocol_error(f"it sent {type(message).__name__} where {expected} had to come")
