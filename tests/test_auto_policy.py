"""Speculation where it wins, the cloud where it does not: the same text, and never slower than the cloud."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.cloud_verifier.limits import Limits
from acespec.edge_runtime.generate import GenerationResult
from acespec.edge_runtime.mode_switch import ModeSwitch, Outlook
from acespec.edge_runtime.outage import OnOutage
from acespec.edge_runtime.request import DraftSettings, GenerationRequest, SpeculationPolicy
from acespec.speculation import SamplingParams
from acespec.wire import AcceptanceMode, Eagerness
from bad_network import Fault, StreamPlan, stream_plans
from policy_world import EAGER, NO_RACE, PATIENT, run


class Scripted(ModeSwitch):
    """Does as it is told, over and over."""

    def __init__(self, decisions: Sequence[bool]) -> None:
        super().__init__()
        self._decisions: Iterator[bool] = itertools.cycle(decisions)

    def enters(self, cautious: Outlook, generated: int) -> bool:
        return next(self._decisions)

    def leaves(self, outlook: Outlook, generated: int) -> bool:
        return next(self._decisions)


AUTO = DraftSettings(gamma=None, policy=SpeculationPolicy.AUTO)


@settings(max_examples=100)
@given(
    decisions=st.lists(st.booleans(), min_size=1, max_size=8),
    gamma=st.none() | st.integers(1, 5),
    max_new_tokens=st.integers(1, 40),
    end_token_ids=st.sampled_from([(), (3, 8)]),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    seed=st.integers(0, 2**64 - 1),
    closeness=st.sampled_from([0.0, 0.7, 1.0]),
    delays=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    step_ms=st.sampled_from([0.5, 3.0, 25.0]),
    draft_context=st.sampled_from([2, 9, 1024]),
    plans=stream_plans(last_at=9, last_busy=5, most_busy=2, most_plans=3),
    on_outage=st.sampled_from([OnOutage.WAIT, OnOutage.DRAFT]),
    eagerness=st.sampled_from([*Eagerness, None]),
)
def test_coupled_text_is_the_clouds_whenever_it_switches(
    decisions: list[bool],
    gamma: int | None,
    max_new_tokens: int,
    end_token_ids: tuple[int, ...],
    temperature: float,
    seed: int,
    closeness: float,
    delays: list[int],
    step_ms: float,
    draft_context: int,
    plans: list[StreamPlan],
    on_outage: OnOutage,
    eagerness: Eagerness | None,
) -> None:
    provisional: list[list[int]] = []
    request = GenerationRequest(
        (4, 2), end_token_ids, max_new_tokens, SamplingParams(temperature=temperature), seed
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acespec.edge_runtime.auto_policy.ModeSwitch", lambda: Scripted(decisions))
        switched = run(
            request,
            closeness,
            DraftSettings(gamma=gamma, policy=SpeculationPolicy.AUTO),
            Limits(race_eagerness=eagerness, race_patience_ms=50.0),
            step_ms=step_ms,
            delays=delays,
            plans=plans,
            draft_context=draft_context,
            outage=PATIENT[on_outage],
            provisional=provisional,
        )
    alone = run(request, None)
    assert switched.tokens == alone.tokens
    assert switched.finish_reason is alone.finish_reason
    assert switched.provisional == []
    assert not provisional or provisional[-1] == []
    metrics = switched.metrics
    assert metrics.decoded_tokens >= min(max_new_tokens, len(alone.tokens), 1), "the cloud begins"
    if True not in decisions:
        assert metrics.rounds == 0


def test_while_the_link_is_down_the_draft_goes_on_from_where_the_cloud_was() -> None:
    request = GenerationRequest((4, 2), (), 40, seed=5)
    shown: list[list[int]] = []
    cut = [StreamPlan(Fault.CUT, up=False, at=3), *[StreamPlan(Fault.REFUSE)] * 7]
    far = {"target_ms": 10.0, "delays": [400.0]}  # rounds lose: the cloud decodes
    result = run(
        request, 0.97, AUTO, NO_RACE, plans=cut, outage=PATIENT[OnOutage.DRAFT], provisional=shown, **far
    )  # type: ignore[arg-type]
    assert result.metrics.decoded_tokens == len(result.tokens) == 40
    assert max(len(line) for line in shown) > 4
    assert shown[-1] == []
    longest = max(shown, key=len)
    at = next(i for i in range(40) if result.tokens[i : i + 3] == longest[:3])
    assert at > 0, "the text went on as was shown"


@pytest.mark.parametrize("limits", [EAGER, NO_RACE])
def test_scripted_switching_does_switch(limits: Limits) -> None:
    request = GenerationRequest((4, 2), (), 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acespec.edge_runtime.auto_policy.ModeSwitch", lambda: Scripted([True]))
        metrics = run(request, 0.7, AUTO, limits).metrics
    assert metrics.rounds > 1
    assert metrics.decoded_tokens > 12
    assert (metrics.raced_tokens > 0) is (limits is EAGER)


def test_every_race_over_a_stream_is_one() -> None:
    """Each stretch of a race is a request of its own, for which nodes are numbered anew."""
    request = GenerationRequest((4, 2), (), 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acespec.edge_runtime.auto_policy.ModeSwitch", lambda: Scripted([True]))
        metrics = run(request, 0.9, AUTO, EAGER, target_ms=40.0).metrics
    assert metrics.rounds > 3, "rounds lie between them"
    assert metrics.raced_tokens > 0.5 * metrics.decoded_tokens > 50


LONG = GenerationRequest((4, 2), (), 128, seed=3)
LOSING = [
    (72.0, 8.5, 100.0),
    (72.0, 8.5, 200.0),
    (72.0, 22.0, 100.0),
    (72.0, 22.0, 200.0),
    (146.0, 15.0, 200.0),
]
"""Target step, draft step and round trip of which rounds lose at an acceptance of 0.5, in milliseconds."""


def total_ms(
    closeness: float | None,
    target_ms: float,
    step_ms: float,
    trip_ms: float,
    policy: SpeculationPolicy,
    limits: Limits = NO_RACE,
) -> tuple[float, GenerationResult]:
    result = run(
        LONG,
        closeness,
        DraftSettings(gamma=None, policy=policy),
        limits,
        target_ms=target_ms,
        step_ms=step_ms,
        delays=[trip_ms / 2.0],
    )
    return result.metrics.total_ms, result


@pytest.mark.parametrize(("target_ms", "step_ms", "trip_ms"), LOSING)
def test_where_rounds_lose_nothing_is_lost(target_ms: float, step_ms: float, trip_ms: float) -> None:
    """Not a millisecond: neither learning what would be accepted nor asking for more holds the cloud up."""
    alone_ms, _ = total_ms(None, target_ms, step_ms, trip_ms, SpeculationPolicy.AUTO)
    rounds_ms, _ = total_ms(0.52, target_ms, step_ms, trip_ms, SpeculationPolicy.ROUNDS)
    auto_ms, result = total_ms(0.52, target_ms, step_ms, trip_ms, SpeculationPolicy.AUTO)
    assert rounds_ms > 1.03 * alone_ms, "they lose"
    assert auto_ms == pytest.approx(alone_ms, abs=0.1)
    assert result.metrics.decoded_tokens == 128
    assert result.metrics.messages_up < 128 / 8 + 12, "a request for each piece, shorter ones at first"
    assert result.metrics.beside_ms > 0.0


@pytest.mark.parametrize(("target_ms", "step_ms", "trip_ms"), [(72.0, 8.5, 10.0), (146.0, 15.0, 50.0)])
def test_where_rounds_win_little_of_it_is_missed(target_ms: float, step_ms: float, trip_ms: float) -> None:
    alone_ms, _ = total_ms(None, target_ms, step_ms, trip_ms, SpeculationPolicy.AUTO)
    rounds_ms, _ = total_ms(0.85, target_ms, step_ms, trip_ms, SpeculationPolicy.ROUNDS)
    auto_ms, result = total_ms(0.85, target_ms, step_ms, trip_ms, SpeculationPolicy.AUTO)
    assert rounds_ms < 0.5 * alone_ms
    assert auto_ms < 1.2 * rounds_ms
    assert result.metrics.decoded_tokens <= 12


@pytest.mark.parametrize("closeness", [0.4, 0.6])
@pytest.mark.parametrize(
    ("target_ms", "step_ms", "trip_ms"), [(72.0, 8.5, 50.0), (72.0, 22.0, 100.0), (146.0, 15.0, 200.0)]
)
def test_wherever_rounds_win_or_lose_hardly_anything_is_lost(
    target_ms: float, step_ms: float, trip_ms: float, closeness: float
) -> None:
    """From acceptances that lose to such that win, near the break-even too: the cloud's speed in the mean."""
    alone_ms, total = 0.0, 0.0
    for seed in range(2):
        request = GenerationRequest((4, 2), (), 128, seed=seed)
        world = {"target_ms": target_ms, "step_ms": step_ms, "delays": [trip_ms / 2.0]}
        alone_ms += run(request, None, **world).metrics.total_ms  # type: ignore[arg-type]
        total += run(request, closeness, AUTO, NO_RACE, **world).metrics.total_ms  # type: ignore[arg-type]
    assert alone_ms / total >= 0.97


