"""Sampling parameters: against Hugging Face's own processors, and the fast paths against full sorts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from acespec.speculation import InvalidLogitsError, SamplingParams, TokenCounts, distribution
from acespec.speculation.distribution import nucleus
from acespec.speculation.selection import largest


def hugging_face(
    logits: NDArray[np.float32], params: SamplingParams, tokens: list[int]
) -> NDArray[np.float64]:
    """What ``generate`` samples from, in float64: probabilities [V]."""
    steps = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        steps.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    steps.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        steps.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        steps.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        steps.append(MinPLogitsWarper(params.min_p))
    scores = steps(torch.tensor([tokens]), torch.tensor(logits[None], dtype=torch.float64))
    return torch.softmax(scores, dim=-1)[0].numpy()


sampled = st.builds(
    SamplingParams,
    temperature=st.floats(0.05, 3.0),
    top_k=st.sampled_from([0, 1, 2, 40, 5000]),
    top_p=st.sampled_from([1.0, 0.999]) | st.floats(0.05, 0.99),
    min_p=st.sampled_from([0.0, 1.0]) | st.floats(0.001, 0.5),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
)


@settings(max_examples=150)
@given(sampled, st.integers(0, 2**32), st.sampled_from([5, 300, 3000]), st.floats(0.1, 6.0))
def test_equals_hugging_face(params: SamplingParams, seed: int, vocab_size: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=vocab_size) * spread).astype(np.float32)
    prompt, generated = rng.integers(vocab_size, size=(2, 6)).tolist()
    expected = hugging_face(logits, params, prompt + generated)
    found = distribution(logits, params, TokenCounts(prompt, generated))
    dense = np.zeros(vocab_size)
    dense[found.ids] = found.probs
    assert (np.diff(found.ids) > 0).all()
    assert (found.probs > 0.0).all()
    np.testing.assert_allclose(dense, expected, rtol=1e-9, atol=1e-300)


@given(st.integers(0, 2**32), st.floats(-2.0, 2.0), st.floats(-2.0, 2.0))
def test_presence_counts_a_token_once_and_frequency_every_time(
    seed: int, presence: float, frequency: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=20).astype(np.float32)
    generated = rng.integers(20, size=12).tolist()
    params = SamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    raised = [
        logit - presence * (token in generated) - frequency * generated.count(token)
        for token, logit in enumerate(logits.astype(np.float64))
    ]
    weights = np.exp(np.array(raised))
    found = distribution(logits, params, TokenCounts([1, 2, 3], generated))
    np.testing.assert_allclose(found.probs, weights / weights.sum(), rtol=1e-12)


def test_penalties_follow_what_is_pushed_but_not_to_a_copy() -> None:
    logits = np.linspace(-1.0, 1.0, 10).astype(np.float32)
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2)
    counts = TokenCounts([2, 9], [4])
    before = distribution(logits, params, counts)
    other = counts.copy()
    for token in (4, 7, 7):
        counts.push(token)
    np.testing.assert_array_equal(
        distribution(logits, params, counts).probs,
        distribution(logits, params, TokenCounts([9, 2], [7, 4, 7, 4])).probs,
    )
    np.testing.assert_array_equal(distribution(logits, params, other).probs, before.probs)
    other.push(7)
    assert (distribution(logits, params, other).probs != before.probs).any()


@pytest.mark.parametrize("max_candidates", [None, 3])
def test_greedy_is_the_lowest_of_the_largest_after_penalties(max_candidates: int | None) -> None:
    logits = np.array([0.0, 2.0, 3.0, 3.0, 1.0], dtype=np.float32)
    greedy = SamplingParams(temperature=0.0, top_k=3, top_p=0.5)
    found = distribution(logits, greedy, None, max_candidates)
    assert (found.ids.tolist(), found.probs.tolist()) == ([2], [1.0])
    penalized = SamplingParams(temperature=0.0, presence_penalty=1.5)
    assert distribution(logits, penalized, TokenCounts([], [2, 3]), max_candidates).ids.tolist() == [1]


def test_tokens_that_cannot_be_drawn_leave_the_support() -> None:
    logits = np.array([0.0, -np.inf, -1.0, -2000.0], dtype=np.float32)
    assert distribution(logits, SamplingParams()).ids.tolist() == [0, 2]
    assert distribution(logits, SamplingParams(temperature=1e-6)).ids.tolist() == [0]
    assert distribution(logits, SamplingParams(top_p=0.9999)).ids.tolist() == [0, 2]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=5e-324),
        SamplingParams(temperature=100.0, top_p=1e-300),
        SamplingParams(repetition_penalty=0.01, presence_penalty=-100.0, frequency_penalty=100.0),
        SamplingParams(repetition_penalty=100.0, presence_penalty=100.0, frequency_penalty=-100.0),
    ],
)
def test_the_outermost_parameters_give_a_distribution_and_no_warning(params: SamplingParams) -> None:
    logits = np.array([0.0, -3e38, 3e38, 5.0, -1.0], dtype=np.float32)
    found = distribution(logits, params, TokenCounts([0, 1, 2], [2, 3, 3, 3]))
    assert (found.probs > 0.0).all()
    assert math.isclose(found.probs.sum(), 1.0)


@pytest.mark.parametrize("value", [0.0, 5e-324, 101.0, math.nan])
def test_a_repetition_penalty_that_logits_may_not_survive_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="repetition_penalty must be between"):
        SamplingParams(repetition_penalty=value)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("max_candidates", [None, 2])
def test_logits_without_meaning_are_refused(bad: float, max_candidates: int | None) -> None:
    logits = np.array([0.0, bad, 1.0], dtype=np.float32)
    with pytest.raises(InvalidLogitsError, match="precision"):
        distribution(logits, SamplingParams(), None, max_candidates)
    with pytest.raises(InvalidLogitsError, match="precision"):
        distribution(np.full(3, -np.inf, dtype=np.float32), SamplingParams(), None, max_candidates)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 7])
def test_a_greedy_pick_needs_logits_with_a_meaning_too(bad: float, place: int) -> None:
    logits = np.arange(8, dtype=np.float32)
    logits[place] = bad
    with pytest.raises(InvalidLogitsError):
        distribution(logits, SamplingParams(temperature=0.0))
    with pytest.raises(InvalidLogitsError):
        distribution(np.full(8, -np.inf, np.float32), SamplingParams(temperature=0.0))


def test_the_logits_are_left_as_they_were() -> None:
    logits = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    before = logits.copy()
    params = SamplingParams(top_p=0.9, temperature=0.5, repetition_penalty=1.2)
    distribution(logits, params, TokenCounts([1, 2], [3]))
    distribution(logits, params, TokenCounts([1, 2], [3]), 64)
    np.testing.assert_array_equal(logits, before)


@given(sampled, st.integers(0, 2**32))
def test_truncation_comes_before_everything_else(params: SamplingParams, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=4000).astype(np.float32)
    counts = TokenCounts(rng.integers(4000, size=50).tolist())
    kept = np.sort(np.argsort(-logits, kind="stable")[:64])
    if 0.0 < params.temperature <= 0.4 and not params.has_penalties:  # what has e^-20 of the best's weight
        kept = kept[logits[kept] >= logits.max() - 20.0 * params.temperature]
    truncated = np.full_like(logits, -np.inf)
    truncated[kept] = logits[kept]
    expected = distribution(truncated, params, counts)
    found = distribution(logits, params, counts, 64)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.probs, expected.probs, rtol=1e-12)


rows = st.builds(
    lambda seed, size, levels: np.random.default_rng(seed).integers(levels, size=size).astype(np.float32),
    st.integers(0, 2**32),
    st.integers(1, 5000),
    st.sampled_from([1, 3, 50, 10**6]),
)


@settings(max_examples=300)
@given(rows, st.integers(1, 200))
def test_largest_equals_a_stable_sort(values: NDArray[np.float32], count: int) -> None:
    expected = np.sort(np.argsort(-values, kind="stable")[:count])
    np.testing.assert_array_equal(largest(values, count), expected)


def test_largest_where_the_sample_misleads() -> None:
    # All of the largest stand where the sample looks, then none of them does.
    values = np.zeros(16_000, dtype=np.float32)
    values[::16] = np.arange(1000)
    np.testing.assert_array_equal(largest(values, 100), np.arange(900, 1000) * 16)
    np.testing.assert_array_equal(largest(-values, 100), np.sort(np.argsort(values, kind="stable")[:100]))


@given(rows, st.floats(0.001, 1.0))
def test_the_nucleus_is_the_smallest_head_with_its_share(values: NDArray[np.float32], top_p: float) -> None:
    weights = (values + 1.0).astype(np.float64)  # integers: every sum below is exact
    order = np.argsort(-weights, kind="stable")
    count, mass = 0, 0.0
    while mass < top_p * weights.sum():
        mass += weights[order[count]]
        count += 1
    np.testing.assert_array_equal(nucleus(weights, top_p), np.sort(order[:count]))


def test_a_nucleus_wider_than_the_first_guess() -> None:
    logits = (np.random.default_rng(1).normal(size=20_000) * 0.3).astype(np.float32)
    params = SamplingParams(top_p=0.97)
    expected = hugging_face(logits, params, [0])
    found = distribution(logits, params)
    assert len(found.ids) > 10_000
    np.testing.assert_array_equal(found.ids, np.flatnonzero(expected))
