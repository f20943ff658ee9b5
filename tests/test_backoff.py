"""How long the edge waits: between attempts, for an answer, and when it is told to come again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.edge_runtime.backoff import Backoff, BackoffSettings, Patience, around

BELOW_ONE = st.floats(0.0, 1.0, exclude_max=True)


@given(draws=st.lists(BELOW_ONE, min_size=1, max_size=12))
def test_waits_are_uniform_below_a_bound_that_doubles_up_to_its_longest(draws: list[float]) -> None:
    given_draws = iter(draws)
    backoff = Backoff(BackoffSettings(first_s=0.5, longest_s=6.0), lambda: next(given_draws))
    for index, draw in enumerate(draws):
        assert backoff.next_s() == pytest.approx(draw * min(0.5 * 2**index, 6.0))


def test_an_answer_makes_the_next_wait_a_first_one() -> None:
    backoff = Backoff(BackoffSettings(first_s=1.0, longest_s=8.0), lambda: 0.5)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 4.0, 4.0]
    backoff.reset()
    assert backoff.next_s() == 0.5


@pytest.mark.parametrize("fields", [{"first_s": 0.0}, {"first_s": 2.0, "longest_s": 1.0}, {"factor": 0.5}])
def test_settings_that_make_no_backoff(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"first_s|factor"):
        BackoffSettings(**fields)


def test_patience_is_eight_usual_answers_and_doubles_while_none_comes() -> None:
    patience = Patience(shortest_s=10.0)
    assert patience.limit_s == 10.0
    for _ in range(3):
        patience.observe_timeout()
    assert patience.limit_s == 80.0
    patience.observe_answer(3000.0)
    assert patience.limit_s == pytest.approx(24.0)
    patience.observe_timeout()
    assert patience.limit_s == pytest.approx(48.0)


@given(seconds=st.floats(0.001, 600.0), draw=BELOW_ONE)
def test_a_time_told_is_kept_within_a_fifth(seconds: float, draw: float) -> None:
    assert 0.8 * seconds <= around(seconds, lambda: draw) <= 1.2 * seconds
