"""Who uses a verifier, how much each may use, and how much each does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from acespec.wire import ErrorCode, SessionError

MAX_NAME_LENGTH = 128
FORGET_EVERY_S = 60.0
"""How often tenants whose bucket has filled up again are looked for."""
UNBOUNDED = 2**31
"""Tokens of a tenant whose rate has no bound."""
CLOCK_SLACK_S = 1e-6
"""A wait shorter than this is over: a caller that comes back in time must not be put off by rounding."""


@dataclass(frozen=True)
class Quota:
    """What one tenant may use at a time; None is no bound of its own. Raises ``ValueError``."""

    max_sessions: int | None = None
    tokens_per_s: float | None = None
    """Tokens through the target: prompts, chains and decoded ones. A second's worth may come at once."""
    kv_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_sessions", "kv_bytes"):
            bound = getattr(self, name)
            if bound is not None and bound < 1:
                raise ValueError(f"{name} must be at least 1, not {bound}")
        rate = self.tokens_per_s
        if rate is not None and not (rate > 0.0 and math.isfinite(rate)):
            raise ValueError(f"tokens_per_s must be above 0 and finite, not {rate}")


@dataclass(frozen=True)
class Tenant:
    """One customer of the verifier. Sessions of one are out of every other's reach. Raises ``ValueError``."""

    name: str
    """At most 128 printable characters: it stands in logs and metrics."""
    quota: Quota = field(default_factory=Quota)

    def __post_init__(self) -> None:
        if not (0 < len(self.name) <= MAX_NAME_LENGTH and self.name.isprintable()):
            raise ValueError(f"a tenant's name is 1 to {MAX_NAME_LENGTH} printable characters")


ANONYMOUS = Tenant("anonymous")
"""Whoever connects to a server without authentication."""


class QuotaError(SessionError):
    """A tenant has used up a quota; the message names it."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.RESOURCE_EXHAUSTED, message)


@dataclass
class Usage:
    """What one tenant uses now."""

    sessions: int = 0
    kv_bytes: int = 0
    full_at: float = -math.inf
    """When the token bucket is full again, in seconds of the caller's clock."""


class TenantLedger:
    """Keeps the books of every tenant's quotas. Time is the caller's; nothing waits here.

    The quota is the one of the ``Tenant`` passed in, so that a changed one counts at once. A tenant that has
    no session and whose bucket is full is forgotten, so that memory follows the tenants at work.
    """

    def __init__(self) -> None:
        self._usage: dict[str, Usage] = {}
        self._forget_at = -math.inf

    def __len__(self) -> int:
        """Tenants with something on the books."""
        return len(self._usage)

    def usage(self, name: str) -> Usage:
        """A copy of what the tenant ``name`` uses."""
        usage = self._usage.get(name, Usage())
        return Usage(usage.sessions, usage.kv_bytes, usage.full_at)

    def check(self, tenant: Tenant, kv_bytes: int) -> None:
        """Raise ``QuotaError`` if a session with ``kv_bytes`` of keys and values would be over quota."""
        quota, usage = tenant.quota, self._usage.get(tenant.name, Usage())
        if quota.max_sessions is not None and usage.sessions >= quota.max_sessions:
            raise QuotaError(
                f"the quota max_sessions of tenant {tenant.name!r} is used up ({quota.max_sessions}); "
                "close a session first"
            )
        if quota.kv_bytes is not None and usage.kv_bytes + kv_bytes > quota.kv_bytes:
            left = max(0, quota.kv_bytes - usage.kv_bytes)
            raise QuotaError(
                f"the session would take {kv_bytes} bytes of keys and values, and the quota kv_bytes "
                f"of tenant {tenant.name!r} has {left} of {quota.kv_bytes} left; "
                "ask for fewer tokens, or close a session first"
            )

    def admit(self, tenant: Tenant, kv_bytes: int) -> None:
        """Book a session with ``kv_bytes`` of keys and values, or nothing and raise ``QuotaError``."""
        self.check(tenant, kv_bytes)
        usage = self._usage.setdefault(tenant.name, Usage())
        usage.sessions += 1
        usage.kv_bytes += kv_bytes

    def release(self, tenant: Tenant, kv_bytes: int) -> None:
        """Take a session, admitted with the same ``kv_bytes``, off the books."""
        usage = self._usage[tenant.name]
        assert usage.sessions >= 1, f"{tenant.name} has no session to release"
        assert usage.kv_bytes >= kv_bytes, f"{tenant.name} has {usage.kv_bytes} bytes booked, not {kv_bytes}"
        usage.sessions -= 1
        usage.kv_bytes -= kv_bytes
        if usage.sessions == 0 and usage.full_at == -math.inf:
            del self._usage[tenant.name]

    def take(self, tenant: Tenant, tokens: int, now: float) -> float:
        """Take ``tokens`` at time ``now``: 0.0 if they were taken, else the seconds after which to ask again.

        The bucket (a leaky bucket as a meter; ITU-T I.371's generic cell rate algorithm) holds a second's
        worth. More than it holds is taken once it is full, and the debt is paid off before anything else is.
        """
        wait_s = self.wait_s(tenant, tokens, now)
        rate = tenant.quota.tokens_per_s
        if wait_s > 0.0 or rate is None:
            return wait_s
        self._forget(now)
        usage = self._usage.setdefault(tenant.name, Usage())
        usage.full_at = max(usage.full_at, now) + tokens / rate
        return 0.0

    def wait_s(self, tenant: Tenant, tokens: int, now: float) -> float:
        """What ``take`` would return, with nothing taken."""
        rate = tenant.quota.tokens_per_s
        if rate is None or tokens == 0:
            return 0.0
        filling = max(0.0, self._usage.get(tenant.name, Usage()).full_at - now)
        wait_s = filling - max(0.0, 1.0 - tokens / rate)
        return wait_s if wait_s > CLOCK_SLACK_S else 0.0

    def surplus(self, tenant: Tenant, now: float) -> int:
        """How many tokens may be taken that are only worth having: those above half of what the bucket holds.

        So what is checked beyond the next token keeps later ones waiting for half a second at most.
        """
        rate = tenant.quota.tokens_per_s
        if rate is None:
            return UNBOUNDED
        filling = max(0.0, self._usage.get(tenant.name, Usage()).full_at - now)
        return max(0, math.floor(rate * (0.5 - filling)))

    def _forget(self, now: float) -> None:
        if now < self._forget_at:
            return
        self._forget_at = now + FORGET_EVERY_S
        self._usage = {
            name: usage for name, usage in self._usage.items() if usage.sessions or usage.full_at > now
        }
