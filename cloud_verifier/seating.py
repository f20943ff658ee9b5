"""A session's hold of its seat, and of the rate it pays with for every token."""

from __future__ import annotations

import asyncio
import math

from acespec.cloud_verifier.busy import BusyError
from acespec.cloud_verifier.committed import CommittedText
from acespec.cloud_verifier.seats import NoRoomError, Seat
from acespec.cloud_verifier.shared import Shared
from acespec.cloud_verifier.steps import Steps
from acespec.cloud_verifier.tenants import Tenant


class Seating:
    """Takes the seat and the rate together, or neither."""

    def __init__(self, tenant: Tenant, text: CommittedText, seat: Seat, steps: Steps, shared: Shared) -> None:
        self._tenant = tenant
        self._text = text
        self._seat = seat
        self._steps = steps
        self._shared = shared

    def check_rate(self) -> None:
        """Raise ``BusyError`` if the tenant's rate does not allow for all tokens committed."""
        now = asyncio.get_running_loop().time()
        _busy_if(self._shared.ledger.wait_s(self._tenant, len(self._text.tokens), now))

    def pay(self, num_tokens: int) -> None:
        """Take the tenant's rate for ``num_tokens`` that need no seat. Raises ``BusyError``."""
        now = asyncio.get_running_loop().time()
        _busy_if(self._shared.ledger.take(self._tenant, num_tokens, now))

    async def take(self, num_tokens: int) -> None:
        """Get hold of the seat, and of the tenant's rate for ``num_tokens`` and those missing before them.

        Raises ``BusyError``.
        """
        _busy_if(await self._wait_s(num_tokens))

    async def take_patiently(self) -> None:
        """Get hold of the seat for one token, however long that takes."""
        while (wait_s := await self._wait_s(1)) > 0.0:  # noqa: ASYNC110 - on a clock
            await asyncio.sleep(wait_s)

    def rest(self) -> None:
        """Let go of the seat for the moment."""
        self._shared.seats.rest(self._seat, asyncio.get_running_loop().time())

    async def _wait_s(self, num_tokens: int) -> float:
        """Get hold of the seat and of the rate, which is 0.0, or of neither: the seconds to wait."""
        now = asyncio.get_running_loop().time()
        shared, steps = self._shared, self._steps
        wait_s = shared.ledger.wait_s(self._tenant, num_tokens + steps.unpaid, now)
        if wait_s > 0.0:  # nobody's keys and values are given up for it
            return wait_s
        try:
            await shared.seats.take(self._seat, now)
        except NoRoomError:
            return shared.limits.busy_retry_ms / 1000.0
        wait_s = shared.ledger.take(self._tenant, num_tokens + steps.unpaid, now)
        if wait_s > 0.0:
            self.rest()
        else:
            self._seat.paid = len(self._text.tokens) - 1
        return wait_s


def _busy_if(wait_s: float) -> None:
    if wait_s > 0.0:
        raise BusyError(math.ceil(1000.0 * wait_s))
