"""AceSpec and cloud-only decoding as strategies: the edge's own loop against the verifier's own code.

Only the engines are not the real ones (``memo_engines``), and time is the profiles'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from acespec.bench.lab.memo_engines import MemoDraftEngine, MemoTargetEngine
from acespec.bench.lab.strategy import Processor, RunLog, World
from acespec.cloud_verifier.engine import TargetEngine
from acespec.cloud_verifier.observer import Observer, RaceReport, RoundReport
from acespec.cloud_verifier.verifier import Verifier
from acespec.edge_runtime import (
    DraftModel,
    DraftSettings,
    SessionSettings,
    SpeculationPolicy,
    TargetIdentity,
    generate,
)
from acespec.errors import AcespecError
from acespec.models import DEMO_PAIR, pair
from acespec.wire import AcceptanceMode, EdgeTransport, SessionError, memory_link
from acespec.wire.memory import MemoryCloud

T = TypeVar("T")


class DisturbedRunError(AcespecError):
    """A run met an outage or a busy server, which its conditions do not have."""


@dataclass(frozen=True)
class Autoregressive:
    """The cloud decodes alone and streams its tokens."""

    name: str = "autoregressive"

    async def run(self, world: World) -> None:
        """See ``Strategy.run``."""
        await generate_over(world, memo_target(world), None)


@dataclass(frozen=True)
class AceSpec:
    """Rounds of speculation with the outcome tree; by its policy the race instead, or whatever wins."""

    mode: AcceptanceMode = AcceptanceMode.COUPLED
    settings: DraftSettings = field(default_factory=lambda: DraftSettings.recommended(pair(DEMO_PAIR)))
    buckets: tuple[int, ...] = pair(DEMO_PAIR).buckets
    """Step widths of the device's engine."""

    @property
    def name(self) -> str:
        if self.settings.policy is SpeculationPolicy.ROUNDS:
            return f"acespec_{self.mode.value}"
        return str(self.settings.policy.value)

    async def run(self, world: World) -> None:
        """See ``Strategy.run``."""
        engine = MemoDraftEngine(world.models, world.identity, world.request.prompt, self.buckets)
        profile = {bucket: world.edge_profile.step_ms(bucket) for bucket in engine.buckets}
        draft = DraftModel(engine, lambda _: profile, EdgeRunner(world, engine))
        world.request = replace(world.request, mode=self.mode)
        await generate_over(world, memo_target(world), draft, self.settings)


class MeasuredSteps(Protocol):
    """A draft engine that tells how wide its steps are."""

    @property
    def step_width(self) -> int:
        """Tokens the last step computed: those of its bucket, or of a wider step its own."""


class EdgeRunner:
    """Runs a draft step in the event loop and spends what it takes on the device."""

    def __init__(self, world: World, engine: MeasuredSteps) -> None:
        self._world = world
        self._engine = engine

    async def run(self, step: Callable[[], T], latency_ms: float = 0.0) -> T:  # noqa: ARG002 - what the edge expects
        result = step()
        await self._world.draft_step(self._engine.step_width)
        return result

    def close(self) -> None:
        """Nothing to free."""


class CloudRunner:
    """Runs a forward of the target in the event loop and spends its latency."""

    def __init__(self, cloud: Processor) -> None:
        self._cloud = cloud

    async def run(self, step: Callable[[], T], latency_ms: float = 0.0) -> T:
        result = step()
        await self._cloud.spend(latency_ms)
        return result

    def close(self) -> None:
        """Nothing to free."""


class _Counter(Observer):
    """Counts what the verifier decides."""

    def __init__(self, log: RunLog) -> None:
        self._log = log

    def round(self, report: RoundReport) -> None:
        self._log.forwards += 1
        self._log.accepted += report.accepted
        self._log.tested += report.accepted + int(report.accepted < report.drafted)

    def race(self, report: RaceReport) -> None:  # noqa: ARG002 - a tree's tokens are not accepted or rejected
        self._log.forwards += 1


def memo_target(world: World) -> MemoTargetEngine:
    """The world's target, as the verifier needs it."""
    return MemoTargetEngine(world.models, world.identity, world.request.prompt)


async def generate_over(
    world: World, target: TargetEngine, draft: DraftModel | None, settings: DraftSettings | None = None
) -> None:
    """One generation over the world's link, by the edge's own loop and a verifier of its own for ``target``.

    Raises ``DisturbedRunError`` if the edge gave its stream up: the time that takes is drawn by chance.
    """
    verifier = Verifier(
        target,
        CloudRunner(world.cloud),
        observer=_Counter(world.log),
        latency_ms=world.cloud_profile.forward_ms,
    )
    serving: list[asyncio.Task[None]] = []

    async def connect(timeout_s: float) -> EdgeTransport:  # noqa: ARG001 - it is there at once
        edge, cloud = memory_link(up_delay=world.link.up.delay, down_delay=world.link.down.delay)
        serving.append(asyncio.create_task(_serve(verifier, cloud)))
        return edge

    try:
        result = await generate(
            connect,
            world.request,
            world.models.vocab_size,
            draft,
            settings,
            SessionSettings(TargetIdentity(vocabulary_hash=world.identity.vocabulary_hash)),
            on_tokens=world.commit,
        )
    finally:
        await asyncio.gather(*serving)
        await verifier.drain(0.0)
    metrics = result.metrics
    if metrics.reconnects or metrics.busy:
        raise DisturbedRunError(
            f"the run lost its stream {metrics.reconnects} times and found the server busy {metrics.busy} "
            "times; give the link less loss or a higher rate"
        )
    log = world.log
    log.lookups, log.hits, log.ready_tokens = metrics.lookups, metrics.hits, metrics.ready_tokens


async def _serve(verifier: Verifier, cloud: MemoryCloud) -> None:
    """Serve one stream and end it as the gRPC service does."""
    try:
        await verifier.serve(cloud)
    except SessionError as error:
        await cloud.close(error)
    else:
        await cloud.close()
