"""Branches per depth: against the paper's closed form and figures worked by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.speculation import Allocation, allocate, allocate_adaptive

budgets = st.integers(0, 200)
gammas = st.integers(0, 12)
alphas = st.floats(0.02, 0.98)
betas = st.floats(0.1, 5.0)


@given(st.sampled_from(["uniform", "geometric"]), budgets, gammas, st.floats(0.0, 1.0), st.floats(0.0, 100.0))
def test_the_whole_budget_is_spent_at_any_estimate(
    strategy: str, budget: int, gamma: int, alpha: float, beta: float
) -> None:
    branches = allocate(strategy, budget, gamma, alpha, beta)
    assert branches.dtype == np.int64
    assert branches.shape == (gamma + 1,)
    assert (branches >= 0).all()
    assert branches.sum() == budget


@given(budgets, st.integers(1, 12), alphas, betas)
def test_rejected_depths_follow_equation_14(budget: int, gamma: int, alpha: float, beta: float) -> None:
    branches = allocate("geometric", budget, gamma, alpha, beta)
    eta = alpha ** (1.0 / (beta + 1.0))
    rest = budget - int(branches[gamma])
    closed_form = [rest * (1.0 - eta) / (1.0 - eta**gamma) * eta**k for k in range(gamma)]
    assert np.abs(branches[:gamma] - closed_form).max() < 1.0
    floors = [math.floor(share) for share in closed_form]
    extra = branches[:gamma] - floors
    remainders = np.array(closed_form) - floors
    # Largest remainder: nobody with an extra branch had a smaller remainder than somebody without.
    if (extra == 1).any() and (extra == 0).any():
        assert remainders[extra == 1].min() >= remainders[extra == 0].max() - 1e-9
    assert (np.diff(branches[:gamma]) <= 0).all()


@given(budgets, gammas, alphas, betas)
def test_full_acceptance_is_reserved_on_the_same_scale(
    budget: int, gamma: int, alpha: float, beta: float
) -> None:
    # Reached and ended there with probability alpha^k (1 - alpha), or alpha^gamma; each to the power 1/(beta
    # + 1).
    reached = [alpha**k * (1.0 - alpha) for k in range(gamma)] + [alpha**gamma]
    scaled = [probability ** (1.0 / (beta + 1.0)) for probability in reached]
    share = budget * scaled[-1] / sum(scaled)
    assert abs(allocate("geometric", budget, gamma, alpha, beta)[gamma] - share) <= 0.5 + 1e-9


def test_geometric_by_hand() -> None:
    # alpha 0.25, beta 1: eta = 1/2. Shares 1, 1/2, 1/4 and (1/8) / sqrt(0.75) = 0.1443, sum 1.8943.
    # Of 26: full acceptance 1.98 -> 2; of the other 24, in 4 : 2 : 1, 13.71, 6.86, 3.43 -> 14, 7, 3.
    assert allocate("geometric", 26, 3, 0.25, 1.0).tolist() == [14, 7, 3, 2]
    # alpha 0.64, beta 1: eta 0.8, factor 1 / 0.6; shares 1, 0.8, 1.0667: of 43 full acceptance 16, then 15,
    # 12.
    assert allocate("geometric", 43, 2, 0.64, 1.0).tolist() == [15, 12, 16]


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [(0.0, [9, 0, 0, 0]), (1.0, [0, 0, 0, 9])],
    ids=["never accepted", "always accepted"],
)
def test_geometric_at_the_limits(alpha: float, expected: list[int]) -> None:
    assert allocate("geometric", 9, 3, alpha, 0.5).tolist() == expected


def test_the_other_strategies() -> None:
    assert allocate("uniform", 10, 3, 0.5, 1.0).tolist() == [3, 3, 2, 2]
    assert allocate(Allocation.SINGLE, 10, 3, 0.5, 1.0).tolist() == [0, 0, 0, 1]
    assert allocate("single", 0, 3, 0.5, 1.0).tolist() == [0, 0, 0, 0]
    for strategy in ("uniform", "geometric"):
        assert allocate(strategy, 7, 0, 0.5, 1.0).tolist() == [7]


def test_what_cannot_be_allocated_is_refused() -> None:
    with pytest.raises(ValueError, match="thin"):
        allocate("thin", 4, 2, 0.5, 1.0)
    with pytest.raises(ValueError, match="negative"):
        allocate("uniform", -1, 2, 0.5, 1.0)
    with pytest.raises(ValueError, match="negative"):
        allocate("uniform", 4, -1, 0.5, 1.0)


def test_adaptive_by_hand() -> None:
    # Ends at 0: 0.5; at 1: 0.5 * 0.1 = 0.05; full acceptance: 0.45. beta 1: R(F) = 1 - c / F.
    # Rejected, c 0.6: shares 0.4, 0.3, 0.1, 0.05; accepted, c 0.4: 0.6, 0.2, 0.067.
    # Outcomes: depth 0: 0.2, 0.15, 0.05, 0.025; depth 1: 0.02, 0.015; depth 2: 0.27, 0.09, 0.03.
    found = [allocate_adaptive(n, np.array([0.5, 0.9]), 1.0, 0.4, 0.6).tolist() for n in range(8)]
    assert found == [
        [0, 0, 0],
        [0, 0, 1],
        [1, 0, 1],
        [2, 0, 1],
        [2, 0, 2],
        [3, 0, 2],
        [3, 0, 3],
        [4, 0, 3],
    ]


accept_lists = st.lists(st.floats(0.0, 1.0), max_size=3)


@given(accept_lists, st.integers(0, 5), st.floats(0.1, 1.0), st.floats(0.5, 1.0), st.floats(0.5, 1.0))
def test_adaptive_hits_as_often_as_the_best_of_all_allocations(
    accept: list[float], budget: int, beta: float, rejected: float, accepted: float
) -> None:
    def hits(branches: tuple[int, ...]) -> float:
        total, reached = 0.0, 1.0
        for depth, count in enumerate(branches):
            is_full = depth == len(accept)
            first = accepted if is_full else rejected
            ends = reached if is_full else reached * (1.0 - accept[depth])
            total += ends * (1.0 - (1.0 - first) * count**-beta if count else 0.0)
            reached *= 1.0 if is_full else accept[depth]
        return total

    found = allocate_adaptive(budget, np.array(accept), beta, rejected, accepted)
    assert found.sum() == budget
    every = itertools.product(range(budget + 1), repeat=len(accept) + 1)
    best = max(hits(branches) for branches in every if sum(branches) == budget)
    assert hits(tuple(found.tolist())) == pytest.approx(best)


@pytest.mark.parametrize(("accept", "expected"), [(0.0, [6, 0, 0]), (1.0, [0, 0, 6])])
def test_adaptive_with_a_certain_outcome(accept: float, expected: list[int]) -> None:
    assert allocate_adaptive(6, np.full(2, accept), 1.0, 0.5, 0.5).tolist() == expected
