"""Decisions about a chain, against the definitions written out with exact fractions and whole rows."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from acespec.cloud_verifier.acceptance import (
    Decision,
    describe_target,
    draws_at,
    verify_coupled,
    verify_residual,
    walk_coupled,
)
from acespec.cloud_verifier.draft_tree import TIP, Branches
from acespec.speculation import (
    DRAFT_BITS,
    InvalidLogitsError,
    Purpose,
    SamplingParams,
    TokenCounts,
    Weighted,
    coupled_pick,
    distribution,
    propose,
    resample_draws,
    resample_sparse,
    target_bits,
    uniform,
    weighted,
)
from acespec.wire import SparseTarget

VOCAB = 9
FIRST = 40
"""Position of the first chain token in these tests."""
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, top_k=6, top_p=0.9),
    SamplingParams(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3),
]


def random_logits(rows: int, salt: int) -> NDArray[np.float32]:
    generator = np.random.default_rng(salt)
    return (1.5 * generator.standard_normal((rows, VOCAB))).astype(np.float32)


def counts_before(committed: list[int], chain: list[int], i: int) -> TokenCounts:
    """What row i may see: everything committed and the chain's first i tokens."""
    return TokenCounts(committed[:2], [*committed[2:], *chain[:i]])


def coupled_reference(
    logits: NDArray[np.float32],
    chain: list[int],
    params: SamplingParams,
    committed: list[int],
    seed: int,
    ends: set[int],
) -> Decision:
    picks = [
        coupled_pick(distribution(row, params, counts_before(committed, chain, i)), seed, FIRST + i)
        for i, row in enumerate(logits)
    ]
    accepted = next((i for i, token in enumerate(chain) if token != picks[i]), len(chain))
    for i in range(accepted):
        if chain[i] in ends:
            return Decision(i + 1)
    return Decision(accepted, next_token=picks[accepted])


@given(
    salt=st.integers(0, 10**6),
    seed=st.integers(0, 2**64 - 1),
    length=st.integers(0, 6),
    params=st.sampled_from(SAMPLINGS),
    committed=st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=6),
    ends=st.sets(st.integers(0, VOCAB - 1), max_size=2),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_coupled_accepts_the_targets_own_picks(
    salt: int,
    seed: int,
    length: int,
    params: SamplingParams,
    committed: list[int],
    ends: set[int],
    data: st.DataObject,
) -> None:
    logits = random_logits(length + 1, salt)
    chain: list[int] = []
    for i in range(length):
        right = coupled_pick(
            distribution(logits[i], params, counts_before(committed, chain, i)), seed, FIRST + i
        )
        chain.append(right if data.draw(st.integers(0, 3)) else data.draw(st.integers(0, VOCAB - 1)))
    counts = TokenCounts(committed[:2], committed[2:])
    decision = verify_coupled(logits, chain, params, counts, seed, FIRST, ends)
    assert decision == coupled_reference(logits, chain, params, committed, seed, ends)
    before = counts.penalize(np.arange(VOCAB), np.ones(VOCAB), params)
    after = counts_before(committed, [], 0).penalize(np.arange(VOCAB), np.ones(VOCAB), params)
    assert (before == after).all(), "the counts were changed"


@pytest.mark.parametrize("residual", [False, True])
def test_rows_after_the_first_that_decides_are_not_looked_at(residual: bool) -> None:
    """They cost a millisecond each at a large vocabulary; here they would raise."""
    logits = np.full((4, VOCAB), -30.0, np.float32)
    logits[0, 2] = logits[1, 3] = 30.0
    logits[2:] = np.nan

    def verify(chain: list[int], ends: set[int]) -> Decision:
        if residual:
            weights = [1 << DRAFT_BITS] * 3
            return verify_residual(logits, chain, weights, SamplingParams(), None, 5, FIRST, ends)
        return verify_coupled(logits, chain, SamplingParams(), None, 5, FIRST, ends)

    assert verify([2, 7, 7], set()).accepted == 1
    assert verify([2, 3, 7], {3}) == Decision(2)
    with pytest.raises(InvalidLogitsError):
        verify([2, 3, 7], set())


def slow_weights(probs: NDArray[np.float64]) -> list[int]:
    """Largest remainder, ties to the lower id."""
    bits = target_bits(len(probs))
    shares = [Fraction(float(prob)) * 2**bits for prob in probs]
    weights = [share.__floor__() for share in shares]
    by_remainder = sorted(range(len(probs)), key=lambda i: (weights[i] - shares[i], i))
    for i in by_remainder[: 2**bits - sum(weights)]:
        weights[i] += 1
    return weights


