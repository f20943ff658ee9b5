"""How a message is put off that cannot be taken now."""

from __future__ import annotations

from acespec.wire.handshake import MAX_RETRY_MS


class BusyError(Exception):
    """A message could not be taken now and changed nothing."""

    def __init__(self, retry_ms: int) -> None:
        super().__init__(retry_ms)
        self.retry_ms = min(max(1, retry_ms), MAX_RETRY_MS)