def test_jitter_and_a_draft_slower_than_the_cloud_hold_nothing_up() -> None:
    for step_ms in (8.5, 90.0):
        late = list(np.random.default_rng(4).uniform(50.0, 65.0, 97))
        settings_ = {"target_ms": 72.0, "step_ms": step_ms, "delays": late}
        alone_ms = run(LONG, None, **settings_).metrics.total_ms  # type: ignore[arg-type]
        auto = run(LONG, 0.5, AUTO, NO_RACE, **settings_).metrics  # type: ignore[arg-type]
        assert auto.decoded_tokens == 128
        assert auto.total_ms == pytest.approx(alone_ms, rel=0.01)


@pytest.mark.parametrize(
    ("target_ms", "step_ms", "trip_ms"), [*LOSING, (72.0, 8.5, 10.0), (146.0, 15.0, 50.0)]
)
def test_where_the_server_races_it_is_as_fast_as_the_race_or_rounds(
    target_ms: float, step_ms: float, trip_ms: float
) -> None:
    world = target_ms, step_ms, trip_ms
    alone_ms, _ = total_ms(None, *world, SpeculationPolicy.AUTO)
    rounds_ms, _ = total_ms(0.6, *world, SpeculationPolicy.ROUNDS, EAGER)
    race_ms, _ = total_ms(0.6, *world, SpeculationPolicy.RACE, EAGER)
    auto_ms, result = total_ms(0.6, *world, SpeculationPolicy.AUTO, EAGER)
    assert result.metrics.raced_tokens > 0
    assert race_ms < rounds_ms, "the race wins"
    # It begins with a piece that may not be raced to the end, and what is drafted in time differs by then.
    assert auto_ms < race_ms + 4.1 * target_ms
    assert auto_ms <= alone_ms


