"""The verifier's metrics for Prometheus."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)

from acespec import __version__
from acespec.cloud_verifier.engine import UNBOUNDED_TOKENS, TargetInfo
from acespec.cloud_verifier.observer import (
    CLOSE_REASONS,
    BatchReport,
    CloseReason,
    Observer,
    RaceReport,
    RoundReport,
)
from acespec.wire import ErrorCode

MAX_TENANTS = 100
"""Tenants with series of their own; those beyond are counted together under ``OTHER``."""
OTHER = "other"
"""The label's value for what has no series of its own."""

SECONDS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class PrometheusObserver(Observer):
    """Counts what the verifier reports, in a registry of its own: several may live in one process.

    Every value of a label is a series that is kept for good, so tenants beyond ``max_tenants`` share one.
    """

    def __init__(self, info: TargetInfo, max_tenants: int = MAX_TENANTS) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a time beside every counter and histogram, which nobody asks for
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        build = Info(
            "acespec_verifier_build", "The release, and the target model it serves.", registry=self.registry
        )
        build.info({"version": __version__, "model": info.name})
        self._forwards = ForwardMetrics(self.registry)
        self._rounds = RoundMetrics(self.registry)
        self._usage = UsageMetrics(self.registry, info)
        self._refused = Counter(
            "acespec_verifier_refused",
            "Streams ended with an error, by gRPC status.",
            ["code"],
            registry=self.registry,
        )
        for code in ErrorCode:
            self._refused.labels(code.value)
        self._families = TenantFamilies(self.registry)
        self._max_tenants = max_tenants
        self._tenants: dict[str, TenantCounters] = {}
        self._other: TenantCounters | None = None

    def batch(self, report: BatchReport) -> None:
        self._forwards.seconds.observe(report.ended - report.started)
        self._forwards.sequences.observe(report.num_sequences)
        self._forwards.tokens.observe(report.num_tokens)
        self._forwards.prefill_tokens.inc(report.prefill_tokens)

    def round(self, report: RoundReport) -> None:
        tenant = self._tenant(report.tenant)
        if report.drafted:
            tenant.rounds.inc()
            tenant.drafted.inc(report.drafted)
            tenant.accepted.inc(report.accepted)
        else:
            tenant.decoded.inc()
        self._rounds.queue.observe(report.started - report.arrived)
        self._rounds.compute.observe(report.ended - report.started)

    def race(self, report: RaceReport) -> None:
        tenant = self._tenant(report.tenant)
        tenant.race_steps.inc()
        tenant.race_tokens.inc(report.committed)
        tenant.race_nodes.inc(report.drafted)
        tenant.race_received.inc(report.received)
        tenant.race_ignored.inc(report.ignored)
        self._rounds.queue.observe(report.started - report.arrived)
        self._rounds.compute.observe(report.ended - report.started)

    def opened(self, tenant: str) -> None:
        self._tenant(tenant).opened.inc()

    def resumed(self, tenant: str) -> None:
        self._tenant(tenant).resumed.inc()

    def closed(self, tenant: str, reason: CloseReason) -> None:
        self._families.closed.labels(self._tenant(tenant).label, reason).inc()

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def busy(self, tenant: str) -> None:
        self._tenant(tenant).busy.inc()

    def evicted(self, tenant: str) -> None:
        self._tenant(tenant).evicted.inc()

    def usage(self, attached: int, parked: int, kv_tokens: int) -> None:
        self._usage.set(attached, parked, kv_tokens)

    def _tenant(self, name: str) -> TenantCounters:
        """The tenant's own counters, or the shared ones if it comes after ``max_tenants`` others."""
        counters = self._tenants.get(name)
        if counters is not None:
            return counters
        if len(self._tenants) < self._max_tenants:
            return self._tenants.setdefault(name, TenantCounters(self._families, name))
        if self._other is None:
            self._other = TenantCounters(self._families, OTHER)
        return self._other


class ForwardMetrics:
    """What is counted once a forward."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = histogram(registry, "forward_seconds", "Time of one forward of the target.", SECONDS)
        self.sequences = histogram(registry, "batch_sequences", "Sequences in one forward.", SEQUENCES)
        self.tokens = histogram(registry, "batch_tokens", "Tokens in one forward.", TOKENS)
        self.prefill_tokens = Counter(
            "acespec_verifier_prefill_tokens",
            "Tokens through the target that only filled a sequence.",
            registry=registry,
        )


class RoundMetrics:
    """What is counted once a round or decoded token, over all tenants."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queue = histogram(
            registry,
            "round_queue_seconds",
            "Wait of a round, a decoded token or a race step for its forward.",
            SECONDS,
        )
        self.compute = histogram(
            registry,
            "round_compute_seconds",
            "Time from the forward's begin to the decision on a round, a decoded token or a race step.",
            SECONDS,
        )


