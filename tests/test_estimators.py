"""Estimators against hand-worked values and against data of known parameters."""

from __future__ import annotations

import numpy as np
import pytest

from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.estimators import AcceptanceRate, MeanTime, SmoothedTime, StepTimes, TailExponent
from acespec.edge_runtime.request import DraftSettings
from acespec.wire import ServerTimes


def test_smoothed_time_follows_rfc_6298() -> None:
    time = SmoothedTime()
    assert not time.known
    time.observe(100.0)
    assert (time.mean_ms, time.spread_ms) == (100.0, 50.0)
    time.observe(180.0)
    # spread first, against the old mean: 50 + (80 - 50)/4; then the mean: 100 + 80/8
    assert (time.mean_ms, time.spread_ms) == (110.0, 57.5)


def test_a_mean_moves_from_what_is_expected_to_what_is_seen() -> None:
    mean = MeanTime(prior_samples=4.0, memory=1e12)
    assert mean.mean_ms(70.0) == 70.0
    for sample_ms in (100.0, 110.0):
        mean.observe(sample_ms)
    assert mean.mean_ms(70.0) == pytest.approx((4 * 70.0 + 210.0) / 6)
    forgetful = MeanTime(memory=16)
    for sample_ms in [100.0] * 200 + [50.0] * 200:
        forgetful.observe(sample_ms)
    assert forgetful.mean_ms(50.0) == pytest.approx(50.0, abs=0.1)


def test_chances_count_as_so_much_of_a_test() -> None:
    rate = AcceptanceRate(prior=0.5, prior_tests=2.0, memory=1e12)
    rate.observe_chance(0.25)
    rate.observe_chance(0.5)
    assert rate.value == pytest.approx((1.0 + 0.75) / 4.0)
    assert rate.error == pytest.approx((rate.value * (1.0 - rate.value) / 4.0) ** 0.5)


def test_a_few_jittery_intervals_do_not_make_the_cloud_slow() -> None:
    controller = Controller(DraftSettings(), lambda _: {1: 10.0})
    assert controller.cloud_ms == 0.0
    controller.observe_commit(None, 1, compute_ms=70.0)
    assert controller.cloud_ms == pytest.approx(70.0)
    assert controller.verify_ms == pytest.approx(70.0), "before a round a check is taken for as long"
    for since_ms in (110.0, 90.0):
        controller.observe_commit(since_ms, 1, compute_ms=70.0)
    assert controller.cloud_ms == pytest.approx((8 * 70.0 + 200.0) / 10, rel=0.01)
    for _ in range(500):  # a link that carries no more
        controller.observe_commit(180.0, 2, compute_ms=70.0)
    assert controller.cloud_ms == pytest.approx(90.0, rel=0.05)
    controller.observe_round(150.0, ServerTimes(0.0, 100.0))
    assert controller.verify_ms == 100.0


def test_a_race_that_the_server_lets_wait_says_nothing_of_what_it_takes_alone() -> None:
    controller = Controller(DraftSettings(), lambda _: {1: 10.0})
    for _ in range(100):
        controller.observe_race(200.0, 3, compute_ms=70.0, waits=True)
    assert controller.cloud_ms == pytest.approx(70.0)
    for _ in range(500):
        controller.observe_race(90.0, 3, compute_ms=70.0)
    assert controller.cloud_ms == pytest.approx(90.0, rel=0.05)


def test_the_opening_is_a_round_trip_until_there_is_a_real_one() -> None:
    controller = Controller(DraftSettings(), lambda _: {1: 10.0})
    controller.observe_opening(300.0)
    controller.observe_opening(20.0)
    assert controller.round_trip.mean_ms == 300.0, "once: a later one is another stream's"
    controller.observe_round(150.0, ServerTimes(0.0, 100.0))
    assert controller.round_trip.mean_ms == 50.0
    controller.observe_opening(300.0)
    assert controller.round_trip.mean_ms == 50.0


