"""The errors of a link that fails, and of a verifier that does what the protocol forbids."""

from __future__ import annotations

from acespec.wire import CloudMessage, ErrorCode, SessionError


class LinkError(SessionError):
    """The link was lost, or none came about; another attempt may succeed."""

    def __init__(self, cause: str, remedy: str = "") -> None:
        """``remedy`` begins with what joins it to ``cause``."""
        super().__init__(ErrorCode.UNAVAILABLE, cause + remedy)
        self.cause = cause


def cause_of(error: SessionError) -> str:
    """What happened, without the remedy where it can be told apart: it need not follow every attempt."""
    return error.cause if isinstance(error, LinkError) else error.message


def protocol_error(cause: str) -> SessionError:
    """The error for a verifier that breaks the protocol; ``cause`` says what it did."""
    return SessionError(
        ErrorCode.INTERNAL,
        f"the verifier broke the protocol: {cause}; check that both sides run the same version of acespec",
    )


def unexpected(message: CloudMessage, expected: str) -> SessionError:
    """The error for a message that came where another had to."""
    return protocol_error(f"it sent {type(message).__name__} where {expected} had to come")
