"""Chances of drafted tokens: calibrated, learned where they are not, and better than what ranks tell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from acespec.edge_runtime.drafter import DraftRules
from acespec.edge_runtime.node_values import MAX_CHOICES, CoupledValues, NodeValues, RankValues, ValuePrior
from acespec.edge_runtime.reliability import LEAST_CHANCE, Reliability
from acespec.speculation import (
    CandidateRow,
    LogitsRow,
    SamplingParams,
    candidate_row,
    coupled_pick,
    distribution,
)
from acespec.wire import AcceptanceMode

VOCAB = 40
SEED = 7


def rules(params: SamplingParams) -> DraftRules:
    return DraftRules(params, SEED, AcceptanceMode.COUPLED, frozenset(), 1)


def text(
    params: SamplingParams, count: int, slope: float = 1.3, spread: float = 1.0, seed: int = 0
) -> Iterator[tuple[CandidateRow, int, int]]:
    """Draft rows, positions and what the target takes, of logits ``slope`` times the draft's and noise."""
    generator = np.random.default_rng(seed)
    for position in range(1, count + 1):
        draft = (2.0 * generator.standard_normal(VOCAB)).astype(np.float32)
        target = (slope * draft + spread * generator.standard_normal(VOCAB)).astype(np.float32)
        token = coupled_pick(distribution(target, params), SEED, position)
        yield candidate_row(LogitsRow(draft), params), position, token


def follow(values: NodeValues, params: SamplingParams, count: int, **changes: float) -> float:
    """Let ``values`` learn from a text; returns the mean log-likelihood of its second half."""
    total = 0.0
    for row, position, token in text(params, count, **changes):  # type: ignore[arg-type]
        chances = dict(values.choices(row, position))
        if position > count // 2:
            total += np.log(chances.get(token, LEAST_CHANCE))
        values.observe(row, position, token)
    return total / (count - count // 2)


SAMPLINGS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.2, top_p=0.9),
    SamplingParams(),
    SamplingParams(temperature=1.4, top_k=12),
]


@pytest.mark.parametrize("params", SAMPLINGS)
@pytest.mark.parametrize(("slope", "spread"), [(1.0, 0.3), (1.3, 1.0), (0.8, 2.0)])
def test_of_those_given_a_chance_of_p_a_share_p_is_taken(
    params: SamplingParams, slope: float, spread: float
) -> None:
    values = CoupledValues(rules(params))
    follow(values, params, 400, slope=slope, spread=spread)
    values.reliability = Reliability()
    follow(values, params, 1200, slope=slope, spread=spread, seed=1)
    bins = values.reliability.bins
    assert sum(each.count for each in bins) > 1200
    for each in bins:
        if each.count < 30:
            continue
        deviation = np.sqrt(max(each.taken * (1.0 - each.taken), 0.05) / each.count)
        assert abs(each.estimated - each.taken) < 0.06 + 3.0 * deviation
    assert values.reliability.error is not None
    assert values.reliability.error < 0.03


@pytest.mark.parametrize("params", SAMPLINGS)
def test_what_is_known_of_a_position_beats_ranks(params: SamplingParams) -> None:
    assert follow(CoupledValues(rules(params)), params, 600) > follow(RankValues(), params, 600) + 0.05


def test_a_wrong_beginning_is_unlearned() -> None:
    params = SamplingParams()
    wrong, right = (
        CoupledValues(rules(params), prior) for prior in (ValuePrior(0.1, 30.0), ValuePrior(1.3, 1.0))
    )
    held = CoupledValues(rules(params), ValuePrior(0.1, 30.0, strength=1e9))
    likelihoods = [follow(values, params, 600) for values in (held, wrong, right)]
    assert likelihoods[0] < likelihoods[1] - 0.3
    assert likelihoods[1] == pytest.approx(likelihoods[2], abs=0.05)
    assert wrong.weights == pytest.approx(right.weights, abs=0.2)


def test_a_draft_that_is_the_target_is_believed_more_and_more() -> None:
    params = SamplingParams()
    values = CoupledValues(rules(params))
    follow(values, params, 300, slope=1.0, spread=0.0)
    row, position, token = next(text(params, 1, slope=1.0, spread=0.0, seed=5))
    choices = values.choices(row, position)
    assert choices[0].token == token
    assert choices[0].chance > 0.7


@pytest.mark.parametrize("make", [lambda: CoupledValues(rules(SamplingParams())), RankValues])
def test_choices_are_the_best_few_in_order(make: type[RankValues]) -> None:
    values = make()
    for row, position, token in text(SamplingParams(), 50):
        choices = values.choices(row, position)
        chances = [choice.chance for choice in choices]
        assert len({choice.token for choice in choices}) == len(choices) <= MAX_CHOICES
        assert chances == sorted(chances, reverse=True)
        assert all(LEAST_CHANCE <= chance <= 1.0 for chance in chances)
        assert sum(chances) <= 1.1, "each is corrected by itself"
        values.observe(row, position, token)


def test_a_token_beyond_the_candidates_makes_all_of_them_less_likely() -> None:
    values = CoupledValues(rules(SamplingParams()))
    row, position, _ = next(text(SamplingParams(), 1))
    before = values.choices(row, position)[0].chance
    weights = values.weights
    for _ in range(20):
        values.observe(row, position, VOCAB + 3)
    assert values.weights == weights
    assert values.choices(row, position)[0].chance < 0.9 * before
