"""Whatever becomes of streams and servers, the text is the undisturbed one and each token comes once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.outage import OnOutage, OutageError, OutageSettings
from acespec.edge_runtime.request import DraftSettings, FinishReason, GenerationRequest
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from acespec.speculation import SamplingParams, Weighted, propose
from acespec.wire import AcceptanceMode, TargetDraws
from bad_network import BadNetwork, Fault, StreamPlan, stream_plans
from fake_draft import TableDraftEngine, hashed_table, mixed
from fake_target import TableTargetEngine
from in_process import draft_model, link_delay

VOCAB = 8
PROMPT = (4, 2)
NEW_TOKENS = 14
TARGET = hashed_table(VOCAB, salt=1)
NO_END = GenerationRequest(PROMPT, (), max_new_tokens=NEW_TOKENS, seed=5)

PLANS = stream_plans(last_at=6, last_busy=5, most_busy=3, most_plans=6)


def one_draw(target: Weighted, seed: int, position: int, first_index: int, _: int) -> TargetDraws:
    """As the server describes a rejection, but one draw at a time, so that more are asked for."""
    ids = propose(target, seed, position, first_index, 1)
    return TargetDraws(target.bits, first_index, tuple(ids.tolist()), tuple(target.weights_of(ids).tolist()))


@pytest.fixture
def scarce_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acespec.cloud_verifier.session.describe_target", one_draw)


class Told:
    """What ``generate`` told while it ran."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.provisional: list[list[int]] = []


def run(
    request: GenerationRequest,
    plans: Sequence[StreamPlan] = (),
    *,
    closeness: float | None = 0.7,
    gamma: int = 3,
    outage: OutageSettings | None = None,
    limits: Limits | None = None,
    delays: Sequence[float] = (4.0,),
    told: Told | None = None,
    pad_sizes: bool = False,
    draft_context: int = 512,
) -> GenerationResult:
    """Generate over a network of ``plans``; ``closeness`` None lets the cloud decode alone."""
    told = told or Told()
    targets: list[TableTargetEngine] = []

    def new_verifier() -> Verifier:
        targets.append(TableTargetEngine(TARGET, VOCAB, max_context=64))
        return Verifier(targets[-1], InlineRunner(), limits or Limits(), latency_ms=lambda _: 10.0)

    draft = None
    if closeness is not None:
        table = mixed(hashed_table(VOCAB, salt=2), TARGET, closeness)
        draft = draft_model(TableDraftEngine(table, VOCAB, max_context=draft_context), 1.0)

    async def main() -> GenerationResult:
        network = BadNetwork(new_verifier, plans, link_delay(delays))
        try:
            result = await generate(
                network,
                request,
                VOCAB,
                draft,
                DraftSettings(gamma=gamma),
                SessionSettings(
                    TargetIdentity(vocabulary_hash=targets[0].info.vocabulary_hash),
                    outage or OutageSettings(),
                    pad_sizes,
                ),
                told.tokens.extend,
                told.provisional.append,
            )
        finally:
            await network.end()
        assert result.metrics.busy <= network.num_busy
        return result

    result = run_virtual(main())
    assert all(not target.sequences for target in targets), "every server freed what it held"
    return result


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plans=PLANS,
    mode=st.sampled_from(AcceptanceMode),
    on_outage=st.sampled_from([OnOutage.WAIT, OnOutage.DRAFT]),
    closeness=st.sampled_from([None, 0.0, 0.7, 0.95]),
    gamma=st.integers(1, 4),
    max_chain=st.sampled_from([1, 2, 63]),
    end_token_ids=st.sampled_from([(), (3,)]),
    seed=st.integers(0, 2**32),
    draft_context=st.sampled_from([8, 512]),
    pad_sizes=st.booleans(),
)
@pytest.mark.usefixtures("scarce_draws")
def test_the_text_is_the_undisturbed_one(
    plans: list[StreamPlan],
    mode: AcceptanceMode,
    on_outage: OnOutage,
    closeness: float | None,
    gamma: int,
    max_chain: int,
    end_token_ids: tuple[int, ...],
    seed: int,
    draft_context: int,
    pad_sizes: bool,
) -> None:
    request = GenerationRequest(PROMPT, end_token_ids, NEW_TOKENS, seed=seed, mode=mode)
    limits = Limits(max_chain=max_chain, pad_sizes=pad_sizes)
    common = {"closeness": closeness, "gamma": gamma, "limits": limits, "draft_context": draft_context}
    told = Told()
    disturbed = run(
        request,
        plans,
        outage=OutageSettings(on_outage, timeout_s=1e6, first_timeout_s=1e6),
        told=told,
        **common,  # type: ignore[arg-type]
    )
    undisturbed = run(request, **common)  # type: ignore[arg-type]
    assert disturbed.tokens == undisturbed.tokens
    assert disturbed.finish_reason is undisturbed.finish_reason
    assert told.tokens == disturbed.tokens, "each token once, in order"
    assert disturbed.provisional == []
    assert not told.provisional or told.provisional[-1] == []


LONG = GenerationRequest(PROMPT, (), max_new_tokens=40, seed=5)
CUT_AFTER_THE_FIRST_ROUND = StreamPlan(Fault.CUT, up=True, at=2)
"""The second round, the third message up, meets a broken link."""


def refused(times: int) -> list[StreamPlan]:
    return [StreamPlan(Fault.REFUSE)] * times


