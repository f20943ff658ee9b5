"""Strangers cannot fill the log: so many lines at once, so many a second, and none goes uncounted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.cloud_verifier.gate import LineRation


def test_so_many_at_once_and_then_one_a_second() -> None:
    ration = LineRation(at_once=3, per_s=1.0)
    assert [ration.skipped(10.0) for _ in range(5)] == [0, 0, 0, None, None]
    assert ration.skipped(10.5) is None
    assert ration.skipped(11.0) == 3, "it says how many were left out"
    assert ration.skipped(11.0) is None
    assert [ration.skipped(1000.0) for _ in range(4)] == [1, 0, 0, None]


@given(st.integers(1, 5), st.floats(0.1, 10.0), st.lists(st.floats(0.0, 3.0), max_size=60))
def test_lines_and_those_left_out_are_all_there_were(at_once: int, per_s: float, pauses: list[float]) -> None:
    ration, now, written, counted = LineRation(at_once, per_s), 0.0, [], 0
    for pause in pauses:
        now += pause
        skipped = ration.skipped(now)
        if skipped is not None:
            written.append(now)
            counted += 1 + skipped
    assert counted <= len(pauses)
    for first, since in enumerate(written):
        for last, until in enumerate(written[first:], first):
            assert last - first + 1 <= at_once + per_s * (until - since) + 1e-6
    final = ration.skipped(now + 1e6)
    assert final is not None
    assert counted + final == len(pauses)


@pytest.mark.parametrize("clock", [0.0, 1e9])
def test_the_clock_may_begin_anywhere(clock: float) -> None:
    assert LineRation(at_once=1, per_s=1.0).skipped(clock) == 0
