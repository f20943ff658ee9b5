"""One generation from request to result: the pieces put together, whatever link and engine they run on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.draft_model import DraftModel
from acespec.edge_runtime.drafter import Drafter, DraftRules
from acespec.edge_runtime.policies import CloudPolicy, Policy, RoundsPolicy
from acespec.edge_runtime.request import DraftSettings, FinishReason, GenerationRequest
from acespec.edge_runtime.session import EdgeSession
from acespec.edge_runtime.statistics import GenerationMetrics, Statistics
from acespec.edge_runtime.step_clock import StepClock
from acespec.wire import EdgeTransport, SessionError


@dataclass(frozen=True)
class TargetIdentity:
    """The target the edge expects; an empty field accepts any."""

    model: str = ""
    fingerprint: str = ""
    vocabulary_hash: str = ""


@dataclass(frozen=True)
class GenerationResult:
    """What a generation gave."""

    tokens: list[int]
    """Generated tokens, the prompt excluded."""
    finish_reason: FinishReason
    metrics: GenerationMetrics


async def generate(
    transport: EdgeTransport,
    request: GenerationRequest,
    vocab_size: int,
    draft: DraftModel | None,
    settings: DraftSettings | None = None,
    target: TargetIdentity | None = None,
    on_tokens: Callable[[list[int]], object] | None = None,
) -> GenerationResult:
    """Generate one continuation of ``request`` over ``transport``, which is closed at the end.

    ``vocab_size`` is the tokenizer's, which both models share. ``draft`` None lets the cloud decode alone.
    ``on_tokens`` is called with the tokens of every commit as it happens.
    Raises ``SessionError`` if the verifier refuses or is lost, ``ValueError`` for settings out of range.
    """
    try:
        statistics = Statistics()
        session = EdgeSession(transport, request, vocab_size, statistics)
        policy, controller, clock = _policy(request, draft, settings or DraftSettings())
        identity = target or TargetIdentity()
        await session.open(identity.model, identity.fingerprint, identity.vocabulary_hash)
        async for tokens in policy.run(session):
            if on_tokens is not None:
                on_tokens(tokens)
        with contextlib.suppress(SessionError):  # the text is whole, whether or not this arrives
            await session.close()
    finally:
        await transport.close()
    assert session.finished is not None
    outcomes = None if controller is None else controller.outcomes
    metrics = statistics.report(transport.traffic, clock, outcomes)
    return GenerationResult(session.committed[len(request.prompt) :], session.finished, metrics)


def _policy(
    request: GenerationRequest, draft: DraftModel | None, settings: DraftSettings
) -> tuple[Policy, Controller | None, StepClock | None]:
    """How to generate ``request``, and what keeps the estimates and the time."""
    if draft is None:
        return CloudPolicy(), None, None
    controller = Controller(settings, draft.profile_at)
    clock = StepClock(controller.step_times)
    rules = DraftRules(
        request.sampling, request.seed, request.mode, frozenset(request.end_token_ids), len(request.prompt)
    )
    return RoundsPolicy(Drafter(draft.engine, rules, draft.runner, clock), controller), controller, clock
