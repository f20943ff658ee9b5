"""Ranking of branch candidates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.speculation import (
    CandidateRow,
    DraftLogits,
    LogitsRow,
    Purpose,
    SamplingParams,
    TokenCounts,
    candidate_row,
    coupled_pick,
    distribution,
    rank_candidates,
    uniform,
)

VOCAB = 3000
sampled = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0]),
    top_k=st.sampled_from([0, 1, 10]),
    top_p=st.sampled_from([1.0, 0.9, 0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
)


def row_of(seed: int, params: SamplingParams) -> CandidateRow:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=VOCAB) * 3).astype(np.float32)
    return candidate_row(LogitsRow(logits), params, TokenCounts(rng.integers(VOCAB, size=20).tolist()))


@given(sampled, st.integers(0, 2**32))
def test_the_row_draws_from_the_truncated_distribution(params: SamplingParams, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=VOCAB) * 3).astype(np.float32)
    counts = TokenCounts(rng.integers(VOCAB, size=20).tolist())
    found = candidate_row(LogitsRow(logits), params, counts).distribution
    expected = distribution(logits, params, counts, 512)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.probs, expected.probs)


@given(sampled, st.integers(0, 2**32), st.booleans())
def test_ranking_equals_its_definition(params: SamplingParams, seed: int, coupled: bool) -> None:
    row = row_of(seed, params)
    support = set(row.distribution.ids.tolist())

    def key(place: int) -> tuple[object, ...]:
        token, score = int(row.ids[place]), float(row.scores[place])
        if not coupled or params.temperature == 0.0:
            return -score, token
        arrival = -np.log(uniform(seed, Purpose.COUPLE, 40, token)) / np.exp(score)
        return token not in support, arrival, token

    expected = row.ids[sorted(range(len(row.ids)), key=key)]
    ranked = rank_candidates(row, params, seed, 40, coupled, 30)
    assert ranked.tolist() == expected[:30].tolist()
    without = rank_candidates(row, params, seed, 40, coupled, 30, exclude=int(expected[3]))
    assert without.tolist() == np.delete(expected, 3)[:30].tolist()
    outside = int(np.setdiff1d(np.arange(VOCAB), row.ids)[0])
    assert rank_candidates(row, params, seed, 40, coupled, 30, outside).tolist() == ranked.tolist()


@given(sampled, st.integers(0, 2**32))
def test_the_first_candidate_of_the_race_is_the_drafts_own_pick(params: SamplingParams, seed: int) -> None:
    row = row_of(seed, params)
    assert rank_candidates(row, params, seed, 7, True, 1)[0] == coupled_pick(row.distribution, seed, 7)


def test_a_point_mass_still_has_alternatives() -> None:
    logits = np.array([1.0, 9.0, 3.0, 2.0, 3.0], dtype=np.float32)
    greedy = SamplingParams(temperature=0.0)
    row = candidate_row(LogitsRow(logits), greedy)
    assert row.distribution.ids.tolist() == [1]
    for coupled in (False, True):
        assert rank_candidates(row, greedy, 0, 0, coupled, 3, exclude=1).tolist() == [2, 4, 3]
        assert rank_candidates(row, greedy, 0, 0, coupled, 99).tolist() == [1, 2, 4, 3, 0]


def test_what_the_sampling_keeps_ranks_before_the_rest() -> None:
    logits = np.array([5.0, 4.9, 4.8, 4.7], dtype=np.float32)
    params = SamplingParams(top_k=2)
    for seed in range(50):
        ranked = rank_candidates(candidate_row(LogitsRow(logits), params), params, seed, 3, True, 4).tolist()
        assert (set(ranked[:2]), set(ranked[2:])) == ({0, 1}, {2, 3})


@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 7, VOCAB]),
    st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    st.sampled_from([1.0, 1.4]),
)
def test_what_the_draft_gave_a_token_is_exact_where_the_engine_summed_the_row(
    seed: int, top_k: int, temperature: float, penalty: float
) -> None:
    logits = (np.random.default_rng(seed).normal(size=VOCAB) * 3).astype(np.float32)
    best = np.argsort(-logits)[:top_k]
    total = np.log(np.exp(logits.astype(np.float64)).sum())
    row = DraftLogits(logits[best][None], best[None], np.array([total], np.float32))[0]
    params = SamplingParams(temperature=temperature, repetition_penalty=penalty)
    found = candidate_row(row, params, TokenCounts([int(best[0])]) if penalty != 1.0 else None)
    place = len(found.ids) // 2
    token = int(found.ids[place])
    if temperature in (0.0, 1.0) and penalty == 1.0:
        probs = np.exp(logits - total)
        assert found.prob_of(token) == pytest.approx(probs[token], rel=1e-4)
    else:
        share = np.exp(found.scores) / np.exp(found.scores).sum()
        assert found.prob_of(token) == pytest.approx(share[place])


def test_impossible_tokens_rank_last_without_a_warning() -> None:
    logits = np.array([-np.inf, 5.0, -5000.0, 4.0], dtype=np.float32)
    params = SamplingParams()
    ranked = rank_candidates(candidate_row(LogitsRow(logits), params), params, 1, 3, True, 4)
    assert set(ranked[:2].tolist()) == {1, 3}
