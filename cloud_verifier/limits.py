"""What the verifier takes on: bounds that stand before any memory is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from acespec.wire import MAX_CHAIN, MAX_RACE_NODES, Eagerness


@dataclass(frozen=True)
class Limits:
    """Bounds of one server. The defaults are safe for a server open to strangers. Raises ``ValueError``."""

    max_sessions: int = 256
    """Sessions with a stream or waiting to be resumed."""
    max_context: int | None = None
    """Positions a session may use, prompt included; None: as many as the target knows."""
    max_chain: int = MAX_CHAIN
    """Longest chain that is checked; what a round has beyond it is not looked at."""
    open_timeout_s: float = 10.0
    """How long a stream may take to introduce itself."""
    idle_timeout_s: float = 600.0
    """How long a stream may send nothing while nothing is owed to it; then it is ended, to be resumed."""
    write_timeout_s: float = 30.0
    """How long a message to the edge may wait for room in the stream; then it is ended, to be resumed."""
    resume_ttl_s: float = 120.0
    """How long a session without a stream is kept; 0: it ends with its stream."""
    evict_after_s: float = 2.0
    """How long a session with a stream must be idle before another may take its keys and values."""
    busy_retry_ms: int = 250
    """What ``Busy`` tells the edge to wait."""
    token_budget: int = 512
    """Most tokens of one forward, over all sequences."""
    batch_wait_ms: float = 2.0
    """How long an idle target waits for others to join a forward."""
    prefill_deadline_ms: float = 500.0
    """How urgent a prompt is, beside rounds, which are due at once."""
    race_eagerness: Eagerness | None = Eagerness.BALANCED
    """When the target computes for a racing session; None: nobody races here."""
    race_patience_ms: float = 1000.0
    """How long a session waits for drafts where forwards are to be few (``Eagerness.COST``)."""
    max_race_nodes: int = 256
    """Drafted nodes kept for a session."""
    max_race_width: int = 64
    """Most of them that a forward takes along; room is set aside for so many."""
    pad_sizes: bool = False
    """Whether messages are padded to a few sizes, so that their length tells nothing."""

    def __post_init__(self) -> None:
        for name in (
            "max_sessions",
            "max_chain",
            "busy_retry_ms",
            "token_budget",
            "max_race_nodes",
            "max_race_width",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_race_nodes > MAX_RACE_NODES:
            raise ValueError(f"max_race_nodes must be at most {MAX_RACE_NODES}, not {self.max_race_nodes}")
        if self.max_chain > MAX_CHAIN:
            raise ValueError(f"max_chain must be at most {MAX_CHAIN}, not {self.max_chain}")
        if self.token_budget <= self.max_chain:
            raise ValueError(
                f"token_budget must be above max_chain ({self.max_chain}): a round is one forward; "
                f"not {self.token_budget}"
            )
        if self.max_context is not None and self.max_context < 2:
            raise ValueError(f"max_context must be at least 2, not {self.max_context}")
        for name in ("open_timeout_s", "idle_timeout_s", "write_timeout_s"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in (
            "resume_ttl_s",
            "evict_after_s",
            "batch_wait_ms",
            "prefill_deadline_ms",
            "race_patience_ms",
        ):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
