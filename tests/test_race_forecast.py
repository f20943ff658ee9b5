"""What a race is expected to take: limits that can be worked out, and races that were run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.edge_runtime.race_forecast import RaceSetting, best_race, coverage, forecast_race, race_pays
from acespec.edge_runtime.time_model import OutcomeOdds
from acespec.wire import Eagerness
from policy_world import LONG, run

times = st.floats(0.5, 300.0)


@given(target_ms=times, trip_ms=times, step_ms=times, covered=st.floats(0.0, 1.0), uplink_ms=times)
def test_it_is_between_the_cloud_alone_and_the_draft(
    target_ms: float, trip_ms: float, step_ms: float, covered: float, uplink_ms: float
) -> None:
    forecast = forecast_race(RaceSetting(target_ms, trip_ms, step_ms, covered, uplink_ms))
    assert forecast.ms_per_token <= target_ms * (1.0 + 1e-9)
    assert forecast.ms_per_token == pytest.approx(forecast.forwards_per_token * target_ms)
    assert forecast.ms_per_token >= min(step_ms, target_ms) * 0.5


def test_without_coverage_it_is_the_cloud_and_with_all_of_it_the_draft() -> None:
    assert forecast_race(RaceSetting(72.0, 50.0, 8.5, 0.0)).ms_per_token == 72.0
    # Once it has begun the draft is never wrong: a token a step, and the cloud's own with each forward.
    perfect = forecast_race(RaceSetting(72.0, 50.0, 8.5, 1.0)).ms_per_token
    assert perfect == pytest.approx(8.5, rel=0.05)


@pytest.mark.parametrize("covered", [0.3, 0.5, 0.8, 0.9])
def test_a_run_and_a_token_where_nothing_takes_time(covered: float) -> None:
    """Worked out for a draft and a link without delay.

    A forward that begins when a token just committed was not drafted commits one token; the next finds what
    is drafted behind that one if it was drafted itself, else the same comes again: 1 / c such forwards on
    average, and one that commits a run of mean c / (1 - c) and a token more.
    """
    tokens = 1.0 / covered + covered / (1.0 - covered) + 1.0
    forecast = forecast_race(RaceSetting(72.0, 0.0, 1e-6, covered))
    assert forecast.forwards_per_token == pytest.approx((1.0 / covered + 1.0) / tokens, rel=0.08)


@given(covered=st.floats(0.0, 0.98), trip_ms=times)
def test_more_time_does_not_help(covered: float, trip_ms: float) -> None:
    near, far = (forecast_race(RaceSetting(72.0, t, 8.5, covered)).ms_per_token for t in (1.0, 1.0 + trip_ms))
    assert near <= far * 1.08, "a forward more or less hangs on where steps fall"


@given(st.floats(0.05, 0.95), st.floats(0.2, 2.0))
def test_coverage_grows_with_acceptance_and_width(alpha: float, beta: float) -> None:
    odds = OutcomeOdds(alpha, beta)
    assert coverage(odds, 1) == alpha
    covered = [coverage(odds, width) for width in (1, 4, 16, 64, 256)]
    assert covered == sorted(covered)
    assert covered[-1] < 1.0
    assert coverage(OutcomeOdds(min(alpha + 0.02, 0.99), beta), 16) >= covered[2]


@pytest.mark.parametrize("trip_ms", [10.0, 50.0, 200.0])
@pytest.mark.parametrize("step_ms", [8.5, 22.0])
def test_it_is_near_what_races_take(trip_ms: float, step_ms: float) -> None:
    metrics = run(LONG, 0.7, target_ms=72.0, step_ms=step_ms, delays=[trip_ms / 2.0]).metrics
    assert metrics.alpha is not None
    covered = coverage(OutcomeOdds(metrics.alpha, metrics.beta or 1.0, 0.5), 32)
    forecast = forecast_race(RaceSetting(72.0, trip_ms, step_ms, covered))
    assert forecast.ms_per_token == pytest.approx(1000.0 / metrics.tokens_per_s, rel=0.35)


@pytest.mark.parametrize(
    ("eagerness", "race_ms", "pays"),
    [
        (None, 10.0, False),
        (Eagerness.LATENCY, 72.0, True),
        (Eagerness.BALANCED, 90.0, True),
        (Eagerness.COST, 71.0, False),
        (Eagerness.COST, 60.0, True),
    ],
)
def test_a_race_pays_wherever_the_server_is_eager(
    eagerness: Eagerness | None, race_ms: float, pays: bool
) -> None:
    assert race_pays(eagerness, 72.0, lambda: race_ms) is pays


@pytest.mark.parametrize("trip_ms", [10.0, 200.0])
def test_the_best_race_is_of_the_width_that_is_worth_its_time(trip_ms: float) -> None:
    odds = OutcomeOdds(0.6, 0.8)
    flat = best_race(72.0, trip_ms, {1: 8.5, 16: 8.5}, odds)
    assert flat == forecast_race(RaceSetting(72.0, trip_ms, 8.5, coverage(odds, 16)))
    steep = best_race(72.0, trip_ms, {1: 8.5, 16: 200.0}, odds)
    assert steep == forecast_race(RaceSetting(72.0, trip_ms, 8.5, coverage(odds, 1)))
