"""The race from edge to cloud: the same text as the cloud alone, sooner, whatever becomes of the link."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.cloud_verifier.limits import Limits
from acespec.edge_runtime.outage import OnOutage, OutageError, OutageSettings
from acespec.edge_runtime.request import DraftSettings, FinishReason, GenerationRequest, SpeculationPolicy
from acespec.speculation import SamplingParams
from acespec.wire import AcceptanceMode, Eagerness
from bad_network import Fault, StreamPlan, stream_plans
from policy_world import LONG, PATIENT, RACE, run


@settings(max_examples=60)
@given(
    gamma=st.none() | st.integers(1, 5),
    budget=st.none() | st.integers(5, 20),
    max_new_tokens=st.integers(1, 40),
    end_token_ids=st.sampled_from([(), (3, 8)]),
    sampling=st.sampled_from(
        [
            SamplingParams(),
            SamplingParams(temperature=0.0),
            SamplingParams(temperature=1.3, top_k=9, repetition_penalty=1.3, presence_penalty=0.2),
        ]
    ),
    seed=st.integers(0, 2**64 - 1),
    closeness=st.sampled_from([0.0, 0.7, 1.0]),
    delays=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    step_ms=st.sampled_from([0.5, 3.0, 25.0]),
    draft_context=st.sampled_from([2, 9, 1024]),
    tree_rows=st.sampled_from([0, 20, 512]),
    eagerness=st.sampled_from([*Eagerness, None]),
    max_race_nodes=st.sampled_from([1, 7, 256]),
    plans=stream_plans(last_at=9, last_busy=1, most_busy=2, most_plans=3),
    on_outage=st.sampled_from([OnOutage.WAIT, OnOutage.DRAFT]),
)
def test_the_text_is_the_clouds(
    gamma: int | None,
    budget: int | None,
    max_new_tokens: int,
    end_token_ids: tuple[int, ...],
    sampling: SamplingParams,
    seed: int,
    closeness: float,
    delays: list[int],
    step_ms: float,
    draft_context: int,
    tree_rows: int,
    eagerness: Eagerness | None,
    max_race_nodes: int,
    plans: list[StreamPlan],
    on_outage: OnOutage,
) -> None:
    shown: list[list[int]] = []
    request = GenerationRequest((4, 2), end_token_ids, max_new_tokens, sampling, seed)
    raced = run(
        request,
        closeness,
        DraftSettings(gamma=gamma, budget=budget, policy=SpeculationPolicy.RACE),
        Limits(race_eagerness=eagerness, max_race_nodes=max_race_nodes, race_patience_ms=50.0),
        step_ms=step_ms,
        delays=delays,
        plans=plans,
        draft_context=draft_context,
        tree_rows=tree_rows,
        outage=PATIENT[on_outage],
        provisional=shown,
    )
    alone = run(request, None)
    assert raced.tokens == alone.tokens
    assert raced.finish_reason is alone.finish_reason
    assert raced.provisional == []
    assert not shown or shown[-1] == []
    if eagerness is None:
        assert raced.metrics.drafted_nodes == raced.metrics.raced_tokens == 0


@pytest.mark.parametrize("trip_ms", [10.0, 100.0])
@pytest.mark.parametrize(("target_ms", "step_ms"), [(72.0, 8.5), (72.0, 22.0), (146.0, 15.0)])
def test_it_is_never_slower_than_the_cloud(trip_ms: float, target_ms: float, step_ms: float) -> None:
    timing = {"target_ms": target_ms, "step_ms": step_ms, "delays": [trip_ms / 2.0]}
    alone = run(LONG, None, **timing).metrics  # type: ignore[arg-type]
    for closeness in (0.0, 0.5):
        raced = run(LONG, closeness, **timing).metrics  # type: ignore[arg-type]
        assert raced.total_ms <= alone.total_ms + 0.1
        assert raced.target_forwards_per_token <= 1.0
        assert raced.raced_tokens == round((1.0 - raced.target_forwards_per_token) * raced.tokens)


def test_a_good_draft_wins_by_far_and_more_so_than_by_rounds() -> None:
    timing = {"target_ms": 72.0, "step_ms": 8.5, "delays": [25.0]}
    rounds = DraftSettings(gamma=None, policy=SpeculationPolicy.ROUNDS)
    alone, chained, raced = (
        run(LONG, closeness, policy, **timing).metrics.total_ms  # type: ignore[arg-type]
        for closeness, policy in ((None, RACE), (0.7, rounds), (0.7, RACE))
    )
    assert alone > 1.5 * raced, "milliseconds"
    assert chained > 1.2 * raced


def test_where_the_server_does_not_race_it_goes_on_by_rounds_where_these_win() -> None:
    refusing = Limits(race_eagerness=None)
    result = run(LONG, 0.9, RACE, refusing, target_ms=72.0, step_ms=2.0)
    assert result.tokens == run(LONG, None).tokens
    assert result.metrics.rounds > 10
    assert result.metrics.drafted_nodes == 0


def test_what_is_lost_with_a_stream_goes_up_again() -> None:
    cut = [StreamPlan(Fault.CUT, up=False, at=12)]
    calm, cut_once = (run(LONG, 0.9, plans=plans, delays=[20.0]) for plans in ([], cut))
    assert cut_once.tokens == calm.tokens
    assert cut_once.metrics.reconnects == 1
    assert cut_once.metrics.raced_tokens > 0.8 * calm.metrics.raced_tokens


def test_a_server_that_forgot_the_session_races_on() -> None:
    killed = [StreamPlan(Fault.KILL, up=False, at=12)]
    result = run(LONG, 0.9, plans=killed, delays=[20.0])
    assert result.tokens == run(LONG, None).tokens
    assert result.metrics.raced_tokens > 0.15 * len(result.tokens), "by the jitter of reconnecting 35 to 59"


def test_while_the_link_is_down_the_draft_goes_on() -> None:
    shown: list[list[int]] = []
    cut = [StreamPlan(Fault.CUT, up=False, at=3), *[StreamPlan(Fault.REFUSE)] * 7]
    outage = OutageSettings(OnOutage.DRAFT, timeout_s=1e6)
    result = run(LONG, 0.97, plans=cut, outage=outage, provisional=shown, delays=[100.0])
    assert result.tokens == run(LONG, None).tokens
    assert shown[-1] == []
    longest = max(shown, key=len)
    assert len(longest) > 20
    at = next(i for i in range(len(result.tokens)) if result.tokens[i : i + 3] == longest[:3])
    assert at > 0, "the text went on as was shown"


def test_an_outage_that_is_to_fail_fails() -> None:
    cut = [StreamPlan(Fault.CUT, up=False, at=3)]
    with pytest.raises(OutageError):
        run(LONG, plans=cut, outage=OutageSettings(OnOutage.FAIL, timeout_s=0.0))


def test_an_outage_without_end_leaves_what_is_drafted_as_provisional() -> None:
    cut = [StreamPlan(Fault.CUT, up=False, at=3), *[StreamPlan(Fault.REFUSE)] * 1000]
    result = run(LONG, 0.9, plans=cut, outage=OutageSettings(OnOutage.DRAFT, timeout_s=5.0))
    assert result.finish_reason is FinishReason.OUTAGE
    assert len(result.provisional) > 20
    assert result.tokens == run(LONG, None).tokens[: len(result.tokens)]


def test_a_race_needs_coupled_mode() -> None:
    request = GenerationRequest((4, 2), (), 4, mode=AcceptanceMode.RESIDUAL)
    with pytest.raises(ValueError, match="a race needs coupled mode"):
        run(request)


def test_it_reports_how_reliable_its_values_were() -> None:
    metrics = run(LONG, 0.8, delays=[5.0]).metrics
    assert sum(each.count for each in metrics.reliability) > LONG.max_new_tokens
    total = sum(each.count for each in metrics.reliability)
    off = sum(each.count * abs(each.estimated - each.taken) for each in metrics.reliability)
    assert off / total < 0.05
    assert metrics.alpha is not None
    assert 0.5 < metrics.alpha < 0.95, "acceptance is learned beside the race"
    assert run(LONG, None).metrics.reliability == ()
