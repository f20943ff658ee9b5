"""What rounds teach, and the branches that follow."""

from __future__ import annotations

import numpy as np
import pytest

from acespec.compute import InlineRunner
from acespec.edge_runtime.drafter import Drafter, DraftRules
from acespec.edge_runtime.estimators import AcceptanceByConfidence, AcceptanceRate, StepTimes
from acespec.edge_runtime.node_values import RankValues
from acespec.edge_runtime.outcome_estimates import OutcomeEstimates
from acespec.edge_runtime.race_draft import LearnedFromText
from acespec.edge_runtime.step_clock import StepClock
from acespec.speculation import Allocation, LogitsRow, SamplingParams, allocate
from acespec.wire import AcceptanceMode
from fake_draft import TableDraftEngine, hashed_table


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


@pytest.mark.parametrize(
    ("token", "rank"), [(110, 1), (112, 3), (113, None), (115, 5), (174, 64), (7, 65)], ids=str
)
def test_beside_the_stream_a_token_is_ranked_without_the_one_that_was_drafted(
    token: int, rank: int | None
) -> None:
    learned, expected = (OutcomeEstimates(Allocation.GEOMETRIC, 0.6, 0.8) for _ in range(2))
    assert learned.horizon == 64
    accepted = token == 113
    learned.observe_beside(0.4, range(110, 175), 113, token)
    expected.observe([0.4], int(accepted), rejected=not accepted, rank=rank)
    first = AcceptanceRate(0.6)
    first.observe(int(token == 110), rejected=token != 110)
    assert (learned.alpha.value, learned.beta.value) == (expected.alpha.value, expected.beta.value)
    assert learned.odds().first_rejected == expected.odds().first_rejected
    assert learned.odds().first_accepted == first.value


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=0.0), SamplingParams(top_p=0.4)]
)
def test_a_race_learns_of_a_token_what_a_draw_and_the_candidates_besides_it_say(
    params: SamplingParams,
) -> None:
    """For a token of every rank, the ones past the horizon included."""
    vocab_size, before = 90, [1, 2, 3]
    engine = TableDraftEngine(hashed_table(vocab_size, salt=4), vocab_size)
    rules = DraftRules(params, 5, AcceptanceMode.COUPLED, frozenset(), 1)
    drafter = Drafter(engine, rules, InlineRunner(), StepClock(StepTimes(dict.fromkeys(engine.buckets, 1.0))))
    drafted = drafter.draw(LogitsRow(np.asarray(hashed_table(vocab_size, salt=4)(tuple(before)))), before)
    raced, expected = (OutcomeEstimates(Allocation.GEOMETRIC, 0.6, 0.8) for _ in range(2))
    learned = LearnedFromText(RankValues(), drafter, raced)
    others = drafter.candidates(drafted.row, len(before), raced.horizon, drafted.token)
    for token in range(vocab_size):
        rank = others.index(token) + 1 if token in others else raced.horizon + 1
        accepted = token == drafted.token
        learned.observe(drafted.row, len(before), token)
        expected.observe([drafted.confidence], int(accepted), not accepted, None if accepted else rank)
    assert (raced.alpha.value, raced.beta.value) == (expected.alpha.value, expected.beta.value)
    assert raced.odds().first_rejected == expected.odds().first_rejected