def test_where_the_server_waits_for_drafts_it_races_only_where_that_pays() -> None:
    waits = Limits(race_eagerness=Eagerness.COST, race_patience_ms=2_000.0)
    alone_ms, _ = total_ms(None, 10.0, 22.0, 200.0, SpeculationPolicy.AUTO)
    race_ms, _ = total_ms(0.3, 10.0, 22.0, 200.0, SpeculationPolicy.RACE, waits)
    auto_ms, result = total_ms(0.3, 10.0, 22.0, 200.0, SpeculationPolicy.AUTO, waits)
    assert race_ms > 1.5 * alone_ms, "it does not"
    assert auto_ms < 0.6 * race_ms
    assert result.metrics.decoded_tokens == 128


@pytest.mark.parametrize("closeness", [0.3, 0.8])
def test_what_is_learned_beside_the_stream_is_what_rounds_would_meet(closeness: float) -> None:
    request = GenerationRequest((4, 2), (), 200, seed=9)
    far = {"target_ms": 10.0, "step_ms": 1.0, "delays": [400.0]}
    beside = run(request, closeness, AUTO, NO_RACE, **far).metrics  # type: ignore[arg-type]
    rounds = run(request, closeness, DraftSettings(gamma=4), **far).metrics  # type: ignore[arg-type]
    assert beside.rounds == 0
    assert rounds.acceptance is not None
    assert beside.alpha == pytest.approx(rounds.acceptance, abs=0.08)
    assert beside.beta == pytest.approx(rounds.beta, abs=0.3)


@pytest.mark.parametrize("closeness", [0.3, 0.8])
def test_in_residual_mode_acceptance_is_never_taken_for_more_than_it_is(closeness: float) -> None:
    request = GenerationRequest((4, 2), (), 200, seed=9, mode=AcceptanceMode.RESIDUAL)
    far = {"target_ms": 10.0, "step_ms": 1.0, "delays": [400.0]}
    beside = run(request, closeness, AUTO, NO_RACE, **far).metrics  # type: ignore[arg-type]
    rounds = run(request, closeness, DraftSettings(gamma=4), **far).metrics  # type: ignore[arg-type]
    assert beside.rounds == 0
    assert beside.alpha is not None
    assert rounds.acceptance is not None
    assert beside.alpha < rounds.acceptance + 0.05
