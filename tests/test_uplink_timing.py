"""A link's base delay and rate from what messages took; forwards from when commits come."""

from __future__ import annotations

import numpy as np
import pytest

from acespec.edge_runtime.uplink_timing import ForwardTimes, UplinkDelay


@pytest.mark.parametrize("byte_ms", [0.16, 0.8])
def test_base_and_rate_are_told_apart(byte_ms: float) -> None:
    delay = UplinkDelay()
    generator = np.random.default_rng(1)
    for size in generator.uniform(130.0, 330.0, 40):
        delay.observe(size, 66.0 + byte_ms * size + generator.normal(0.0, 3.0))
    assert delay.byte_ms == pytest.approx(byte_ms, abs=0.03)
    assert delay.ms(200.0) - delay.noise_ms == pytest.approx(66.0 + byte_ms * 200.0, abs=3.0)
    assert 0.8 * byte_ms < delay.least_byte_ms < delay.byte_ms
    assert 1.0 < delay.noise_ms < 4.0


def test_the_opening_tells_the_rate_of_the_first_messages() -> None:
    delay = UplinkDelay()
    delay.observe(700.0, 66.0 + 0.16 * 700.0)
    assert delay.most_byte_ms == pytest.approx((66.0 + 112.0) / 700.0)
    assert delay.least_byte_ms == 0.0
    delay.observe(150.0, 66.0 + 0.16 * 150.0)
    assert delay.byte_ms == pytest.approx(0.16, abs=0.005)
    assert delay.byte_ms < delay.most_byte_ms < 0.2


def test_jitter_makes_the_rate_uncertain() -> None:
    generator = np.random.default_rng(2)
    calm, jittery = UplinkDelay(), UplinkDelay()
    sizes = generator.uniform(110.0, 250.0, 40)
    for size in sizes:
        calm.observe(size, 50.0 + 0.16 * size)
        jittery.observe(size, 50.0 + 0.16 * size + generator.exponential(15.0))
    assert calm.most_byte_ms - calm.least_byte_ms < 0.03
    assert jittery.most_byte_ms - jittery.least_byte_ms > 0.05


def test_a_new_route_is_learned_within_a_few_messages() -> None:
    delay = UplinkDelay()
    for size in (150.0, 250.0) * 10:
        delay.observe(size, 66.0 + 0.16 * size)
    for size in (150.0, 250.0) * 4:
        delay.observe(size, 166.0 + 0.16 * size)
    assert delay.ms(200.0) > 190.0


def test_a_message_that_a_stall_held_up_says_little_of_the_next() -> None:
    delay = UplinkDelay()
    for size in (150.0, 250.0) * 10:
        delay.observe(size, 66.0 + 0.16 * size)
    for size in (250.0, 290.0):
        delay.observe(size, 1066.0 + 0.16 * size)
    assert delay.ms(200.0) < 66.0 + 0.16 * 200.0 + 25.0
    assert delay.byte_ms < 0.25


def test_forwards_follow_the_commits_they_are_told_by() -> None:
    times = ForwardTimes()
    assert not times.known
    times.committed(1000.0, 72.0)
    for number in range(1, 20):
        times.committed(1000.0 + 80.0 * number, 72.0)
    assert times.interval_ms == pytest.approx(80.0, abs=0.2)
    last_ms = 1000.0 + 80.0 * 19
    within = [times.begun_within(delay_ms) for delay_ms in (1.0, 79.0, 81.0, 161.0)]
    assert within == [1, 1, 2, 3], "the first begins at once"
    assert [times.overdue(last_ms + late_ms) for late_ms in (1.0, 100.0, 105.0, 185.0)] == [0, 0, 1, 2]
    assert times.begins_ms(2) == pytest.approx(last_ms + 160.0, abs=0.4)
    times.committed(last_ms + 5000.0, 72.0)
    assert times.interval_ms < 100.0, "a pause is no interval"


def test_commits_that_come_all_at_once_behind_a_pause_waited_with_the_first() -> None:
    times = ForwardTimes()
    for number in range(20):
        times.committed(72.0 * number, 72.0)
    stalled_ms = 72.0 * 19 + 1000.0
    for _ in range(14):
        times.committed(stalled_ms, 72.0)
    assert 36.0 < times.interval_ms < 90.0
    times.committed(stalled_ms + 50.0, 72.0)
    for _ in range(10):
        times.committed(stalled_ms + 50.0, 72.0)
    assert times.interval_ms < 20.0, "no pause explains these"
