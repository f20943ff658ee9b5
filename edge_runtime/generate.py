"""One generation from request to result: the pieces put together, whatever link and engine they run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from acespec.edge_runtime.auto_policy import AutoPolicy
from acespec.edge_runtime.connection import Connector
from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.draft_model import DraftModel
from acespec.edge_runtime.drafter import Drafter, DraftRules
from acespec.edge_runtime.outage import LinkChange, OutageError, ignore_change
from acespec.edge_runtime.policies import CloudPolicy, Policy, RoundsPolicy
from acespec.edge_runtime.race_policy import RacePolicy
from acespec.edge_runtime.request import DraftSettings, FinishReason, GenerationRequest, SpeculationPolicy
from acespec.edge_runtime.session import EdgeSession, SessionSettings, ignore
from acespec.edge_runtime.statistics import GenerationMetrics, Statistics
from acespec.edge_runtime.step_clock import StepClock
from acespec.wire import AcceptanceMode


@dataclass(frozen=True)
class GenerationResult:
    """What a generation gave."""

    tokens: list[int]
    """Generated tokens, the prompt excluded."""
    finish_reason: FinishReason
    metrics: GenerationMetrics
    provisional: list[int] = field(default_factory=list)
    """Tokens behind them that nobody verified: an outage outlasted its time-out (`OnOutage.DRAFT`)."""


async def generate(
    connector: Connector,
    request: GenerationRequest,
    vocab_size: int,
    draft: DraftModel | None,
    settings: DraftSettings | None = None,
    session_settings: SessionSettings | None = None,
    on_tokens: Callable[[list[int]], object] = ignore,
    on_provisional: Callable[[list[int]], object] = ignore,
    on_change: Callable[[LinkChange], object] = ignore_change,
) -> GenerationResult:
    """Generate one continuation of ``request`` over streams from ``connector``, closed at the end.

    ``vocab_size`` is the tokenizer's, which both models share. ``draft`` None lets the cloud decode alone.
    ``on_tokens`` is called with the tokens of every commit as it happens: each token once, in order, whatever
    happens to the link. ``on_provisional`` is called with all that is provisional behind them, whenever that
    changes, ``on_change`` when the link is lost and when it is back.

    Raises ``OutageError`` if the verifier stays out of reach (with `OnOutage.DRAFT` what there is is returned
    instead), ``SessionError`` if it refuses, ``ValueError`` for settings out of range.
    """
    statistics = Statistics()
    policy, controller, clock = _policy(request, draft, settings or DraftSettings())
    session = EdgeSession(
        connector,
        request,
        vocab_size,
        statistics,
        session_settings,
        on_provisional=on_provisional,
        on_change=on_change,
        races=isinstance(policy, (AutoPolicy, RacePolicy)) and request.mode is AcceptanceMode.COUPLED,
    )
    try:
        await session.open()
        async for tokens in policy.run(session):
            on_tokens(tokens)
        await session.close()
    except OutageError:
        if not session.outage.drafts:
            raise
    finally:
        await session.connection.close()
    outcomes = None if controller is None else controller.outcomes
    return GenerationResult(
        tokens=session.committed[len(request.prompt) :],
        finish_reason=session.finished or FinishReason.OUTAGE,
        metrics=statistics.report(session.connection.traffic, clock, outcomes),
        provisional=session.provisional,
    )


def _policy(
    request: GenerationRequest, draft: DraftModel | None, settings: DraftSettings
) -> tuple[Policy, Controller | None, StepClock | None]:
    """How to generate ``request``, and what keeps the estimates and the time."""
    if draft is None:
        return CloudPolicy(), None, None
    controller = Controller(settings, draft.profile_at)
    clock = StepClock(controller.step_times)
    rules = DraftRules(
        request.sampling,
        request.seed,
        request.mode,
        frozenset(request.end_token_ids),
        len(request.prompt),
        settings.ranking,
    )
    drafter = Drafter(draft.engine, rules, draft.runner, clock)
    if settings.policy is SpeculationPolicy.AUTO:
        return AutoPolicy(drafter, controller), controller, clock
    if settings.policy is SpeculationPolicy.RACE:
        if request.mode is not AcceptanceMode.COUPLED:
            raise ValueError("a race needs coupled mode: in residual mode use rounds or auto")
        fallback = AutoPolicy(drafter, controller)
        return RacePolicy(drafter, controller, fallback), controller, clock
    return RoundsPolicy(drafter, controller), controller, clock
