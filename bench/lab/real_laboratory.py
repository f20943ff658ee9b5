"""Runs strategies in wall-clock time: the edge here, a verifier and a relay as processes, gRPC between them.

The baselines speak messages of their own over the simulated link alone; what runs here is what users run.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeAlias

from acespec.bench.lab.acespec_strategies import AceSpec, Autoregressive, DisturbedRunError
from acespec.bench.lab.cases import PromptCase
from acespec.bench.lab.lab_pair import PairIdentity
from acespec.bench.lab.laboratory import Conditions
from acespec.bench.lab.overhead import WireOverhead
from acespec.bench.lab.simulated_link import LinkConditions
from acespec.bench.lab.strategy import RunResult, Strategy
from acespec.bench.link import LinkShape
from acespec.bench.processes import Service
from acespec.bench.relay import Traffic
from acespec.bench.relay_process import carried, relay_service
from acespec.edge_runtime import (
    DraftModel,
    DraftSettings,
    GenerationRequest,
    GenerationResult,
    SessionSettings,
    TargetIdentity,
    generate,
)
from acespec.edge_runtime.grpc_transport import GrpcConnector
from acespec.edge_runtime.statistics import GenerationMetrics
from acespec.errors import AcespecError

RealStrategy: TypeAlias = AceSpec | Autoregressive
"""A strategy that the project's own edge and verifier carry out."""
RELAYED = WireOverhead(segment_bytes=0, ack_bytes=0)
"""What the relay delays and counts: a connection's bytes, without TCP's and IP's headers."""
WARM_UP_TOKENS = 8


class RealLaboratory:
    """A verifier that runs, and a relay for each link that is asked for. A context, of the main thread.

    The verifier is the one whose profile all conditions must have; ``acespec serve`` is told how slow.
    """

    def __init__(self, identity: PairIdentity, draft: DraftModel, serve: Service) -> None:
        """``serve`` is the verifier, not started yet; ``draft`` is used as it is and not closed."""
        self._identity = identity
        self._draft = draft
        self._serve = serve
        self._loop = asyncio.new_event_loop()
        self._relays: dict[LinkShape, Service] = {}
        self._warm: set[tuple[LinkShape, bool]] = set()
        self._previous: Any = None

    def __enter__(self) -> RealLaboratory:
        self._previous = signal.signal(signal.SIGTERM, _terminate)
        try:
            self._loop.run_until_complete(self._serve.__aenter__())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._loop.run_until_complete(self._stop())
        finally:
            self._loop.close()
            signal.signal(signal.SIGTERM, self._previous)

    def run(self, strategy: Strategy, case: PromptCase, conditions: Conditions) -> RunResult:
        """Run ``strategy`` on ``case`` once, now. Raises ``AcespecError`` for one that cannot run here."""
        if not isinstance(strategy, AceSpec | Autoregressive):
            raise AcespecError(f"{strategy.name} runs over the simulated link alone")
        return self._loop.run_until_complete(self._run(strategy, case, conditions))

    async def _run(self, strategy: RealStrategy, case: PromptCase, conditions: Conditions) -> RunResult:
        shape = LinkShape(conditions.link.up, conditions.link.down)
        request = GenerationRequest(
            prompt=case.prompt,
            end_token_ids=self._identity.end_token_ids if conditions.end_tokens else (),
            max_new_tokens=conditions.max_new_tokens,
            sampling=conditions.sampling,
            seed=conditions.seed,
        )
        relay = await self._relay(shape)
        try:
            kind = (shape, isinstance(strategy, AceSpec))
            if kind not in self._warm:
                short = replace(request, max_new_tokens=min(WARM_UP_TOKENS, request.max_new_tokens))
                await self._generate(relay, strategy, short, conditions)
                self._warm.add(kind)
            result, traffic = await self._generate(relay, strategy, request, conditions)
        except BaseException:  # a connection that is left over would be reported as the next one's
            await self._relays.pop(shape).__aexit__()
            raise
        return _run_result(strategy.name, result, traffic)

    async def _generate(
        self, relay: Service, strategy: RealStrategy, request: GenerationRequest, conditions: Conditions
    ) -> tuple[GenerationResult, Traffic]:
        """One generation over a connection of its own, and the bytes that carried."""
        draft, settings = None, DraftSettings()
        if isinstance(strategy, AceSpec):
            steps = {bucket: conditions.edge.step_ms(bucket) for bucket in self._draft.engine.buckets}
            draft, settings = replace(self._draft, profile_at=lambda _: steps), strategy.settings
            request = replace(request, mode=strategy.mode)
        target = TargetIdentity(vocabulary_hash=self._identity.vocabulary_hash)
        result = await generate(
            GrpcConnector(relay.address),
            request,
            self._identity.vocab_size,
            draft,
            settings,
            SessionSettings(target),
        )
        metrics = result.metrics
        if metrics.reconnects or metrics.busy:
            raise DisturbedRunError(
                f"the run lost its stream {metrics.reconnects} times and found the server busy "
                f"{metrics.busy} times"
            )
        return result, await carried(relay)

    async def _relay(self, shape: LinkShape) -> Service:
        if shape not in self._relays:
            self._relays[shape] = await relay_service(self._serve.address, shape).__aenter__()
        return self._relays[shape]

    async def _stop(self) -> None:
        interrupted = asyncio.all_tasks() - {asyncio.current_task()}  # by a signal
        for task in interrupted:
            task.cancel()
        await asyncio.gather(*interrupted, return_exceptions=True)
        for relay in self._relays.values():
            await relay.__aexit__()
        await self._serve.__aexit__()


def relayed_link(rtt_ms: float, jitter_ms: float, bytes_per_second: float) -> LinkConditions:
    """The simulated link that does what the relay does."""
    link = LinkConditions.symmetric(rtt_ms, jitter_ms, bytes_per_second)
    return replace(link, overhead=RELAYED)


def _run_result(name: str, result: GenerationResult, traffic: Traffic) -> RunResult:
    metrics = result.metrics
    assert metrics.time_to_first_token_ms is not None, "a run has tokens"
    return RunResult(
        strategy=name,
        tokens=tuple(result.tokens),
        finish_reason=result.finish_reason,
        ttft_ms=metrics.time_to_first_token_ms,
        total_ms=metrics.total_ms,
        payload_up=metrics.payload_bytes_up,
        payload_down=metrics.payload_bytes_down,
        wire_up=traffic.up,
        wire_down=traffic.down,
        messages_up=metrics.messages_up,
        messages_down=metrics.messages_down,
        target_forwards=round(metrics.target_forwards_per_token * metrics.tokens),
        tested=metrics.tested,
        accepted=metrics.accepted,
        lookups=metrics.lookups,
        hits=metrics.hits,
        ready_tokens=metrics.ready_tokens,
        edge_idle_share=_idle_share(metrics),
    )


def _idle_share(metrics: GenerationMetrics) -> float:
    """Share of the time in which the draft model computes nothing, as the laboratory counts it."""
    busy_ms = metrics.prefill_ms + metrics.draft_ms + metrics.beside_ms + metrics.growth_ms
    return max(1.0 - busy_ms / metrics.total_ms, 0.0) if metrics.total_ms > 0.0 else 0.0


def _terminate(*_: object) -> None:
    """SIGTERM ends what is under way, and so the processes started for it."""
    sys.exit(128 + signal.SIGTERM)