def test_acceptance_counts_tests_up_to_the_first_rejection() -> None:
    rate = AcceptanceRate(prior=0.5, prior_tests=2.0, memory=1e12)
    rate.observe(accepted=3, rejected=True)
    rate.observe(accepted=0, rejected=True)
    assert rate.value == pytest.approx((1 + 3) / (2 + 5))
    rate.observe(accepted=4, rejected=False)
    assert rate.value == pytest.approx((1 + 7) / (2 + 9))


def test_acceptance_forgets() -> None:
    rate = AcceptanceRate(prior=0.5, memory=64)
    for _ in range(500):
        rate.observe(4, rejected=False)
    assert rate.value > 0.99
    for _ in range(500):
        rate.observe(0, rejected=True)
    assert rate.value < 0.01


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_tail_exponent_finds_the_exponent_it_was_fed(beta: float) -> None:
    # P(rank > F) = c F**-beta for F >= 1, so P(rank > F | rank > 1) = F**-beta
    generator = np.random.default_rng(7)
    ranks = np.ceil(generator.random(40_000) ** (-1.0 / beta)).astype(int)
    tail = TailExponent(prior=0.8)
    for rank in ranks:
        tail.observe(min(int(rank), tail.horizon + 1))
    assert tail.value == pytest.approx(beta, rel=0.2)


def test_tail_exponent_ignores_how_often_the_first_candidate_wins() -> None:
    tail = TailExponent(prior=0.8)
    for _ in range(100):
        tail.observe(1)
    assert tail.value == pytest.approx(0.8)


def test_step_times_scale_the_profile_by_what_is_seen() -> None:
    times = StepTimes({1: 10.0, 8: 20.0}, gain=0.5)
    times.observe(8, 40.0)
    assert times.current() == {1: 20.0, 8: 40.0}, "an unused bucket takes the common factor"
    times.observe(8, 20.0)
    assert times.current() == {1: 15.0, 8: 30.0}
    times.observe(1, 35.0)
    assert times.current() == {1: 25.0, 8: 30.0}, "its first own sample blends with the common factor"
    times.update_profile({1: 11.0, 8: 22.0})
    assert times.current() == pytest.approx({1: 27.5, 8: 33.0})


def test_the_controller_separates_the_link_from_the_server_and_plans_from_their_sum() -> None:
    controller = Controller(DraftSettings(gamma=4), lambda _: {1: 10.0, 8: 20.0, 16: 40.0})
    assert controller.plan(100).bucket == 16, "an unknown link counts as long"
    trip_ms = controller.observe_round(200.0, ServerTimes(queue_ms=10.0, compute_ms=140.0))
    assert trip_ms == 50.0
    assert controller.window_ms == 200.0
    assert controller.plan(100).bucket == 16  # five steps of 40 ms fit 200 ms
    fast = Controller(DraftSettings(gamma=4), lambda _: {1: 10.0, 8: 20.0, 16: 40.0})
    fast.observe_round(150.0, ServerTimes(queue_ms=0.0, compute_ms=140.0))
    assert fast.plan(100).bucket == 8


def test_a_growth_step_is_held_back_only_when_the_verdict_is_due() -> None:
    controller = Controller(DraftSettings(gamma=4), lambda _: {1: 10.0, 8: 20.0})
    assert controller.worth_a_step(now_ms=1e9, sent_ms=0.0, bucket=8), "nothing is known yet"
    for _ in range(200):
        controller.observe_round(100.0, ServerTimes(0.0, 60.0))
    assert controller.worth_a_step(now_ms=70.0, sent_ms=0.0, bucket=8)
    assert not controller.worth_a_step(now_ms=90.0, sent_ms=0.0, bucket=8)
    assert controller.overdue_ms(now_ms=90.0, sent_ms=0.0) == pytest.approx(10.0, abs=0.1)
