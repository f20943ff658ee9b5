"""The sessions of one verifier: who may begin one, and which one makes room for another."""

from __future__ import annotations

from collections.abc import Iterator

from acespec.cloud_verifier.busy import BusyError
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.session import Session
from acespec.cloud_verifier.tenants import QuotaError, Tenant, TenantLedger


class Registry:
    """Sessions by tenant and id: the id of one tenant's session means nothing for another tenant."""

    def __init__(self, limits: Limits, ledger: TenantLedger) -> None:
        self._limits = limits
        self._ledger = ledger
        self._sessions: dict[tuple[str, bytes], Session] = {}
        self._parked: dict[Session, float] = {}  # since when, oldest first

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    @property
    def num_parked(self) -> int:
        """Sessions without a stream."""
        return len(self._parked)

    def find(self, tenant: Tenant, session_id: bytes) -> Session | None:
        """The tenant's session of that id, if it still stands."""
        return self._sessions.get((tenant.name, session_id))

    def victim(self, session: Session) -> Session | None:
        """The session without a stream to be given up for ``session``: of its own tenant if there is one.

        None if ``session`` can be added as things are. Raises ``QuotaError`` if its tenant is over quota, and
        ``BusyError`` if the server is full, where no session without a stream would change that.
        """
        tenant = session.tenant
        own = next((parked for parked in self._parked if parked.tenant.name == tenant.name), None)
        try:
            self._ledger.check(tenant, session.kv_bytes)
        except QuotaError:
            if own is None:
                raise
            return own
        if len(self._sessions) < self._limits.max_sessions:
            return None
        victim = own or next(iter(self._parked), None)
        if victim is None:
            raise BusyError(self._limits.busy_retry_ms)
        return victim

    def add(self, session: Session) -> None:
        """Book a session, once it has no victim."""
        self._ledger.admit(session.tenant, session.kv_bytes)
        self._sessions[session.tenant.name, session.id] = session

    def park(self, session: Session, now: float) -> None:
        """The session has lost its stream at ``now``."""
        self._parked[session] = now

    def unpark(self, session: Session) -> None:
        """The session has a stream again."""
        self._parked.pop(session, None)

    def expired(self, now: float) -> list[Session]:
        """Sessions that were without a stream for too long."""
        limit = now - self._limits.resume_ttl_s
        return [session for session, since in self._parked.items() if since <= limit]

    def remove(self, session: Session) -> bool:
        """Take a session off the books; False if it is not on them (any more)."""
        if self._sessions.pop((session.tenant.name, session.id), None) is None:
            return False
        self._parked.pop(session, None)
        self._ledger.release(session.tenant, session.kv_bytes)
        return True