@given(
    salt=st.integers(0, 10**6),
    seed=st.integers(0, 2**64 - 1),
    params=st.sampled_from(SAMPLINGS),
    committed=st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=6),
    items=st.lists(st.tuples(st.integers(0, VOCAB - 1), st.integers(1, 2**16)), max_size=6),
    ends=st.sets(st.integers(0, VOCAB - 1), max_size=2),
)
@settings(max_examples=200, deadline=None)
def test_residual_accepts_by_the_ratio_of_rounded_probabilities(
    salt: int,
    seed: int,
    params: SamplingParams,
    committed: list[int],
    items: list[tuple[int, int]],
    ends: set[int],
) -> None:
    chain, draft_weights = [item[0] for item in items], [item[1] // 4 + 1 for item in items]
    logits = random_logits(len(chain) + 1, salt)
    counts = TokenCounts(committed[:2], committed[2:])
    decision = verify_residual(logits, chain, draft_weights, params, counts, seed, FIRST, ends)
    for i in range(len(chain) + 1):
        exact = distribution(logits[i], params, counts_before(committed, chain, i))
        weights = slow_weights(exact.probs)
        bits = target_bits(len(weights))
        if i == len(chain):
            rounded = Weighted(exact.ids, np.array(weights), bits)
            drawn = int(propose(rounded, seed, FIRST + i, 0, 1)[0])
            assert decision == Decision(i, next_token=drawn)
            return
        target = Fraction(dict(zip(exact.ids.tolist(), weights, strict=True)).get(chain[i], 0), 2**bits)
        u = Fraction(float(np.ravel(uniform(seed, Purpose.ACCEPT, FIRST + i))[0]))
        if not u * Fraction(draft_weights[i], 2**16) < target:
            assert decision.accepted == i
            assert decision.next_token is None
            assert decision.rejected_by is not None
            kept = [weight for weight in weights if weight]
            assert decision.rejected_by.weights.tolist() == kept
            assert decision.rejected_by.bits == bits
            return
        if chain[i] in ends:
            assert decision == Decision(i + 1)
            return


@pytest.mark.parametrize("sparse", [False, True])
def test_residual_commits_pairs_of_tokens_with_the_targets_probabilities(sparse: bool) -> None:
    """Draft, verify, resample, and the token after: 8,000 seeds against the product of the two tables."""
    num_seeds = 8_000
    params = SamplingParams()
    target_rows = [np.array(row, np.float32) for row in ([1.0, 0.0, -1.0, 0.5], [0.0, 2.0, 0.3, -0.5])]
    draft = weighted(distribution(np.array([-1.0, 1.0, 0.0, 0.5], np.float32), params), DRAFT_BITS)
    bits = target_bits(4)
    pairs: Counter[tuple[int, int]] = Counter()
    for seed in range(num_seeds):
        chain = draft.pick(np.ravel(uniform(seed, Purpose.DRAFT, FIRST))).tolist()
        logits = np.stack(target_rows)
        decision = verify_residual(
            logits, chain, [draft.weight_of(chain[0])], params, None, seed, FIRST, frozenset()
        )
        if decision.rejected_by is not None:
            token = resample(decision.rejected_by, draft, seed, sparse)
            second = verify_residual(logits[1:], [], [], params, None, seed, FIRST + 1, frozenset())
            assert second.next_token is not None
            pairs[token, second.next_token] += 1
        else:
            assert decision.next_token is not None
            pairs[chain[0], decision.next_token] += 1
    first, second_row = (slow_weights(distribution(row, params).probs) for row in target_rows)
    expected = np.outer(first, second_row) / 4.0**bits * num_seeds
    observed = np.array([[pairs[i, j] for j in range(4)] for i in range(4)])
    assert chisquare(observed.ravel(), expected.ravel()).pvalue > 1e-4


def resample(target: Weighted, draft: Weighted, seed: int, sparse: bool) -> int:
    if sparse:
        return resample_sparse(target, draft, seed, FIRST)
    ids = propose(target, seed, FIRST, 0, 200)
    token = resample_draws(ids, target.weights_of(ids), target.bits, draft, seed, FIRST, 0)
    assert token is not None
    return token


@given(support=st.integers(1, 200), seed=st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_what_the_edge_is_sent_to_draw_from(support: int, seed: int) -> None:
    """Each answer takes up where the one before ended, and the whole support comes once it is smaller."""
    logits = np.random.default_rng(support).standard_normal(support).astype(np.float32)
    target = weighted(distribution(logits, SamplingParams()), target_bits(support))
    first_index = 0
    while True:
        answer = describe_target(target, seed, FIRST, first_index, token_bits=16)
        if isinstance(answer, SparseTarget):
            assert (answer.ids, answer.weights) == (tuple(target.ids), tuple(target.weights))
            assert support <= draws_at(first_index) + 1
            break
        assert len(answer.ids) == draws_at(first_index) < support
        assert answer.first_index == first_index
        assert (
            list(answer.ids) == propose(target, seed, FIRST, 0, 500)[first_index:][: len(answer.ids)].tolist()
        )
        assert list(answer.weights) == [target.weight_of(token) for token in answer.ids]
        first_index += len(answer.ids)
    assert [draws_at(index) for index in (0, 8, 24, 56)] == [8, 16, 32, 64]


@given(support=st.integers(1, 60), seeds=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)))
@settings(deadline=None)
def test_the_form_does_not_depend_on_what_is_drawn(support: int, seeds: tuple[int, int]) -> None:
    logits = np.linspace(0.0, 3.0, support, dtype=np.float32)
    target = weighted(distribution(logits, SamplingParams()), target_bits(support))
    forms = {
        type(describe_target(target, seed, FIRST, first, token_bits=16)) for seed in seeds for first in (8,)
    }
    assert len(forms) == 1


