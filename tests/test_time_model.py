"""The corrected model of time against a slow simulation of rounds, and by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.edge_runtime.budget import StepPlan
from acespec.edge_runtime.time_model import (
    GAMMAS,
    OutcomeOdds,
    RoundSetting,
    best_forecast,
    expected_tokens,
    forecast,
    hit_rate,
)
from acespec.speculation import allocate

STEP_MS = {1: 8.0, 4: 9.0, 16: 12.0}


@dataclass
class Simulated:
    """What rounds gave that were played one after another, with outcomes drawn as the model assumes."""

    hit_rate: float
    ms_per_token: float


def simulate(setting: RoundSetting, plan: StepPlan, rounds: int = 20_000) -> Simulated:
    """The edge's loop without its models: whole branches, one growth step after another."""
    odds, draft_ms = setting.odds, setting.step_ms[1]
    assert odds.first_accepted is not None
    generator = np.random.default_rng(11)
    branches = {
        length: allocate("geometric", plan.num_branches, length, odds.alpha, odds.beta)
        for length in (plan.gamma, plan.redraft)
    }
    length, total_ms, tokens, hits = plan.redraft, 0.0, 0, 0
    for _ in range(rounds):
        window_ms = setting.window_ms + setting.chain_token_ms * length
        steps = int(window_ms / setting.step_ms[plan.bucket] + 1e-9)
        accepted = 0
        while accepted < length and generator.random() < odds.alpha:
            accepted += 1
        full = accepted == length
        first = odds.first_accepted if full else odds.first_rejected
        rank = 1 if generator.random() < first else int(np.ceil(generator.random() ** (-1.0 / odds.beta)))
        ready = min(plan.gamma, steps - int(full))
        hit = rank <= branches[length][accepted] and ready >= 1
        total_ms += window_ms + draft_ms * (plan.gamma - ready if hit else plan.redraft)
        length = plan.gamma if hit else plan.redraft
        tokens += accepted + 1
        hits += int(hit)
    return Simulated(hits / rounds, total_ms / tokens)


ODDS = OutcomeOdds(alpha=0.6, beta=0.8, first_rejected=0.3, first_accepted=0.55)


@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.85])
@pytest.mark.parametrize(
    ("window_ms", "plan"),
    [
        (120.0, StepPlan(4, 16, 16)),
        (120.0, StepPlan(8, 16, 16, redraft=3)),
        (20.0, StepPlan(6, 4, 4, redraft=2)),  # two steps: every hit has to be finished
        (10.0, StepPlan(3, 4, 4)),  # one step: full acceptance cannot hit
        (5.0, StepPlan(3, 4, 4)),  # none
        (120.0, StepPlan(5, 0, 1)),  # stop and wait
    ],
)
def test_the_model_is_what_rounds_give_in_the_long_run(
    alpha: float, window_ms: float, plan: StepPlan
) -> None:
    odds = OutcomeOdds(alpha, 0.8, 0.3, first_accepted=0.55)
    setting = RoundSetting(window_ms, STEP_MS, odds, chain_token_ms=0.5)
    expected, seen = forecast(setting, plan), simulate(setting, plan)
    assert expected.ms_per_token == pytest.approx(seen.ms_per_token, rel=0.03)
    assert expected.hit_rate == pytest.approx(seen.hit_rate, abs=0.05)  # whole branches here


def test_a_round_by_hand() -> None:
    # alpha 1/2, one token a chain, a perfect tree, time for all: half the rounds commit 1, half 2 tokens
    odds = OutcomeOdds(0.5, 1.0, first_rejected=1.0, first_accepted=1.0)
    round_ = forecast(RoundSetting(60.0, {1: 10.0, 4: 20.0}, odds), StepPlan(1, 4, 4))
    assert round_.hit_rate == pytest.approx(1.0)
    assert round_.tokens == pytest.approx(1.5)
    assert round_.round_ms == pytest.approx(60.0)
    # one step of 20 ms fits 30 ms: half hit behind a rejection, the rest drafts its one token of 10 ms
    hurried = forecast(RoundSetting(30.0, {1: 10.0, 4: 20.0}, odds), StepPlan(1, 4, 4))
    assert hurried.hit_rate == pytest.approx(0.5)
    assert hurried.round_ms == pytest.approx(35.0)
    assert expected_tokens(0.5, 1) == 1.5


def test_every_branch_must_have_had_its_steps() -> None:
    assert hit_rate(ODDS, 4, 16, steps=0) == 0.0
    once, twice = hit_rate(ODDS, 4, 16, steps=1), hit_rate(ODDS, 4, 16, steps=2)
    assert 0.0 < once < twice == hit_rate(ODDS, 4, 16, steps=50)
    assert hit_rate(ODDS, 4, 0, steps=50) == 0.0


settings_ = st.builds(
    RoundSetting,
    window_ms=st.floats(1.0, 500.0),
    step_ms=st.fixed_dictionaries(
        {1: st.floats(1.0, 30.0), 4: st.floats(1.0, 30.0), 16: st.floats(1.0, 60.0)}
    ),
    odds=st.builds(
        OutcomeOdds,
        alpha=st.floats(0.001, 0.999),
        beta=st.floats(0.2, 3.0),
        first_rejected=st.floats(0.0, 1.0),
        first_accepted=st.none() | st.floats(0.0, 1.0),
    ),
    chain_token_ms=st.floats(0.0, 4.0),
)


@settings(max_examples=60)
@given(settings_)
def test_the_best_plan_is_the_best_of_all(setting: RoundSetting) -> None:
    best = best_forecast(setting)
    by_hand = min(
        forecast(setting, StepPlan(gamma, bucket, bucket, redraft)).ms_per_token
        for gamma in GAMMAS
        for redraft in GAMMAS
        for bucket in STEP_MS
        if redraft <= gamma
    )
    assert best.ms_per_token == pytest.approx(by_hand)
    assert forecast(setting, best.plan).ms_per_token == pytest.approx(best.ms_per_token)
    assert 0.0 <= best.hit_rate <= 1.0
    assert 1.0 <= best.tokens <= best.plan.gamma + 1


@settings(max_examples=60)
@given(settings_, st.integers(1, 30))
def test_a_fixed_budget_is_kept(setting: RoundSetting, budget: int) -> None:
    plan = best_forecast(setting, budget=budget).plan
    assert plan.budget == budget
    assert plan.num_branches <= plan.bucket


def test_a_longer_round_trip_wants_longer_chains_and_a_poor_draft_shorter_ones() -> None:
    def best(window_ms: float, alpha: float) -> StepPlan:
        return best_forecast(RoundSetting(window_ms, STEP_MS, OutcomeOdds(alpha, 0.8))).plan

    assert best(80.0, 0.6).redraft <= best(300.0, 0.6).redraft
    assert best(80.0, 0.3).redraft < best(80.0, 0.9).redraft
    assert best(80.0, 0.6).redraft < best(80.0, 0.6).gamma, "what is drafted ahead costs nothing"