@pytest.mark.parametrize("mode", AcceptanceMode)
@pytest.mark.parametrize("num_refusals", [3, 5, 8])
def test_provisional_text_grows_in_an_outage_and_is_confirmed_without_drafting_again(
    mode: AcceptanceMode, num_refusals: int
) -> None:
    """With a perfect draft the coupled line is right to its end, so one round confirms what room it has."""
    request = dataclasses.replace(LONG, mode=mode)
    told = Told()
    outage = OutageSettings(OnOutage.DRAFT, timeout_s=1e6)
    plans = [CUT_AFTER_THE_FIRST_ROUND, *refused(num_refusals)]
    result = run(request, plans, closeness=1.0, outage=outage, told=told)
    undisturbed = run(request, closeness=1.0)
    assert result.tokens == undisturbed.tokens
    assert told.provisional[-1] == []
    longest = max(told.provisional, key=len)
    assert len(longest) > 3, "more than the chain under way"
    assert result.metrics.provisional_tokens >= len(longest)
    if mode is AcceptanceMode.COUPLED:
        at = next(i for i in range(40) if result.tokens[i : i + len(longest)] == longest)
        assert at == 4, "behind the first round's gamma + 1 tokens"
        assert result.metrics.draft_steps <= undisturbed.metrics.draft_steps + len(longest)
        assert result.metrics.rounds < undisturbed.metrics.rounds


def test_an_outage_without_an_end_leaves_verified_and_provisional_tokens() -> None:
    told = Told()
    outage = OutageSettings(OnOutage.DRAFT, timeout_s=30.0)
    result = run(LONG, [CUT_AFTER_THE_FIRST_ROUND, *refused(100)], closeness=1.0, outage=outage, told=told)
    whole = run(LONG, closeness=1.0)
    assert result.finish_reason is FinishReason.OUTAGE
    assert result.tokens == told.tokens == whole.tokens[:4]
    assert result.tokens + result.provisional == whole.tokens, "the draft is the target"
    assert result.metrics.outage_ms == pytest.approx(30_000.0)


def test_provisional_text_ends_with_an_end_token() -> None:
    outage = OutageSettings(OnOutage.DRAFT, timeout_s=30.0)
    plans = [StreamPlan(Fault.CUT, at=1), *refused(100)]
    ended = 0
    for seed in range(12):
        request = GenerationRequest(PROMPT, (0, 3), max_new_tokens=20, seed=seed)
        provisional = run(request, plans, outage=outage).provisional
        assert not {0, 3} & set(provisional[:-1])
        ended += provisional[-1] in (0, 3)
        assert provisional[-1] in (0, 3) or len(provisional) == 20
    assert ended > 0


def test_without_the_draft_policy_nothing_is_provisional() -> None:
    told = Told()
    with pytest.raises(OutageError):
        run(LONG, [CUT_AFTER_THE_FIRST_ROUND, *refused(100)], told=told)
    assert told.tokens == run(LONG).tokens[: len(told.tokens)]
    assert told.tokens
    assert told.provisional == []


def test_a_verifier_out_of_reach_from_the_start_is_waited_for_if_that_is_asked_for() -> None:
    with pytest.raises(OutageError):
        run(LONG, refused(12))
    patient = OutageSettings(timeout_s=120.0, first_timeout_s=120.0)
    assert run(LONG, refused(12), outage=patient).tokens == run(LONG).tokens


def test_an_outage_does_not_enter_the_estimates_of_the_link() -> None:
    frozen = run(LONG, [StreamPlan(Fault.FREEZE, up=False, at=3)])
    assert frozen.metrics.outage_ms >= 0.0
    assert frozen.metrics.total_ms > 10_000.0
    assert frozen.metrics.mean_round_trip_ms == pytest.approx(run(LONG).metrics.mean_round_trip_ms, abs=1.0)


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.KILL])
@pytest.mark.usefixtures("scarce_draws")
def test_a_stream_lost_while_more_draws_are_asked_for(fault: Fault) -> None:
    """Every message, requests for more draws and their answers among them, meets the fault once."""
    request = GenerationRequest(PROMPT, (), 8, seed=3, mode=AcceptanceMode.RESIDUAL)
    undisturbed = run(request)
    asked = undisturbed.metrics.messages_up - undisturbed.metrics.rounds - 2  # besides Open and Close
    assert asked >= 3
    for at in range(undisturbed.metrics.messages_up):
        for up in (True, False):
            told = Told()
            result = run(request, [StreamPlan(fault, up, at)], told=told)
            assert result.tokens == undisturbed.tokens == told.tokens


def test_what_an_outage_drafted_does_not_change_residual_text() -> None:
    """Where the line is longer than a chain and goes on past what the target drew behind one."""
    longer = 0
    for seed in range(12):
        request = GenerationRequest(
            PROMPT, (), 24, SamplingParams(temperature=0.5), seed, AcceptanceMode.RESIDUAL
        )
        told = Told()
        outage = OutageSettings(OnOutage.DRAFT, timeout_s=1e6)
        plans = [CUT_AFTER_THE_FIRST_ROUND, *refused(8)]
        result = run(request, plans, gamma=2, closeness=0.9, outage=outage, told=told)
        assert result.tokens == run(request, gamma=2, closeness=0.9).tokens
        confirmed = told.provisional[told.provisional.index(max(told.provisional, key=len)) + 1 :]
        longer += any(len(rest) > 2 for rest in confirmed)
    assert longer >= 4


def test_tokens_beyond_the_servers_longest_chain_are_not_rejected_ones() -> None:
    """The first chain is sent before the limit is known; a perfect draft stays perfect."""
    metrics = run(LONG, closeness=1.0, gamma=3, limits=Limits(max_chain=2)).metrics
    assert metrics.acceptance == 1.0
    assert metrics.rounds == 14, "each but the last commits two tokens and one more"
