"""Option types that several commands share."""

from __future__ import annotations

import click
import pytest

from acespec.options import FiniteRange


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "-1", "x"])
def test_what_is_no_finite_number_of_the_range_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        FiniteRange(min=0.0).convert(text, None, None)


def test_a_number_of_the_range_is_itself() -> None:
    assert FiniteRange(min=0.0).convert("2.5", None, None) == 2.5
