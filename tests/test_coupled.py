"""The exponential race: distributed as the target, whatever the order or the company of the support."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from acespec.speculation import (
    Distribution,
    Purpose,
    SamplingParams,
    coupled_pick,
    distribution,
    race_scores,
    uniform,
)
from joint_chi_square import expected_joint, joint_p_value

VOCAB = 8
NUM_SEQUENCES = 200_000
PROMPT = (1, 2)


def random_distribution(seed: int) -> Distribution:
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.choice(1000, size=int(rng.integers(1, 30)), replace=False))
    return Distribution(ids, rng.dirichlet(np.ones(len(ids))))


@given(st.integers(0, 2**32), st.integers(0, 10**6))
def test_the_pick_equals_the_gumbel_maximum(seed: int, position: int) -> None:
    found = random_distribution(seed)
    perturbed = [
        math.log(p) - math.log(-math.log(uniform(seed, Purpose.COUPLE, position, token)))
        for token, p in zip(found.ids.tolist(), found.probs.tolist(), strict=True)
    ]
    assert coupled_pick(found, seed, position) == found.ids[int(np.argmax(perturbed))]


@given(st.integers(0, 2**32), st.permutations(range(30)))
def test_the_pick_does_not_depend_on_the_order_of_the_support(seed: int, order: list[int]) -> None:
    found = random_distribution(seed)
    places = [place for place in order if place < len(found.ids)]
    shuffled = Distribution(found.ids[places], found.probs[places])
    assert coupled_pick(shuffled, seed, 9) == coupled_pick(found, seed, 9)


@given(st.integers(0, 2**32))
def test_a_token_keeps_its_noise_in_any_company(seed: int) -> None:
    found = random_distribution(seed)
    alone = [race_scores(found.ids[[i]], found.probs[[i]], seed, 4)[0] for i in range(len(found.ids))]
    assert race_scores(found.ids, found.probs, seed, 4).tolist() == alone


@pytest.mark.filterwarnings("error")
def test_a_token_as_good_as_impossible_never_arrives() -> None:
    scores = race_scores(np.array([0, 1]), np.array([1.0, 5e-324]), seed=5, position=3)
    assert np.isfinite(scores).tolist() == [True, False]


def generate(logits: NDArray[np.float32], params: SamplingParams, positions: list[int]) -> NDArray[np.int64]:
    """``coupled_pick`` for one seed a sequence, on the race noise of ``positions``: tokens [sequences, 3]."""
    rows = [distribution(row, params) for row in logits.reshape(-1, VOCAB)]
    rates = dense_probs(logits, params).reshape(-1, VOCAB)
    seeds = np.arange(NUM_SEQUENCES)
    tokens = np.tile(PROMPT, (NUM_SEQUENCES, 1))
    for position in positions:
        contexts = tokens[:, -2] * VOCAB + tokens[:, -1]
        noise = -np.log(uniform(seeds[:, None], Purpose.COUPLE, position, np.arange(VOCAB)))
        with np.errstate(divide="ignore"):
            winners = (noise / rates[contexts]).argmin(axis=1)
        for at in range(0, NUM_SEQUENCES, 1000):
            assert winners[at] == coupled_pick(rows[contexts[at]], int(seeds[at]), position)
        tokens = np.column_stack([tokens, winners])
    return tokens[:, len(PROMPT) :]


def dense_probs(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    probs = np.zeros(logits.shape)
    for at in np.ndindex(logits.shape[:-1]):
        found = distribution(logits[at], params)
        probs[at][found.ids] = found.probs
    return probs


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6, top_p=0.9),
        SamplingParams(temperature=1.5, top_k=5, min_p=0.05),
    ],
)
def test_three_picks_are_jointly_distributed_as_the_target(params: SamplingParams) -> None:
    logits = np.random.default_rng(5).normal(size=(VOCAB,) * 3).astype(np.float32)
    joint = expected_joint(dense_probs(logits, params), PROMPT, (), 0)
    assert joint_p_value(generate(logits, params, [2, 3, 4]), joint) > 1e-4
    # Noise that is not keyed by position leaves each pick right by itself and ruins them together.
    assert joint_p_value(generate(logits, params, [2, 3, 3]), joint) < 1e-6
