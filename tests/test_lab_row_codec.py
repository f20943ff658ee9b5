"""Stored rows decide exactly as whole ones do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from acespec.bench.lab.row_codec import (
    ANY_SAMPLING,
    cut_draft_row,
    decode_draft_row,
    decode_target_row,
    encode_draft_row,
    encode_target_row,
    sampling_key,
)
from acespec.speculation import (
    LogitsRow,
    SamplingParams,
    candidate_depth,
    candidate_row,
    distribution,
    rank_candidates,
)

VOCAB = 3000
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.05, 0.2, 0.33, 0.4, 0.41, 1.0, 1.7, 50.0]),
    top_k=st.sampled_from([0, 1, 20]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 1e-9]),
    min_p=st.sampled_from([0.0, 0.05]),
)


@st.composite
def rows(draw: st.DrawFn, size: int = VOCAB) -> NDArray[np.float32]:
    """Logits as models give them: some sharp, some flat, some rounded so that many tie."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = draw(st.sampled_from([0.0, 0.3, 2.0, 6.0])) * generator.standard_normal(size)
    logits[generator.integers(size)] += draw(st.sampled_from([0.0, 12.0]))
    decimals = draw(st.sampled_from([0, 1, 6]))
    return np.round(logits, decimals).astype(np.float32)


@given(logits=rows(), params=samplings)
def test_a_target_row_gives_the_same_distribution_in_every_bit(
    logits: NDArray[np.float32], params: SamplingParams
) -> None:
    data, key = encode_target_row(logits, params)
    stored = decode_target_row(data)
    assert stored.dtype == np.float32
    assert key in (ANY_SAMPLING, sampling_key(params))
    expected, actual = distribution(logits, params), distribution(stored, params)
    assert np.array_equal(actual.ids, expected.ids)
    assert np.array_equal(actual.probs, expected.probs)
    if key == ANY_SAMPLING:
        assert np.array_equal(stored, logits)


def test_a_sharp_sampling_keeps_little_and_a_flat_one_the_whole_row() -> None:
    logits = (3.0 * np.random.default_rng(5).standard_normal(49_152)).astype(np.float32)
    sharp, key = encode_target_row(logits, SamplingParams(temperature=0.2, top_p=0.9))
    assert key != ANY_SAMPLING
    assert len(sharp) < 500
    whole, key = encode_target_row(logits, SamplingParams(temperature=1.0))
    assert key == ANY_SAMPLING
    assert len(whole) < logits.nbytes
    assert np.array_equal(decode_target_row(whole), logits)


@pytest.mark.parametrize("temperature", [0.1, 0.2, 1.0, 1.7])
def test_rows_are_reduced_at_every_temperature_where_few_entries_are_left(temperature: float) -> None:
    generator = np.random.default_rng(6)
    params = SamplingParams(temperature=temperature, top_p=0.7)
    keys = []
    for _ in range(20):
        logits = generator.standard_normal(VOCAB).astype(np.float32)
        logits[generator.integers(VOCAB, size=9)] += temperature * generator.uniform(8.0, 10.0, 9).astype(
            np.float32
        )
        keys.append(encode_target_row(logits, params)[1])
    assert keys.count(ANY_SAMPLING) <= 1


def test_penalties_keep_the_whole_row() -> None:
    logits = np.arange(100, dtype=np.float32)
    assert encode_target_row(logits, SamplingParams(top_p=0.5))[1] != ANY_SAMPLING
    data, key = encode_target_row(logits, SamplingParams(top_p=0.5, repetition_penalty=1.2))
    assert key == ANY_SAMPLING
    assert np.array_equal(decode_target_row(data), logits)


def test_samplings_have_keys_of_their_own() -> None:
    keys = {sampling_key(SamplingParams(temperature=t, top_p=p)) for t in (0.2, 1.0) for p in (0.9, 1.0)}
    assert len(keys) == 4
    assert sampling_key(SamplingParams(top_k=3)) == sampling_key(SamplingParams(top_k=3))


@given(
    logits=rows(),
    params=samplings,
    deeper=st.sampled_from([1.0, 2.0, math.inf]),
    total=st.none() | st.floats(-5.0, 5.0, width=32),
    chosen=st.booleans(),
)
def test_a_draft_row_gives_the_same_candidates_and_ranks(
    logits: NDArray[np.float32], params: SamplingParams, deeper: float, total: float | None, chosen: bool
) -> None:
    ids = np.arange(7, 7 + VOCAB) if chosen else None
    row = LogitsRow(logits, ids, total)
    cut = cut_draft_row(row, candidate_depth(params) * deeper)
    stored = decode_draft_row(encode_draft_row(cut))
    assert stored.depth == cut.depth
    expected, actual = candidate_row(row, params), candidate_row(stored.logits, params)
    for name in ("ids", "scores", "log_total"):
        assert np.array_equal(getattr(actual, name), getattr(expected, name)), name
    assert np.array_equal(actual.distribution.ids, expected.distribution.ids)
    assert np.array_equal(actual.distribution.probs, expected.distribution.probs)
    ranks = [rank_candidates(each, params, 3, 11, True, 70, None) for each in (expected, actual)]
    assert np.array_equal(*ranks)


@given(logits=rows())
def test_a_shallow_row_is_no_more_than_it_needs(logits: NDArray[np.float32]) -> None:
    shallow = cut_draft_row(LogitsRow(logits), 4.0)
    deep = cut_draft_row(LogitsRow(logits), math.inf)
    assert len(deep.logits.values) == 512
    assume(len(shallow.logits.values) < 512)
    assert shallow.logits.values.min() >= logits.max() - 4.0
    assert len(encode_draft_row(shallow)) < len(encode_draft_row(deep))


@pytest.mark.parametrize("largest_id", [65_535, 65_536])
def test_ids_of_any_vocabulary_survive(largest_id: int) -> None:
    row = LogitsRow(np.array([1.0, 2.0], np.float32), np.array([3, largest_id]), None)
    assert decode_draft_row(encode_draft_row(cut_draft_row(row, math.inf))).logits.ids.tolist() == [
        3,
        largest_id,
    ]
