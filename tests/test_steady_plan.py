"""Plans that stay under noise, and follow what really changes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.edge_runtime.budget import StepPlan, plan_budget
from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.request import DraftSettings
from acespec.edge_runtime.steady_plan import LEAST_GAIN, SteadyPlan
from acespec.edge_runtime.time_model import OutcomeOdds, RoundSetting, best_forecast
from acespec.wire import ServerTimes

STEP_MS = {1: 8.0, 4: 9.0, 8: 11.0, 16: 15.0, 32: 24.0}


def changes(plans: list[StepPlan]) -> int:
    """How often the bucket, gamma or redraft changed."""
    return sum(a != b for a, b in pairwise(plans))


def rounds_over(
    trip_ms: float, alpha: float, gamma: int | None, seed: int
) -> tuple[list[StepPlan], list[StepPlan]]:
    """What a controller plans round by round over a still link with jitter, and what it would unheld."""
    generator = np.random.default_rng(seed)
    controller = Controller(DraftSettings(gamma=gamma), lambda _: STEP_MS)
    kept, free = [], []
    for _ in range(260):
        plan = controller.plan(100)
        kept.append(plan)
        if gamma is None:
            free.append(best_forecast(controller.setting(100)).plan)
        else:
            free.append(plan_budget(controller.window_ms, gamma, STEP_MS))
        jitter_ms = 0.3 * trip_ms * generator.standard_normal()
        controller.observe_round(max(trip_ms + jitter_ms, 1.0) + 72.0, ServerTimes(0.0, 72.0))
        controller.step_times.observe(plan.bucket, STEP_MS[plan.bucket] * generator.uniform(0.9, 1.1))
        accepted = 0
        while accepted < plan.gamma and generator.random() < alpha:
            accepted += 1
        rejected = accepted < plan.gamma
        rank = int(np.ceil(generator.random() ** -1.2))
        controller.outcomes.observe([0.5] * plan.gamma, accepted, rejected, rank)
    return kept[60:], free[60:]


@pytest.mark.parametrize("gamma", [None, 4])
def test_noise_flaps_no_buckets(gamma: int | None) -> None:
    kept_changes = free_changes = 0
    for seed, trip_ms in enumerate((10.0, 50.0)):
        for alpha in (0.4, 0.8):
            kept, free = rounds_over(trip_ms, alpha, gamma, seed)
            kept_changes += changes(kept)
            free_changes += changes(free)
    assert free_changes > 30, "there is something to hold back"
    assert kept_changes <= 2


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.floats(5.0, 400.0), st.floats(0.05, 0.95)),
        min_size=1,
        max_size=12,
    )
)
def test_a_plan_is_never_clearly_worse_than_the_best(points: list[tuple[float, float]]) -> None:
    steady = SteadyPlan()
    for window_ms, alpha in points:
        setting = RoundSetting(window_ms, STEP_MS, OutcomeOdds(alpha, 0.8))
        chosen, best = steady.choose(setting), best_forecast(setting)
        assert (1.0 - LEAST_GAIN) * chosen.ms_per_token <= best.ms_per_token + 1e-9


def test_with_a_fixed_chain_the_bucket_stays_within_the_spread() -> None:
    steady = SteadyPlan()
    just_fits = 5 * 11.0  # gamma 4: five steps of bucket 8
    assert steady.choose_branches(just_fits, 6.0, 4, STEP_MS).bucket == 8
    assert steady.choose_branches(just_fits - 5.0, 6.0, 4, STEP_MS).bucket == 8
    assert steady.choose_branches(just_fits - 7.0, 6.0, 4, STEP_MS).bucket == 4
    assert steady.choose_branches(just_fits + 5.0, 6.0, 4, STEP_MS).bucket == 4
    assert steady.choose_branches(just_fits + 7.0, 6.0, 4, STEP_MS).bucket == 8
    assert steady.choose_branches(200.0, 6.0, 4, STEP_MS).bucket == 32
    assert steady.choose_branches(200.0, 6.0, 4, {1: 8.0, 4: 9.0}).bucket == 4


def test_a_plan_for_buckets_that_are_gone_is_made_anew() -> None:
    steady = SteadyPlan()
    odds = OutcomeOdds(0.6, 0.8)
    wide = steady.choose(RoundSetting(200.0, STEP_MS, odds)).plan
    assert wide.bucket > 4
    assert steady.choose(RoundSetting(200.0, {1: 8.0, 4: 9.0}, odds)).plan.bucket == 4
