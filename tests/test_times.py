"""Durations in one byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.wire.times import decode_duration, encode_duration


@given(st.floats(0.01, 26_000.0))
def test_within_three_percent(duration_ms: float) -> None:
    assert decode_duration(encode_duration(duration_ms)) == pytest.approx(duration_ms, rel=0.03)


def test_every_code_is_the_nearest_to_what_it_means() -> None:
    assert [encode_duration(decode_duration(code)) for code in range(256)] == list(range(256))


@pytest.mark.parametrize(
    ("duration_ms", "code"), [(0.0, 0), (0.004, 0), (0.006, 1), (0.01, 1), (0.0106, 2), (1e9, 255)]
)
def test_codes_worked_by_hand(duration_ms: float, code: int) -> None:
    assert encode_duration(duration_ms) == code


def test_infinity_saturates() -> None:
    assert encode_duration(float("inf")) == 255


def test_a_negative_duration_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        encode_duration(-1.0)
