"""What all sessions of a verifier share, and how one of them is put off."""

from __future__ import annotations

from dataclasses import dataclass

from acespec.cloud_verifier.batcher import Batcher
from acespec.cloud_verifier.engine import TargetEngine
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import Observer
from acespec.cloud_verifier.seats import Seats
from acespec.cloud_verifier.tenants import TenantLedger
from acespec.wire.handshake import MAX_RETRY_MS


@dataclass(frozen=True)
class Services:
    """What all sessions of a verifier share."""

    engine: TargetEngine
    batcher: Batcher
    seats: Seats
    ledger: TenantLedger
    limits: Limits
    observer: Observer


class BusyError(Exception):
    """A message could not be taken now and changed nothing."""

    def __init__(self, retry_ms: int) -> None:
        super().__init__(retry_ms)
        self.retry_ms = min(max(1, retry_ms), MAX_RETRY_MS)
