"""The gate each stream passes first: who is not known leaves without learning why."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import grpc
import grpc.aio

from acespec.cloud_verifier.authentication import (
    AnyoneAuthenticator,
    AuthenticationError,
    Authenticator,
    presented_by,
)
from acespec.cloud_verifier.observer import Observer
from acespec.cloud_verifier.tenants import Tenant
from acespec.cloud_verifier.tls import utc_now

logger = logging.getLogger(__name__)

LINES_AT_ONCE = 20
LINES_PER_S = 1.0


class Gate:
    """Asks the authenticator about each stream, before anything is read from it."""

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        observer: Observer | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """``authenticator`` None lets everybody in."""
        self._authenticator = authenticator or AnyoneAuthenticator()
        self._observer = observer or Observer()
        self._now = now
        self._log = LineRation(LINES_AT_ONCE, LINES_PER_S)

    async def tenant(self, context: grpc.aio.ServicerContext[Any, Any]) -> Tenant:
        """Whose stream it is. One of nobody's is ended as UNAUTHENTICATED, and told where the log has why."""
        try:
            presented = presented_by(context.invocation_metadata() or (), context.auth_context())
            return self._authenticator.tenant(presented, self._now())
        except AuthenticationError as error:
            correlation = secrets.token_hex(8)
            self._note(correlation, context.peer(), error)
            message = f"the verifier does not know you; its log has the reason under {correlation}"
            return await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)

    def _note(self, correlation: str, peer: str, error: AuthenticationError) -> None:
        self._observer.refused(grpc.StatusCode.UNAUTHENTICATED.name)
        skipped = self._log.skipped(time.monotonic())
        if skipped is not None:
            more = f" ({skipped} more were refused since the last line)" if skipped else ""
            logger.warning("%s: %s was not let in: %s%s", correlation, peer, error, more)


class LineRation:
    """Lets through so many log lines at once and so many a second: strangers must not fill the disk."""

    def __init__(self, at_once: int, per_s: float) -> None:
        self._at_once = at_once
        self._per_s = per_s
        self._left = float(at_once)
        self._last: float | None = None
        self._skipped = 0

    def skipped(self, now: float) -> int | None:
        """How many lines were kept back since the last; None: keep this one back too. ``now`` in seconds."""
        if self._last is not None:
            self._left = min(self._at_once, self._left + self._per_s * (now - self._last))
        self._last = now
        if self._left < 1.0:
            self._skipped += 1
            return None
        self._left -= 1.0
        skipped, self._skipped = self._skipped, 0
        return skipped
