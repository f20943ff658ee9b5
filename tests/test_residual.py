"""Acceptance and resampling on integers: against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acespec.speculation import (
    DRAFT_BITS,
    Purpose,
    Weighted,
    accepts,
    propose,
    resample_draws,
    resample_sparse,
    residual_weights,
    thin_passes,
    uniform,
)

bits = st.integers(16, 32)
draws = st.integers(0, 2**20 - 1).map(lambda tick: (tick + 0.5) * 2.0**-20)
"""Coarse enough for every product below to be exact."""


@st.composite
def weight_pairs(draw: st.DrawFn) -> tuple[int, int, int]:
    """A draft weight, a target weight and the target's bits; often the very same probability."""
    target_bits = draw(bits)
    draft = draw(st.integers(1, 2**DRAFT_BITS))
    same = draft << (target_bits - DRAFT_BITS)
    target = draw(st.integers(0, 2**target_bits) | st.sampled_from([same, max(same - 1, 0), same // 2]))
    return draft, target, target_bits


@given(draws, weight_pairs())
def test_accepts_with_the_ratio_of_the_probabilities(u: float, pair: tuple[int, int, int]) -> None:
    draft, target, target_bits = pair
    expected = Fraction(u) * Fraction(draft, 2**16) < Fraction(target, 2**target_bits)
    assert accepts(np.array(u), draft, target, target_bits) == expected
    assert (
        accepts(np.array([u]), np.array([draft]), np.array([target]), np.array([target_bits]))[0] == expected
    )


@given(st.integers(0, 16), bits, st.data())
def test_acceptance_ends_exactly_at_the_ratio(shift: int, target_bits: int, data: st.DataObject) -> None:
    # A draft weight that is a power of two makes the ratio a double.
    target = data.draw(st.integers(1, 2 ** (shift + target_bits - 16)))
    ratio = target / 2 ** (shift + target_bits - 16)
    assert not accepts(np.array(ratio), 2**shift, target, target_bits)
    assert accepts(np.array(ratio - 2.0**-53), 2**shift, target, target_bits)


@given(draws, weight_pairs())
def test_a_proposal_passes_with_what_the_draft_leaves(u: float, pair: tuple[int, int, int]) -> None:
    draft, target, target_bits = pair
    target = max(target, 1)  # a proposal was drawn from the target
    ratio = Fraction(draft, 2**16) / Fraction(target, 2**target_bits)
    assert thin_passes(np.array(u), target, target_bits, draft) == (Fraction(u) < 1 - ratio)


def test_the_largest_draw_never_rejects_what_the_target_likes_as_well() -> None:
    nearly_one = np.array(1.0 - 2.0**-53)
    draft = np.arange(1, 2**16 + 1)
    assert accepts(nearly_one, draft, draft << 14, 30).all()
    assert not thin_passes(np.array(2.0**-54), draft << 14, 30, draft).any()


def random_weighted(rng: np.random.Generator, bits: int) -> Weighted:
    size = int(rng.integers(1, 12))
    ids = np.sort(rng.choice(20, size=size, replace=False))
    cuts = np.sort(rng.choice(np.arange(1, 2**bits), size=size - 1, replace=False))
    return Weighted(ids, np.diff(np.concatenate([[0], cuts, [2**bits]])), bits)


@given(st.integers(0, 2**32))
def test_the_residual_is_what_the_target_has_above_the_draft(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, draft = random_weighted(rng, 20), random_weighted(rng, DRAFT_BITS)
    found = residual_weights(target.weights, target.bits, draft.weights_of(target.ids))
    for token, weight in zip(target.ids.tolist(), found.tolist(), strict=True):
        above = Fraction(target.weight_of(token), 2**20) - Fraction(draft.weight_of(token), 2**16)
        assert Fraction(weight, 2**36) == max(Fraction(0), above)
    tiled = np.tile(target.weights, (3, 1))
    batched = residual_weights(tiled, np.full((3, 1), 20), draft.weights_of(target.ids))
    assert (batched == found).all()


@given(st.integers(0, 2**32))
def test_both_forms_draw_from_the_residual_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, draft = random_weighted(rng, 20), random_weighted(rng, DRAFT_BITS)
    residual = residual_weights(target.weights, target.bits, draft.weights_of(target.ids))
    if not residual.any():
        return
    allowed = target.ids[residual > 0].tolist()
    assert resample_sparse(target, draft, seed, 5) in allowed
    ids = propose(target, seed, 5, 0, 8)
    found = resample_draws(ids, target.weights_of(ids), target.bits, draft, seed, 5, 0)
    assert found is None or found in allowed


@given(st.integers(0, 2**32), st.integers(0, 100))
def test_more_draws_go_on_where_the_first_stopped(seed: int, position: int) -> None:
    target = random_weighted(np.random.default_rng(seed), 18)
    whole = propose(target, seed, position, 0, 24)
    assert whole.tolist() == [
        *propose(target, seed, position, 0, 8).tolist(),
        *propose(target, seed, position, 8, 16).tolist(),
    ]
    assert whole.tolist() == [
        int(target.pick(uniform(seed, Purpose.PROPOSAL, position, index))) for index in range(24)
    ]


@given(st.integers(0, 2**32))
def test_the_first_proposal_to_pass_is_taken_wherever_they_begin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = random_weighted(rng, 18)
    # Three quarters of the target, and the rest on its last token: most proposals fail.
    close = np.append(target.weights[:-1] * 3 >> 4, 0)
    draft = Weighted(target.ids, close + np.eye(len(close), dtype=np.int64)[-1] * (2**16 - close.sum()), 16)
    ids = propose(target, seed, 3, 0, 24)
    passes = [
        bool(
            thin_passes(
                uniform(seed, Purpose.THIN, 3, index), target.weight_of(token), 18, draft.weight_of(token)
            )
        )
        for index, token in enumerate(ids.tolist())
    ]
    for start in range(25):
        found = resample_draws(ids[start:], target.weights_of(ids[start:]), 18, draft, seed, 3, start)
        assert found == (ids[passes.index(True, start)] if any(passes[start:]) else None)
