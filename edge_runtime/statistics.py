"""What a generation measured, collected as it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from acespec.edge_runtime.outcome_estimates import OutcomeEstimates
from acespec.edge_runtime.reliability import Reliability, ReliabilityBin
from acespec.edge_runtime.step_clock import StepClock, now_ms
from acespec.wire import LinkBytes


@dataclass(frozen=True)
class GenerationMetrics:
    """The figures of one finished generation. ``None`` where nothing of the kind happened."""

    tokens: int
    tokens_per_s: float
    """Committed tokens over the whole time, from the request to the last token."""
    time_to_first_token_ms: float | None
    total_ms: float
    rounds: int
    tested: int
    """Chain tokens the target decided about: those up to and including a first rejection."""
    accepted: int
    lookups: int
    """Rounds that went on: their outcome was looked up in the tree."""
    hits: int
    """Lookups that found a branch with at least one token ready."""
    ready_tokens: int
    """Tokens that were ready in the branches found."""
    acceptance: float | None
    """Chain tokens accepted over chain tokens tested (those up to and including the first rejection)."""
    accepted_per_round: float | None
    hit_rate: float | None
    """Share of the rounds that went on whose outcome was in the tree with at least one token ready."""
    bytes_up_per_token: float
    """Serialized messages (payload), Open included."""
    bytes_down_per_token: float
    payload_bytes_up: int
    payload_bytes_down: int
    messages_up: int
    messages_down: int
    target_forwards_per_token: float
    """Verification and decoding forwards; the prefill is not counted."""
    mean_round_trip_ms: float | None
    mean_verify_ms: float | None
    """Queue and compute time the server reported."""
    mean_budget: float | None
    prefill_ms: float
    draft_ms: float
    """Engine steps that drafted the chain in sequence, while nothing was under way."""
    beside_ms: float
    """Engine steps that drafted beside the cloud's own decoding, to learn what would be accepted."""
    growth_ms: float
    """Engine steps that grew the tree, while a verdict was under way."""
    waiting_ms: float
    """Engine idle, waiting for the cloud."""
    own_ms: float
    """Everything else the edge did: its own work between model steps."""
    own_share: float
    """``own_ms`` over ``total_ms``."""
    idle_share: float
    """``waiting_ms`` over ``total_ms``."""
    alpha: float | None
    """Acceptance as estimated at the end, the prior included."""
    beta: float | None
    """Exponent of the candidate tail as estimated at the end."""
    draft_steps: int
    growth_steps: int
    reconnects: int
    """Streams opened after the first."""
    outage_ms: float
    """Time the verifier was out of reach; the engine's steps and ``waiting_ms`` went on meanwhile."""
    busy: int
    """Times the server had no room and asked for patience."""
    decoded_tokens: int
    """Tokens the cloud decoded by itself."""
    provisional_tokens: int
    """Tokens drafted in outages and shown as provisional; those confirmed later are in ``tokens`` too."""
    drafted_nodes: int = 0
    """Drafted tokens sent in a race, of all branches."""
    raced_tokens: int = 0
    """Tokens that drafts spared the target a forward for: a race's commits beyond one token each."""
    reliability: tuple[ReliabilityBin, ...] = ()
    """Of a race: chances that were estimated of drafted tokens, and how often the target took such."""


@dataclass
class Statistics:
    """Collects while a generation runs; ``report`` turns it into metrics."""

    started_ms: float = field(default_factory=now_ms)
    first_token_ms: float | None = None
    last_token_ms: float | None = None
    tokens: int = 0
    rounds: int = 0
    tested: int = 0
    accepted: int = 0
    lookups: int = 0
    hits: int = 0
    ready_tokens: int = 0
    forwards: int = 0
    """Of the target."""
    decoded: int = 0
    """Tokens the cloud decoded by itself."""
    waiting_ms: float = 0.0
    budgets: list[int] = field(default_factory=list)
    round_trips_ms: list[float] = field(default_factory=list)
    verify_ms: list[float] = field(default_factory=list)
    reconnects: int = 0
    outage_ms: float = 0.0
    busy: int = 0
    provisional: int = 0
    drafted_nodes: int = 0
    raced: int = 0
    """Tokens of a race's commits beyond one each."""
    reliability: Reliability | None = None

    @property
    def disturbances(self) -> int:
        """How often a round's time was not the link's and the server's usual one."""
        return self.reconnects + self.busy

    def count_tokens(self, count: int) -> None:
        """``count`` tokens were committed now."""
        self.last_token_ms = now_ms()
        if self.first_token_ms is None:
            self.first_token_ms = self.last_token_ms
        self.tokens += count

    def report(
        self, traffic: LinkBytes, clock: StepClock | None, outcomes: OutcomeEstimates | None
    ) -> GenerationMetrics:
        """The figures so far. ``clock`` and ``outcomes`` are None if no draft model ran."""
        total_ms = (self.last_token_ms if self.last_token_ms is not None else now_ms()) - self.started_ms
        model_ms = clock.model_ms if clock is not None else {}
        num_steps = clock.num_steps if clock is not None else {}
        own_ms = max(total_ms - sum(model_ms.values()) - self.waiting_ms, 0.0)
        tokens = max(self.tokens, 1)
        return GenerationMetrics(
            tokens=self.tokens,
            tokens_per_s=self.tokens / total_ms * 1000.0 if total_ms > 0 else 0.0,
            time_to_first_token_ms=None
            if self.first_token_ms is None
            else self.first_token_ms - self.started_ms,
            total_ms=total_ms,
            rounds=self.rounds,
            tested=self.tested,
            accepted=self.accepted,
            lookups=self.lookups,
            hits=self.hits,
            ready_tokens=self.ready_tokens,
            acceptance=_share(self.accepted, self.tested),
            accepted_per_round=_share(self.accepted, self.rounds),
            hit_rate=_share(self.hits, self.lookups),
            bytes_up_per_token=traffic.up / tokens,
            bytes_down_per_token=traffic.down / tokens,
            payload_bytes_up=traffic.up,
            payload_bytes_down=traffic.down,
            messages_up=traffic.messages_up,
            messages_down=traffic.messages_down,
            target_forwards_per_token=self.forwards / tokens,
            mean_round_trip_ms=_share(sum(self.round_trips_ms), len(self.round_trips_ms)),
            mean_verify_ms=_share(sum(self.verify_ms), len(self.verify_ms)),
            mean_budget=_share(sum(self.budgets), len(self.budgets)),
            prefill_ms=model_ms.get("prefill", 0.0),
            draft_ms=model_ms.get("draft", 0.0),
            beside_ms=model_ms.get("beside", 0.0),
            growth_ms=model_ms.get("growth", 0.0),
            waiting_ms=self.waiting_ms,
            own_ms=own_ms,
            own_share=own_ms / total_ms if total_ms > 0 else 0.0,
            idle_share=self.waiting_ms / total_ms if total_ms > 0 else 0.0,
            alpha=outcomes.alpha.value if outcomes is not None else None,
            beta=outcomes.beta.value if outcomes is not None else None,
            draft_steps=num_steps.get("draft", 0),
            growth_steps=num_steps.get("growth", 0),
            reconnects=self.reconnects,
            outage_ms=self.outage_ms,
            busy=self.busy,
            decoded_tokens=self.decoded,
            provisional_tokens=self.provisional,
            drafted_nodes=self.drafted_nodes,
            raced_tokens=self.raced,
            reliability=() if self.reliability is None else tuple(self.reliability.bins),
        )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