# --- a tree in the place of the chain (the race) ------------------------------------------------------------


@st.composite
def branches_and_rows(draw: st.DrawFn) -> tuple[Branches, NDArray[np.float32]]:
    """Nodes, siblings all different, and a row for what follows the text and each of them."""
    tokens: list[int] = []
    parents: list[int] = []
    for token, back in draw(st.lists(st.tuples(st.integers(0, VOCAB - 1), st.integers(0, 5)), max_size=25)):
        parent = max(TIP, len(tokens) - 1 - back)
        if (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = (1.5 * generator.standard_normal((len(tokens) + 1, VOCAB))).astype(np.float32)
    return Branches(tuple(tokens), tuple(parents)), rows


@given(
    branches_and_rows(),
    st.sampled_from(SAMPLINGS),
    st.integers(0, 2**64 - 1),
    st.sets(st.integers(0, VOCAB - 1), max_size=2),
)
@settings(max_examples=300)
def test_a_walk_follows_the_target_s_own_picks(
    drawn: tuple[Branches, NDArray[np.float32]], params: SamplingParams, seed: int, ends: set[int]
) -> None:
    branches, rows = drawn
    prompt, generated = (1, 2), (3, 3, 4)
    counts = TokenCounts(prompt, generated)
    walk = walk_coupled(rows, branches, params, counts, seed, FIRST, ends)
    at, seen = TIP, list(generated)
    for k, token in enumerate(walk.tokens):
        pick = coupled_pick(distribution(rows[at + 1], params, TokenCounts(prompt, seen)), seed, FIRST + k)
        assert token == pick
        seen.append(token)
        below = [
            i
            for i, place in enumerate(zip(branches.parents, branches.tokens, strict=True))
            if place == (at, token)
        ]
        if k < len(walk.path):
            assert below == [walk.path[k]]
            at = walk.path[k]
            assert token not in ends or k + 1 == len(walk.tokens)
        else:
            assert below == []
            assert k + 1 == len(walk.tokens)
    assert len(walk.tokens) > len(walk.path) or walk.tokens[-1] in ends
    assert walk.num_nodes == len(branches.tokens)
    assert walk_coupled(rows, branches, params, counts, seed, FIRST, ends) == walk, "counts are as they were"


@given(
    st.lists(st.integers(0, VOCAB - 1), max_size=6),
    st.sampled_from(SAMPLINGS),
    st.integers(0, 999),
    st.data(),
)
def test_a_chain_is_a_tree_of_one_branch(
    chain: list[int], params: SamplingParams, seed: int, data: st.DataObject
) -> None:
    generator = np.random.default_rng(seed)
    rows = (1.5 * generator.standard_normal((len(chain) + 1, VOCAB))).astype(np.float32)
    counts, ends = TokenCounts((1,)), {data.draw(st.integers(0, VOCAB - 1))}
    decision = verify_coupled(rows, chain, params, counts, seed, FIRST, ends)
    walk = walk_coupled(
        rows, Branches(tuple(chain), tuple(range(-1, len(chain) - 1))), params, counts, seed, FIRST, ends
    )
    assert walk.path == tuple(range(decision.accepted))
    bonus = () if decision.next_token is None else (decision.next_token,)
    assert walk.tokens == (*chain[: decision.accepted], *bonus)
