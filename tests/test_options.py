"""Option types that several commands share."""

from __future__ import annotations

import click
import pytest

from acespec.errors import AcespecError
from acespec.options import FiniteRange, RangeOrAuto, parse_rate


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "-1", "x"])
def test_what_is_no_finite_number_of_the_range_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        FiniteRange(min=0.0).convert(text, None, None)


def test_a_number_of_the_range_is_itself() -> None:
    assert FiniteRange(min=0.0).convert("2.5", None, None) == 2.5


def test_a_whole_number_or_auto() -> None:
    type_ = RangeOrAuto(1, 63)
    assert type_.convert("7", None, None) == 7
    assert type_.convert("auto", None, None) is None
    for text in ("0", "64", "x", "1.5"):
        with pytest.raises(click.BadParameter):
            type_.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("50kbps", 6250.0), ("1.5Mbps", 187500.0), ("8bps", 1.0), (" 1 Gbps ", 1.25e8), ("10Kbps", 1250.0)],
)
def test_rates_are_bits_with_decimal_prefixes(text: str, expected: float) -> None:
    assert parse_rate(text) == expected


@pytest.mark.parametrize("text", ["", "50", "kbps", "-1kbps", "0kbps", "50kB/s", "1e3kbps"])
def test_what_is_not_a_rate_is_refused(text: str) -> None:
    with pytest.raises(AcespecError, match="write it as 50kbps"):
        parse_rate(text)
