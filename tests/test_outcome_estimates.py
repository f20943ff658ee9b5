"""What rounds teach, and the branches that follow."""

from __future__ import annotations

import pytest

from acespec.edge_runtime.estimators import AcceptanceByConfidence
from acespec.edge_runtime.outcome_estimates import OutcomeEstimates
from acespec.speculation import Allocation, allocate


def test_confidence_bins_learn_apart() -> None:
    rates = AcceptanceByConfidence(prior=0.5, num_bins=4)
    assert rates.value(0.9) > rates.value(0.1), "a sure draft is trusted more from the start"
    for _ in range(300):
        rates.observe(0.1, accepted=True)
        rates.observe(1.0, accepted=False)
    assert rates.value(0.2) > 0.9
    assert rates.value(0.99) < 0.1
    assert rates.value(0.6) == pytest.approx((0.5 + 0.625) / 2), "an unseen bin keeps its prior"


def test_geometric_uses_the_estimated_alpha_and_beta() -> None:
    estimates = OutcomeEstimates(Allocation.GEOMETRIC, 0.6, 0.8)
    for _ in range(400):
        estimates.observe([0.5, 0.5], accepted=2, rejected=False, rank=1)
    expected = allocate("geometric", 16, 4, estimates.alpha.value, estimates.beta.value)
    assert estimates.allocation(16, [0.5] * 4) == expected.tolist()
    assert estimates.alpha.value > 0.95


def test_adaptive_puts_branches_where_this_chain_is_likely_to_end() -> None:
    estimates = OutcomeEstimates(Allocation.ADAPTIVE, 0.6, 0.8)
    for _ in range(300):
        estimates.observe([0.95], accepted=1, rejected=False, rank=1)
        estimates.observe([0.05], accepted=0, rejected=True, rank=2)
    doubtful_first = estimates.allocation(8, [0.05, 0.95, 0.95])
    doubtful_last = estimates.allocation(8, [0.95, 0.95, 0.05])
    assert sum(doubtful_first) == sum(doubtful_last) == 8
    assert doubtful_first[0] > doubtful_last[0]
    assert doubtful_last[2] > doubtful_first[2]


def test_a_round_counts_tests_up_to_its_first_rejection() -> None:
    estimates = OutcomeEstimates(Allocation.GEOMETRIC, 0.5, 0.8)
    before = estimates.alpha.value
    estimates.observe([0.5, 0.5, 0.5], accepted=0, rejected=True, rank=None)
    once = estimates.alpha.value
    assert once < before
    estimates.observe([0.5, 0.5, 0.5], accepted=0, rejected=True, rank=None)
    assert once - estimates.alpha.value < before - once, "one test a round, not three"
    assert estimates.beta.value == pytest.approx(0.8), "an unknown rank teaches nothing"
