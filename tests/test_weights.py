"""Integer weights: largest remainder, its bounds, and drawing by inverse CDF."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from acespec.speculation import (
    DRAFT_BITS,
    Distribution,
    Weighted,
    draw,
    round_to_weights,
    target_bits,
    weighted,
)

probabilities = (
    st.lists(st.integers(0, 1000), min_size=1, max_size=40)
    .filter(any)
    .map(lambda parts: np.array(parts) / sum(parts))
)


def largest_remainder(probs: NDArray[np.float64], bits: int) -> list[int]:
    shares = [Fraction(p) * 2**bits for p in probs.tolist()]
    weights = [int(share) for share in shares]
    missing = 2**bits - sum(weights)
    order = sorted(range(len(shares)), key=lambda i: (weights[i] - shares[i], i))
    for i in order[:missing]:
        weights[i] += 1
    return weights


@given(probabilities, st.sampled_from([16, 20, 32]))
def test_rounding_equals_exact_largest_remainder(probs: NDArray[np.float64], bits: int) -> None:
    weights = round_to_weights(probs, bits)
    assert weights.sum() == 2**bits
    assert (np.abs(weights - probs * 2.0**bits) < 1.0).all()
    assert weights.tolist() == largest_remainder(probs, bits)


def test_ties_go_to_the_lower_id() -> None:
    assert round_to_weights(np.full(3, 1 / 3), 16).tolist() == [21846, 21845, 21845]
    assert round_to_weights(np.full(6, 1 / 6), 16).tolist() == [10923] * 4 + [10922] * 2


def test_rounding_is_row_by_row() -> None:
    probs = np.random.default_rng(0).dirichlet(np.full(9, 0.3), size=(4, 5))
    batched = round_to_weights(probs, 18)
    for at in np.ndindex(4, 5):
        np.testing.assert_array_equal(batched[at], round_to_weights(probs[at], 18))


def test_a_large_support_full_of_ties_is_rounded_as_exactly() -> None:
    parts = np.random.default_rng(1).integers(1, 6, size=26_000)
    probs = parts / parts.sum()
    assert round_to_weights(probs, 29).tolist() == largest_remainder(probs, 29)


@pytest.mark.parametrize(
    ("support", "bits"), [(1, 16), (2, 16), (4, 16), (5, 17), (8, 17), (9, 18), (49152, 30), (151936, 32)]
)
def test_target_bits_by_hand(support: int, bits: int) -> None:
    assert target_bits(support) == bits


@pytest.mark.parametrize("support", [1, 3, 5, 1000, 150_000])
@pytest.mark.parametrize("concentration", [0.01, 1.0, 100.0])
def test_the_rounded_target_is_within_two_to_the_minus_fifteen(support: int, concentration: float) -> None:
    gammas = np.random.default_rng(support).gamma(concentration, size=support) + 1e-300
    probs = gammas / gammas.sum()
    bits = target_bits(support)
    rounded = round_to_weights(probs, bits) / 2.0**bits
    assert np.abs(rounded - probs).sum() / 2 < 2.0**-15


def test_what_rounds_to_nothing_leaves_the_support() -> None:
    found = weighted(Distribution(np.array([3, 8, 9]), np.array([0.5, 1e-9, 0.5 - 1e-9])), DRAFT_BITS)
    assert (found.ids.tolist(), found.weights.tolist(), found.bits) == ([3, 9], [32768, 32768], 16)
    assert [found.weight_of(token) for token in (0, 3, 8, 9, 100)] == [0, 32768, 0, 32768, 0]
    assert found.weights_of(np.array([100, 9, 3, 5])).tolist() == [0, 32768, 32768, 0]


def test_a_point_mass_has_the_whole_weight() -> None:
    assert weighted(Distribution(np.array([7]), np.ones(1)), DRAFT_BITS).weight_of(7) == 65536


weights_lists = st.lists(st.integers(0, 2**30), min_size=1, max_size=12).filter(any)


@given(weights_lists, st.integers(0, 2**53 - 1))
def test_draw_is_the_inverse_cdf(weights: list[int], ticks: int) -> None:
    u = ticks * 2.0**-53
    tick = int(u * sum(weights))
    ends = list(itertools.accumulate(weights))
    expected = next(index for index, end in enumerate(ends) if tick < end)
    assert draw(np.array(weights), np.array(u)) == expected
    assert draw(np.array([weights]), np.array([u])).tolist() == [expected]
    assert weights[expected] > 0


@given(weights_lists)
def test_the_largest_draw_falls_on_the_last_weight(weights: list[int]) -> None:
    last = max(i for i, weight in enumerate(weights) if weight)
    assert draw(np.array(weights), np.array(1.0 - 2.0**-53)) == last
    assert draw(np.array(weights), np.array(2.0**-54)) == min(i for i, weight in enumerate(weights) if weight)


def test_every_tick_is_drawn_as_often_as_its_weight_says() -> None:
    weights = np.array([3, 0, 7, 1, 5])
    u = (np.arange(16) + 0.5) / 16
    assert np.bincount(draw(weights, u)).tolist() == [3, 0, 7, 1, 5]


def test_draw_broadcasts() -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 100, size=(5, 1, 6))
    weights[:, :, 2] += 1
    u = rng.random((5, 4))
    found = draw(weights, u)
    assert found.shape == (5, 4)
    for row, column in np.ndindex(5, 4):
        assert found[row, column] == draw(weights[row, 0], u[row, column])
    support = Weighted(np.array([4, 6, 9]), np.array([1, 2, 1]), 2)
    assert support.pick(np.array([0.1, 0.3, 0.7, 0.8])).tolist() == [4, 6, 6, 9]
