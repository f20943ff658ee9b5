"""When rounds begin and end, against hand-worked outlooks."""

from __future__ import annotations

import numpy as np
import pytest

from acespec.edge_runtime.mode_switch import (
    ALLOWED_LOSS,
    FIRST_BAR,
    LEAST_GAIN,
    SHORTEST_TEXT,
    ModeSwitch,
    Outlook,
)


def outlook(rounds_ms: float, tokens_left: int = 100, cloud_ms: float = 100.0) -> Outlook:
    return Outlook(cloud_ms, rounds_ms, round_trip_ms=50.0, tokens_left=tokens_left)


def test_rounds_begin_if_they_save_enough_of_each_token_and_a_round_trip_in_all() -> None:
    switch = ModeSwitch()
    enough = 100.0 * (1.0 - LEAST_GAIN)
    assert switch.enters(outlook(enough - 0.1), generated=0)
    assert not switch.enters(outlook(enough + 0.1), generated=0)
    assert switch.enters(outlook(80.0, tokens_left=3), generated=0), "60 ms for 50"
    assert not switch.enters(outlook(80.0, tokens_left=2), generated=0), "40 ms for 50"


def test_rounds_end_where_they_lose_more_than_the_way_back_costs() -> None:
    switch = ModeSwitch()
    assert switch.enters(outlook(80.0), generated=0)
    assert not switch.leaves(outlook(99.0), generated=10)
    assert not switch.leaves(outlook(100.4), generated=10), "40 ms for 50"
    assert switch.leaves(outlook(100.6), generated=10), "60 ms for 50"
    assert not switch.leaves(outlook(110.0, tokens_left=4), generated=10), "40 ms for 50"


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


def test_what_rounds_are_seen_to_take_corrects_what_is_expected_of_them() -> None:
    switch = ModeSwitch()
    assert switch.slowness == 1.0
    for _ in range(400):
        switch.observe_round(round_ms=180.0, expected_ms=150.0, tokens=2, cloud_ms=100.0)
    assert switch.slowness == pytest.approx(1.2, abs=0.03)
    assert not switch.enters(outlook(90.0), generated=10**9)
    assert switch.enters(outlook(70.0), generated=10**9)


def test_rounds_seen_to_lose_end_and_are_not_tried_again_at_once() -> None:
    """However good the outlook: they commit one token where four were expected."""
    switch, generated = ModeSwitch(), 0
    for bar in (FIRST_BAR, 2 * FIRST_BAR):
        assert switch.enters(outlook(50.0), generated)
        rounds = 0
        while not switch.leaves(outlook(50.0), generated):
            switch.observe_round(round_ms=200.0, expected_ms=200.0, tokens=1, cloud_ms=100.0)
            generated += 1
            rounds += 1
        allowed_ms = ALLOWED_LOSS * 100.0 * max(generated, SHORTEST_TEXT) + 50.0
        assert 100.0 * (rounds - 1) <= allowed_ms < 100.0 * rounds, "each loses 100 ms"
        assert not switch.enters(outlook(50.0), generated + bar - 1)
        generated += bar


def test_rounds_that_win_are_never_seen_to_lose() -> None:
    switch = ModeSwitch()
    assert switch.enters(outlook(50.0), generated=0)
    for generated in range(0, 4000, 4):
        switch.observe_round(round_ms=200.0, expected_ms=200.0, tokens=4, cloud_ms=100.0)
        assert not switch.leaves(outlook(50.0), generated)
