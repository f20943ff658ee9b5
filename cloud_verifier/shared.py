"""What all sessions of a verifier share."""

from __future__ import annotations

from dataclasses import dataclass

from acespec.cloud_verifier.batcher import Batcher
from acespec.cloud_verifier.engine import TargetEngine
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import Observer
from acespec.cloud_verifier.seats import Seats
from acespec.cloud_verifier.tenants import TenantLedger


@dataclass(frozen=True)
class Shared:
    """One of each for the whole verifier."""

    engine: TargetEngine
    batcher: Batcher
    seats: Seats
    ledger: TenantLedger
    limits: Limits
    observer: Observer
