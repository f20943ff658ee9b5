"""The paper's equations by hand, and what is off in them against what really happens."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.edge_runtime.budget import plan_budget, tree_time_ms
from acespec.edge_runtime.time_model import OutcomeOdds, expected_tokens, hit_rate
from acespec.speculation import allocate, paper_model

probabilities = st.floats(0.01, 0.99)
times = st.floats(1.0, 500.0)


def test_equations_1_to_4_by_hand() -> None:
    # alpha 0.5, gamma 2, draft 20, RTT 50, verify 30
    assert paper_model.expected_length(0.5, 2) == 1.5
    assert paper_model.expected_length(1.0, 2) == 2.0
    assert paper_model.naive_cycle_ms(20.0, 50.0, 30.0) == 100.0
    assert paper_model.ideal_cycle_ms(20.0, 50.0, 30.0) == 80.0
    assert paper_model.ideal_cycle_ms(90.0, 50.0, 30.0) == 90.0
    penalty = paper_model.expected_penalty_ms(0.5, 2, 50.0, 20.0)
    assert penalty == 0.75 * 70.0
    assert paper_model.pipelined_throughput(0.5, 2, 80.0, penalty) == pytest.approx(1.5 / 132.5)
    assert paper_model.bubble_ms(50.0, 20.0) == 70.0
    assert paper_model.speedup_bound(100.0, 80.0, 0.5, 70.0) == pytest.approx(100.0 / 115.0)


@given(times, times, probabilities, times)
def test_equation_4_is_equation_3(naive_ms: float, ideal_ms: float, hits: float, bubble: float) -> None:
    by_ratio = paper_model.speedup_bound_by_ratio(naive_ms / ideal_ms, hits, bubble / ideal_ms)
    assert by_ratio == pytest.approx(paper_model.speedup_bound(naive_ms, ideal_ms, hits, bubble))


@given(st.floats(0.0, 3000.0), st.integers(1, 12))
def test_equation_5_is_the_budget_of_an_engine_with_buckets(window_ms: float, gamma: int) -> None:
    step_ms = {1: 10.0, 8: 20.0, 16: 40.0, 32: 80.0}

    def tree_ms(branches: int) -> float:
        return tree_time_ms(gamma + branches, gamma, step_ms)

    branches = paper_model.network_budget(window_ms, tree_ms, max_budget=32)
    assert branches in (0, 1, 8, 16, 32), "a tree's time is constant between buckets"
    assert plan_budget(window_ms, gamma, step_ms).num_branches == max(branches, 1)


@given(st.integers(1, 200), st.integers(1, 12), probabilities, st.floats(0.1, 5.0))
def test_equation_14_spends_the_budget_in_geometric_decay(
    budget: int, gamma: int, alpha: float, beta: float
) -> None:
    branches = paper_model.geometric_branches(budget, gamma, alpha, beta)
    assert branches.sum() == pytest.approx(budget)
    assert branches[1:] == pytest.approx(branches[:-1] * alpha ** (1.0 / (beta + 1.0)))
    rounded = allocate("geometric", budget, gamma, alpha, beta)
    rest = paper_model.geometric_branches(budget - int(rounded[gamma]), gamma, alpha, beta)
    assert np.abs(rounded[:gamma] - rest).max() < 1.0


def test_equation_14_is_optimal_for_the_objective_it_comes_from() -> None:
    """No shift of budget between two depths betters Eq. 10 with its approximations (Eq. 11)."""
    alpha, beta, gamma = 0.6, 0.8, 5
    branches = paper_model.geometric_branches(20.0, gamma, alpha, beta)

    def objective(spread: np.ndarray) -> float:
        return float(-(alpha ** np.arange(gamma) * spread**-beta).sum())

    for source, target in itertools.permutations(range(gamma), 2):
        moved = branches.copy()
        moved[source] -= 0.01
        moved[target] += 0.01
        assert objective(moved) < objective(branches)


def test_expected_length_leaves_out_the_targets_own_token() -> None:
    generator = np.random.default_rng(3)
    alpha, gamma = 0.6, 4
    accepted = np.cumprod(generator.random((200_000, gamma)) < alpha, axis=1).sum(axis=1)
    assert expected_tokens(alpha, gamma) == pytest.approx((accepted + 1).mean(), rel=0.01)
    assert expected_tokens(1.0, gamma) == gamma + 1
    assert paper_model.expected_length(alpha, gamma) == pytest.approx(
        np.minimum(accepted + 1, gamma).mean(), rel=0.01
    )


def test_equation_6_is_no_hit_rate() -> None:
    """A round of outcomes drawn as the model has them hits as often as ``hit_rate`` says, not Eq. 6."""
    generator = np.random.default_rng(4)
    odds = OutcomeOdds(alpha=0.6, beta=1.0, first_rejected=0.0, first_accepted=0.0)
    gamma, branches = 8, 60  # many enough for fractions of a branch not to matter
    counts = allocate("geometric", branches, gamma, odds.alpha, odds.beta)
    num = 200_000
    accepted = np.cumprod(generator.random((num, gamma)) < odds.alpha, axis=1).sum(axis=1)
    rank = np.ceil(generator.random(num) ** (-1.0 / odds.beta))  # P(rank > F) = F^-beta
    hits = (rank <= counts[accepted]).mean()
    assert hit_rate(odds, gamma, branches, steps=9) == pytest.approx(hits, abs=0.01)
    shares = [paper_model.tail_share(count, odds.beta) for count in counts[:gamma]]
    assert paper_model.product_hit_rate(odds.alpha, shares) < hits - 0.1
    assert paper_model.product_hit_rate(0.5, [0.5, 0.0]) == 0.75 * 0.5
    assert paper_model.tail_share(0.0, 1.0) == 0.0
    assert paper_model.tail_share(4.0, 1.0, scale=0.4) == 0.9
