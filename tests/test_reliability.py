"""Chances against what came true, in bins, and the curve that takes the difference out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.edge_runtime.reliability import CalibrationCurve, Reliability, ascending


def test_reliability_counts_in_bins() -> None:
    reliability = Reliability()
    assert reliability.error is None
    assert reliability.bins == []
    reliability.observe([0.95, 0.03, 0.0001], np.array([True, False, False]))
    reliability.observe([0.91, 0.05], np.array([False, True]))
    low, high = reliability.bins
    assert (low.count, high.count) == (2, 2), "what is no choice is not counted"
    assert (low.estimated, low.taken) == (pytest.approx(0.04), 0.5)
    assert (high.estimated, high.taken) == (pytest.approx(0.93), 0.5)
    assert reliability.error == pytest.approx((0.92 + 0.86) / 4)


def test_a_curve_begins_as_it_is_and_ends_as_what_came_true() -> None:
    curve = CalibrationCurve(memory=1e9, strength=8.0)
    chances = np.array([0.0, 0.02, 0.13, 0.5, 0.97, 1.0])
    np.testing.assert_allclose(curve.corrected(chances[:-2]), chances[:-2], atol=1e-12)
    generator = np.random.default_rng(2)
    for _ in range(4000):  # what is given a chance of p is taken in a share p squared
        given = generator.random(3)
        curve.observe(given, generator.random(3) < given**2)
    at = np.array([0.25, 0.55, 0.75, 0.95])
    np.testing.assert_allclose(curve.corrected(at), at**2, atol=0.05)


def test_a_curve_never_falls() -> None:
    curve = CalibrationCurve(memory=1e9, strength=1.0)
    for _ in range(50):
        curve.observe(np.array([0.35, 0.85]), np.array([True, False]))
    corrected = curve.corrected(np.linspace(0.0, 1.0, 101))
    assert (np.diff(corrected) >= 0.0).all()
    assert corrected[36] == pytest.approx(corrected[85], abs=0.05), "both come true in half of the cases"


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.1, 9.0)), min_size=1, max_size=9))
def test_nothing_that_ascends_is_nearer(points: list[tuple[float, float]]) -> None:
    """Isotonic regression's max-min formula (Barlow and others 1972)."""
    values, weights = map(np.array, zip(*points, strict=True))
    found = ascending(values, weights)
    count = len(values)
    for at in range(count):
        expected = max(
            min(np.average(values[low:high], weights=weights[low:high]) for high in range(at + 1, count + 1))
            for low in range(at + 1)
        )
        assert found[at] == pytest.approx(expected)


def test_a_curve_forgets() -> None:
    curve = CalibrationCurve(memory=20.0, strength=1.0)
    for taken in (True, False):
        for _ in range(200):
            curve.observe(np.array([0.55]), np.array([taken]))
    assert curve.corrected(np.array([0.55]))[0] < 0.15
