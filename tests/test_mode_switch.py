"""When rounds begin and end, against hand-worked outlooks."""

from __future__ import annotations

import numpy as np
import pytest

from acespec.edge_runtime.mode_switch import (
    ALLOWED_LOSS,
    LEAST_CAUTION,
    LEAST_GAIN,
    MEMORY,
    SHORTEST_TEXT,
    TRUST,
    ModeSwitch,
    Outlook,
)

TRIP_MS = 50.0
ALLOWED_MS = ALLOWED_LOSS * SHORTEST_TEXT * 100.0
"""What a text may lose to a cloud that takes 100 ms for a token."""


def outlook(
    rounds_ms: float, tokens_left: int = 100, error_ms: float = 0.0, trip_ms: float = TRIP_MS
) -> Outlook:
    """Against 100 ms of the cloud; a standard error less acceptance makes rounds ``error_ms`` slower."""
    return Outlook(100.0, lambda errors: rounds_ms - errors * error_ms, trip_ms, tokens_left)


def lose(switch: ModeSwitch, late_ms: float) -> None:
    """One round as long as was expected, that commits one token."""
    switch.observe_round(100.0 + late_ms, 100.0 + late_ms, tokens=1, cloud_ms=100.0)


def test_rounds_begin_if_they_save_enough_of_each_token_and_a_round_trip_in_all() -> None:
    switch = ModeSwitch()
    enough = 100.0 * (1.0 - LEAST_GAIN)
    assert switch.enters(outlook(enough - 0.1), generated=0)
    assert not switch.enters(outlook(enough + 0.1), generated=0)
    assert switch.enters(outlook(80.0, tokens_left=3), generated=200), "60 ms for 50"
    assert not switch.enters(outlook(80.0, tokens_left=2), generated=200), "40 ms for 50"


def test_rounds_end_where_they_lose_more_than_the_way_back_costs() -> None:
    switch = ModeSwitch()
    assert not switch.leaves(outlook(99.0), generated=10)
    assert not switch.leaves(outlook(100.4), generated=10), "40 ms for 50"
    assert not switch.leaves(outlook(110.0, tokens_left=4), generated=10), "40 ms for 50"
    assert switch.leaves(outlook(100.6), generated=10), "60 ms for 50"


def test_between_beginning_and_ending_is_a_band() -> None:
    """Noise of an estimate that is smaller than the band changes nothing."""
    generator = np.random.default_rng(2)
    switch, speculates, changes = ModeSwitch(), False, 0
    for generated in range(0, 2000, 2):
        rounds_ms = 97.5 * (1.0 + 0.015 * float(np.clip(generator.standard_normal(), -1.6, 1.6)))
        decided = (
            not switch.leaves(outlook(rounds_ms), generated)
            if speculates
            else switch.enters(outlook(rounds_ms), generated)
        )
        changes += decided is not speculates
        speculates = decided
    assert changes <= 1


@pytest.mark.parametrize("trip_ms", [1.0, 100.0, 200.0])
def test_the_more_is_at_stake_the_surer_it_must_be_that_rounds_win(trip_ms: float) -> None:
    """Two round trips are at stake, as a share of what may be lost: so many standard errors."""
    caution = max(2.0 * trip_ms / ALLOWED_MS, LEAST_CAUTION)
    just = 100.0 * (1.0 - LEAST_GAIN) - 10.0 * caution
    wins, does_not = (outlook(just + more, SHORTEST_TEXT, 10.0, trip_ms) for more in (-0.1, 0.1))
    assert ModeSwitch().enters(wins, generated=0)
    assert not ModeSwitch().enters(does_not, generated=0)


def test_rounds_that_lost_must_be_the_surer_to_go_on_or_begin_again() -> None:
    switch, hopeful = ModeSwitch(), outlook(90.0, error_ms=20.0)
    assert not switch.leaves(hopeful, generated=20)
    assert switch.enters(outlook(80.0, error_ms=20.0), generated=20)
    lose(switch, ALLOWED_MS / 2.0)
    assert switch.leaves(hopeful, generated=20)
    assert not switch.enters(outlook(80.0, error_ms=20.0), generated=20)
    assert switch.enters(outlook(40.0, error_ms=20.0), generated=20)


def test_whoever_has_lost_all_that_may_be_lost_does_not_begin_again_however_sure() -> None:
    switch = ModeSwitch()
    lose(switch, ALLOWED_MS)
    assert not switch.enters(outlook(10.0), generated=SHORTEST_TEXT)
    assert switch.enters(outlook(10.0), generated=2 * SHORTEST_TEXT), "of a longer text it is a half"


def test_the_way_back_is_on_record_too() -> None:
    """Coming and going without end would lose as much as rounds that lose."""
    switch, times = ModeSwitch(), 0
    while times < 100 and switch.enters(outlook(80.0, error_ms=10.0), generated=SHORTEST_TEXT):
        assert switch.leaves(outlook(120.0), generated=SHORTEST_TEXT)
        times += 1
    # 15 ms are left for errors of 10 each: 1.5 times 256 ms are 7.7 trips of 50 ms. But of 5.1 all is lost.
    assert times == 6


def test_what_may_be_lost_grows_with_the_text_and_is_less_in_a_short_one() -> None:
    def enters(generated: int, tokens_left: int, late_ms: float) -> bool:
        switch = ModeSwitch()
        lose(switch, late_ms)
        return switch.enters(outlook(80.0, tokens_left, error_ms=10.0), generated)

    assert not enters(10, 2000, late_ms=2.0 * ALLOWED_MS)
    assert enters(500, 2000, late_ms=2.0 * ALLOWED_MS)
    assert enters(0, SHORTEST_TEXT, late_ms=100.0)
    assert not enters(0, SHORTEST_TEXT // 2, late_ms=100.0)


def test_what_rounds_won_may_be_lost_again() -> None:
    switch = ModeSwitch()
    for _ in range(10):
        switch.observe_round(round_ms=200.0, expected_ms=200.0, tokens=4, cloud_ms=100.0)
    for _ in range(10):
        lose(switch, 150.0)
    assert not switch.leaves(outlook(99.0, error_ms=20.0), generated=50), "500 ms earlier still"


def test_what_rounds_are_seen_to_take_corrects_what_is_expected_of_them() -> None:
    switch = ModeSwitch()
    assert switch.slowness == 1.0
    for _ in range(400):
        switch.observe_round(round_ms=180.0, expected_ms=150.0, tokens=2, cloud_ms=100.0)
    assert switch.slowness == pytest.approx((TRUST + 1.2 * MEMORY) / (TRUST + MEMORY), abs=0.01)
    assert not ModeSwitch().leaves(outlook(95.0), generated=10)
    assert switch.leaves(outlook(95.0), generated=10)
