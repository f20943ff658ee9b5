"""Shared randomness: equal to its definition, and statistically what the proofs assume."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from acespec.speculation import Purpose, uniform

MASK = 2**64 - 1
SPREAD = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

words = st.integers(0, MASK)
purposes = st.sampled_from(Purpose)


def mix(h: int) -> int:
    h = (h ^ h >> 30) * FIRST & MASK
    h = (h ^ h >> 27) * SECOND & MASK
    return h ^ h >> 31


def definition(seed: int, purpose: int, position: int, index: int) -> float:
    h = mix(seed)
    for field in (purpose, position, index):
        h = mix(h ^ field * SPREAD & MASK)
    return min(((h >> 11) + 0.5) * 2.0**-53, 1.0 - 2.0**-53)


@given(words, purposes, words, words)
def test_scalars_and_arrays_equal_the_definition(
    seed: int, purpose: Purpose, position: int, index: int
) -> None:
    expected = definition(seed, purpose, position, index)
    array = np.array([seed], dtype=np.uint64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert uniform(seed, purpose, position, index) == expected
        assert uniform(array, purpose, position, index).tolist() == [expected]
        assert uniform(seed, purpose, position, np.array([index], dtype=np.uint64)).tolist() == [expected]
        assert uniform(seed, purpose, np.array([position], dtype=np.uint64), index).tolist() == [expected]


def test_arguments_broadcast() -> None:
    seeds, positions, indexes = np.arange(2)[:, None, None], np.arange(3)[:, None], np.arange(4)
    draws = uniform(seeds, Purpose.THIN, positions, indexes)
    assert draws.shape == (2, 3, 4)
    for at in np.ndindex(2, 3, 4):
        assert draws[at] == uniform(at[0], Purpose.THIN, at[1], at[2])
    layouts = np.asfortranarray(
        np.tile(np.arange(3), (5, 1))
    )  # not in C order, nor is what they broadcast to
    expected = uniform(4, Purpose.THIN, layouts.copy(order="C"), 2)
    np.testing.assert_array_equal(uniform(layouts * 0 + 4, Purpose.THIN, layouts, 2), expected)
    np.testing.assert_array_equal(
        uniform(4, Purpose.THIN, 2, layouts), uniform(4, Purpose.THIN, 2, layouts.copy(order="C"))
    )
    scalar = uniform(3, Purpose.DRAFT, 4)
    assert isinstance(scalar, np.ndarray)
    assert scalar.shape == ()


def test_a_negative_seed_is_the_word_of_the_same_bits() -> None:
    assert uniform(-1, Purpose.DRAFT, 0) == uniform(MASK, Purpose.DRAFT, 0)
    assert uniform(np.array([-1]), Purpose.DRAFT, 0)[0] == uniform(MASK, Purpose.DRAFT, 0)


def invert_xorshift(h: int, shift: int) -> int:
    value = h
    for _ in range(64 // shift):
        value = h ^ value >> shift
    return value


def unmix(h: int) -> int:
    h = invert_xorshift(h, 31) * pow(SECOND, -1, 2**64) & MASK
    h = invert_xorshift(h, 27) * pow(FIRST, -1, 2**64) & MASK
    return invert_xorshift(h, 30)


@pytest.mark.parametrize(("wanted", "expected"), [(MASK, 1.0 - 2.0**-53), (0, 2.0**-54)])
def test_the_extreme_hashes_stay_inside_the_unit_interval(wanted: int, expected: float) -> None:
    # The index whose hash is all ones (or zeros): the mixer is a bijection, so it can be worked backwards.
    state = mix(mix(mix(9) ^ Purpose.ACCEPT * SPREAD & MASK) ^ 17 * SPREAD & MASK)
    index = (state ^ unmix(wanted)) * pow(SPREAD, -1, 2**64) & MASK
    assert uniform(9, Purpose.ACCEPT, 17, index) == expected
    assert uniform(np.array([9]), Purpose.ACCEPT, 17, np.array([index], dtype=np.uint64))[0] == expected


def test_no_two_keys_share_a_draw() -> None:
    # A sum of fields would repeat thousands of these; 2^53 values repeat one with probability 1e-4.
    draws = [
        uniform(np.arange(16)[:, None, None], purpose, np.arange(64)[:, None], np.arange(128))
        for purpose in Purpose
    ]
    flat = np.concatenate(draws, axis=None)
    assert len(np.unique(flat)) == len(flat)


COUNT = 400_000
STEPS = np.arange(COUNT)
SEQUENCES: dict[str, Callable[[int, Purpose], NDArray[np.float64]]] = {
    "seed": lambda shift, purpose: uniform(STEPS + shift, purpose, 5, 3),
    "position": lambda shift, purpose: uniform(7, purpose, STEPS + shift, 3),
    "index": lambda shift, purpose: uniform(7, purpose, 5, STEPS + shift),
}


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize("field", SEQUENCES)
def test_draws_along_a_field_are_uniform(field: str, purpose: Purpose) -> None:
    observed = np.bincount((SEQUENCES[field](0, purpose) * 1000).astype(int), minlength=1000)
    assert stats.chisquare(observed).pvalue > 1e-4


def independence_p_value(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    cells = (first * 40).astype(int) * 40 + (second * 40).astype(int)
    return float(stats.chisquare(np.bincount(cells, minlength=1600)).pvalue)


@pytest.mark.parametrize("shift", [1, 2, 3, 64])
@pytest.mark.parametrize("field", SEQUENCES)
def test_neighbours_along_a_field_are_independent(field: str, shift: int) -> None:
    draw = SEQUENCES[field]
    for purpose in (Purpose.COUPLE, Purpose.ACCEPT):
        assert independence_p_value(draw(0, purpose), draw(shift, purpose)) > 1e-4


@pytest.mark.parametrize("field", SEQUENCES)
def test_purposes_are_independent(field: str) -> None:
    draw = SEQUENCES[field]
    for first in Purpose:
        for second in Purpose:
            if first < second:
                assert independence_p_value(draw(0, first), draw(0, second)) > 1e-5


def test_a_position_and_an_index_are_independent_fields() -> None:
    for first, second in [
        (uniform(7, Purpose.COUPLE, STEPS, 9), uniform(7, Purpose.COUPLE, 9, STEPS)),
        (uniform(7, Purpose.COUPLE, STEPS, 4), uniform(7, Purpose.COUPLE, STEPS + 1, 3)),
    ]:
        assert independence_p_value(first, second) > 1e-4