class UsageMetrics:
    """How full the verifier is."""

    def __init__(self, registry: CollectorRegistry, info: TargetInfo) -> None:
        sessions = Gauge(
            "acespec_verifier_sessions",
            "Sessions that have a stream (attached) or wait for one (parked).",
            ["state"],
            registry=registry,
        )
        self._attached, self._parked = sessions.labels("attached"), sessions.labels("parked")
        self._bytes_per_token = info.kv_bytes_per_token
        self._tokens = gauge(registry, "kv_used_tokens", "Tokens with room set aside in the KV pool.")
        self._bytes = gauge(registry, "kv_used_bytes", "Bytes set aside in the KV pool.")
        capacity = math.inf if info.kv_tokens >= UNBOUNDED_TOKENS else info.kv_tokens
        gauge(registry, "kv_capacity_tokens", "Tokens the KV pool has room for.").set(capacity)
        gauge(registry, "kv_capacity_bytes", "Bytes of the KV pool.").set(
            capacity * self._bytes_per_token if self._bytes_per_token else math.inf
        )

    def set(self, attached: int, parked: int, kv_tokens: int) -> None:
        self._attached.set(attached)
        self._parked.set(parked)
        self._tokens.set(kv_tokens)
        self._bytes.set(kv_tokens * self._bytes_per_token)


class TenantFamilies:
    """The counters that have a series for each tenant."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def family(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"acespec_verifier_{name}", meaning, ["tenant", *labels], registry=registry)

        self.rounds = family("rounds", "Chains that were checked.")
        self.drafted = family("drafted_tokens", "Chain tokens that were checked.")
        self.accepted = family("accepted_tokens", "Chain tokens that stand.")
        self.decoded = family("decoded_tokens", "Tokens decoded without a chain.")
        self.race_steps = family("race_steps", "Forwards of racing sessions, each session's counted.")
        self.race_tokens = family("race_tokens", "Tokens that they committed.")
        self.race_nodes = family("race_checked_nodes", "Drafted nodes that they took along.")
        self.race_received = family("race_received_nodes", "Drafted nodes that came.")
        self.race_ignored = family(
            "race_ignored_nodes", "Those that came late, twice, unconnected or too many."
        )
        self.opened = family("sessions_opened", "Sessions that began.")
        self.resumed = family("sessions_resumed", "Sessions that went on over a new stream.")
        self.closed = family("sessions_closed", "Sessions that ended for good, by reason.", "reason")
        self.busy = family("busy", "Times an edge was told to come again later.")
        self.evicted = family("evictions", "Idle sessions whose keys and values were given up.")


class TenantCounters:
    """One tenant's series. All start at zero: Prometheus sees no increase in a series that begins with 1."""

    def __init__(self, families: TenantFamilies, tenant: str) -> None:
        self.label = tenant
        self.rounds = families.rounds.labels(tenant)
        self.drafted = families.drafted.labels(tenant)
        self.accepted = families.accepted.labels(tenant)
        self.decoded = families.decoded.labels(tenant)
        self.race_steps = families.race_steps.labels(tenant)
        self.race_tokens = families.race_tokens.labels(tenant)
        self.race_nodes = families.race_nodes.labels(tenant)
        self.race_received = families.race_received.labels(tenant)
        self.race_ignored = families.race_ignored.labels(tenant)
        self.opened = families.opened.labels(tenant)
        self.resumed = families.resumed.labels(tenant)
        self.busy = families.busy.labels(tenant)
        self.evicted = families.evicted.labels(tenant)
        for reason in CLOSE_REASONS:
            families.closed.labels(tenant, reason)


def histogram(registry: CollectorRegistry, name: str, meaning: str, buckets: Sequence[float]) -> Histogram:
    return Histogram(f"acespec_verifier_{name}", meaning, registry=registry, buckets=buckets)


def gauge(registry: CollectorRegistry, name: str, meaning: str) -> Gauge:
    return Gauge(f"acespec_verifier_{name}", meaning, registry=registry)
