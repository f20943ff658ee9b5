"""Who uses a verifier, how much each may use, and how much each does."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Quota:
    """What one tenant may use at a time; None is no bound of its own. Raises ``ValueError``."""

    max_sessions: int | None = None
    tokens_per_s: float | None = None
    """Tokens through the target: prompts, chains and decoded ones. A second's worth may come at once."""
    kv_bytes: int | None = None


@dataclass(frozen=True)
class Tenant:
    """One customer of the verifier. Sessions of one are out of every other's reach."""

    name: str
    quota: Quota = field(default_factory=Quota)


ANONYMOUS = Tenant("anonymous")
"""Whoever connects to a server without authentication."""
