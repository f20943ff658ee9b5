"""The budget's inverse and bucket choice against hand-worked values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.edge_runtime.budget import (
    bucket_for,
    fixed_budget,
    growth_steps,
    plan_budget,
    tree_time_ms,
    worth_a_step,
)

STEP_MS = {1: 10.0, 8: 20.0, 16: 40.0, 32: 80.0}


def test_a_step_runs_on_the_smallest_bucket_that_holds_it() -> None:
    assert [bucket_for(n, (1, 8, 16)) for n in (1, 2, 8, 9, 16)] == [1, 8, 8, 16, 16]
    with pytest.raises(ValueError, match="wider than the largest bucket"):
        bucket_for(17, (1, 8, 16))


def test_tree_time_is_steps_times_the_buckets_step() -> None:
    # gamma 4: five steps; budget 4 + 8 runs on bucket 8, budget 4 + 9 on bucket 16
    assert growth_steps(4) == 5
    assert tree_time_ms(12, 4, STEP_MS) == 100.0
    assert tree_time_ms(13, 4, STEP_MS) == 200.0
    assert tree_time_ms(4, 4, STEP_MS) == 50.0


@pytest.mark.parametrize(
    ("window_ms", "num_branches", "bucket"),
    [
        (0.0, 1, 1),
        (49.9, 1, 1),
        (50.0, 1, 1),
        (99.9, 1, 1),
        (100.0, 8, 8),
        (199.0, 8, 8),
        (200.0, 16, 16),
        (1e9, 32, 32),
    ],
)
def test_budget_is_the_inverse_of_tree_time(window_ms: float, num_branches: int, bucket: int) -> None:
    plan = plan_budget(window_ms, 4, STEP_MS)
    assert (plan.num_branches, plan.bucket, plan.budget) == (num_branches, bucket, 4 + num_branches)


def test_the_budget_is_capped() -> None:
    plan = plan_budget(1e9, 4, STEP_MS, max_budget=14)
    assert (plan.num_branches, plan.bucket) == (10, 16)
    assert plan_budget(1e9, 4, STEP_MS, max_budget=4).num_branches == 0


@given(
    st.lists(st.floats(0.1, 500.0), min_size=4, max_size=4),
    st.integers(1, 63),
    st.floats(0.0, 5000.0),
    st.floats(0.0, 5000.0),
)
def test_budget_grows_with_the_round_trip_and_fits_the_window(
    times: list[float], gamma: int, one_ms: float, other_ms: float
) -> None:
    step_ms = dict(zip(sorted(STEP_MS), times, strict=True))
    short, long = (plan_budget(w, gamma, step_ms) for w in sorted((one_ms, other_ms)))
    assert short.budget <= long.budget
    smallest = plan_budget(0.0, gamma, step_ms)
    if long.budget > smallest.budget:
        assert tree_time_ms(long.budget, gamma, step_ms) <= max(one_ms, other_ms)


def test_a_fixed_budget_takes_the_smallest_bucket_and_names_the_limit() -> None:
    plan = fixed_budget(13, 4, (1, 8, 16, 32))
    assert (plan.num_branches, plan.bucket) == (9, 16)
    with pytest.raises(ValueError, match="at most 36"):
        fixed_budget(37, 4, (1, 8, 16, 32))


def test_no_step_is_begun_that_would_outlast_the_wait() -> None:
    assert worth_a_step(now_ms=0.0, step_ms=40.0, verdict_ms=196.0, spread_ms=0.0)
    assert worth_a_step(156.0, 40.0, 196.0, 0.0)
    assert not worth_a_step(157.0, 40.0, 196.0, 0.0)
    assert worth_a_step(157.0, 40.0, 196.0, spread_ms=5.0)
