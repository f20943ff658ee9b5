"""Messages leave as late as they may, and only where they bring more than they cost."""

from __future__ import annotations

import pytest

from acespec.edge_runtime.uplink_pacing import MESSAGE_BYTES
from acespec.edge_runtime.uplink_timetable import PROBED_EVERY, Departure, Slot, UplinkTimetable

STEP_MS = 72.0
DRAFT_MS = 8.5
NODE_BYTES = 2.6
TWENTY = [0.05 * count for count in range(1, 21)]
"""Twenty nodes that bring as much each, a token together."""


def timetable(
    byte_ms: float, trip_ms: float = 66.0, commits: int = 40, heard: bool = True
) -> UplinkTimetable:
    """One of a link that is known, whose last commit came at 0."""
    table = UplinkTimetable(600.0, trip_ms + byte_ms * 600.0)
    for number in range(commits):
        at_ms, size = STEP_MS * (number + 1 - commits), 130.0 + 10.0 * (number % 5)
        if heard and number % 6 == 0:
            table.sent(number + 1, size, at_ms - 60.0, 0.0)
            table.arrived(number + 1, at_ms - 60.0 + trip_ms + byte_ms * size)
        table.committed(at_ms, STEP_MS, 1)
    return table


def ask(table: UplinkTimetable, now_ms: float, gains: list[float] = TWENTY) -> Departure:
    """In the first slot there is."""
    return table.departure(table.slots(NODE_BYTES, now_ms)[0], gains, NODE_BYTES, now_ms, DRAFT_MS)


def test_a_message_leaves_just_in_time_for_the_forward_it_can_reach() -> None:
    table = timetable(0.16)
    first = ask(table, 1.0)
    assert first.count == 0
    assert first.due_ms is not None
    assert not ask(table, first.due_ms - 1.0).count
    departure = ask(table, first.due_ms + 0.01)
    assert departure == Departure(20, gain=pytest.approx(1.0))
    there_ms = first.due_ms + 66.0 + 0.16 * (MESSAGE_BYTES + 20 * NODE_BYTES)
    begins_ms = 2 * STEP_MS
    assert begins_ms - DRAFT_MS - table.delay.noise_ms - 1.0 < there_ms < begins_ms - DRAFT_MS + 0.1


def test_it_is_for_the_forward_that_one_reaches_which_leaves_as_a_commit_comes() -> None:
    """66 ms, 20 for a message without nodes and 2 for four: two will have begun, at 0 and at 72 ms."""
    table = timetable(0.16)
    for now_ms, forward in ((0.0, 2), (60.0, 2), (90.0, 2), (1.31 * STEP_MS, 3)):  # then a commit is overdue
        assert [slot.forward for slot in table.slots(NODE_BYTES, now_ms)] == [forward]
    assert ask(table, 60.0) == Departure(), "too late for it: the next commit will say more"
    assert [slot.forward for slot in timetable(0.16, trip_ms=20.0).slots(NODE_BYTES, 1.0)] == [1]


def test_where_few_nodes_reach_it_another_message_follows_for_the_next_one() -> None:
    """42 ms and 20: 10 are left, for some twenty nodes; the time to the next commit is for others."""
    table = timetable(0.16, trip_ms=42.0)
    near, next_one = table.slots(NODE_BYTES, 0.0)
    assert (near.forward, next_one.forward) == (1, 2)
    assert near.gone_by_ms == pytest.approx(STEP_MS - 42.0 - table.delay.noise_ms, abs=1.0)
    assert next_one.gone_by_ms == pytest.approx(STEP_MS, abs=0.5), "the link is free when the commit comes"
    many = [0.05 * count for count in range(1, 200)]
    few = table.departure(near, many, NODE_BYTES, 0.0, DRAFT_MS)
    assert 10 <= few.count < 30
    size = MESSAGE_BYTES + few.count * NODE_BYTES
    table.sent(1000, size, 0.0, few.gain)
    assert table.departure(near, many, NODE_BYTES, 1.0, DRAFT_MS) == Departure(), "the link is taken"
    more = table.departure(next_one, many, NODE_BYTES, 1.0, DRAFT_MS)
    assert more.count >= 20
    assert 0.16 * (size + MESSAGE_BYTES + more.count * NODE_BYTES) <= STEP_MS + 0.5


def test_what_does_not_fit_waits_or_goes_with_fewer() -> None:
    table = timetable(0.16)
    last_ms = 2 * STEP_MS - 66.0 - table.delay.noise_ms - 0.16 * MESSAGE_BYTES
    assert ask(table, last_ms - 0.16 * NODE_BYTES * 16.5).count == 16
    assert ask(table, last_ms - 0.16 * NODE_BYTES * 0.5) == Departure(), "with the one for the next forward"


def test_the_next_message_waits_for_the_one_under_way() -> None:
    table = timetable(0.8)
    table.sent(100, 250.0, 0.0, 0.5)
    there_ms = 200.0 + 66.0 + 0.8 * (MESSAGE_BYTES + NODE_BYTES)
    for now_ms in range(0, 300, 5):
        for forward in range(8):
            slot = Slot(forward, forward * STEP_MS - 66.0)
            departure = table.departure(slot, [5.0], NODE_BYTES, float(now_ms), 1e-3)
            if departure.count or departure.due_ms is not None:
                assert forward * STEP_MS > there_ms - 1.0
    last = Slot(7, 7 * STEP_MS - 66.0)
    assert table.departure(last, [5.0], NODE_BYTES, 0.0, 1e-3).due_ms is not None


def test_when_a_message_is_there_is_known_as_it_leaves() -> None:
    table = timetable(0.16)
    assert table.sent(100, 250.0, 0.0, 0.5) == pytest.approx(66.0 + 0.16 * 250.0, abs=4.0)
    assert table.sent(101, 250.0, 1.0, 0.5) == pytest.approx(66.0 + 0.16 * 500.0, abs=4.0), "behind the first"


def test_the_price_of_bytes_keeps_poor_nodes_back() -> None:
    gains = [0.2, 0.4, 0.6] + [0.6 + 1e-4 * count for count in range(1, 30)]
    due_ms = ask(timetable(0.16), 1.0, gains).due_ms
    assert due_ms is not None
    assert ask(timetable(0.16), due_ms + 0.01, gains).count == 3


def test_it_is_silent_where_a_message_costs_more_than_it_brings() -> None:
    """26 bytes take 24 ms by the introduction's 0.91 ms a byte: 0.33 of a step of 72 ms."""
    for gain, goes in ((0.3, False), (0.36, True)):
        departure = ask(timetable(0.8), 1.0, [gain])
        assert (departure.count > 0 or departure.due_ms is not None) is goes
    assert ask(timetable(0.16), 1.0, [0.1]).due_ms is not None, "it costs less on a faster link"


def test_it_learns_from_messages_of_which_nothing_came() -> None:
    table = timetable(0.16)
    assert ask(table, 1.0, [0.1]).due_ms is not None
    for number in range(3):
        table.sent(100 + number, 150.0, STEP_MS * number, 0.9)
        table.committed(STEP_MS * (number + 1), STEP_MS, 1)
    assert ask(table, STEP_MS * 3 + 1.0, [0.1]) == Departure()
    for number in range(4, 7):
        table.committed(STEP_MS * number, STEP_MS, 2)
    assert ask(table, STEP_MS * 6 + 1.0, [0.1]).due_ms is not None, "they did bring something, later"


def test_a_fast_link_needs_no_timetable() -> None:
    assert not timetable(0.0).governs
    assert not timetable(8.0 / 1000.0).governs, "1 Mbps"
    assert timetable(0.16).governs
    assert timetable(0.8).governs


@pytest.mark.parametrize(("opening_ms", "governs"), [(50.0, False), (200.0, False), (530.0, True)])
def test_before_anything_was_heard_the_opening_says_whether_to_be_careful(
    opening_ms: float, governs: bool
) -> None:
    table = UplinkTimetable(600.0, opening_ms)
    assert table.probes is governs, "one message goes at once: a long way looks the same until it is heard"
    assert not table.governs
    table.sent(3, 140.0, 600.0, 0.0)
    assert not table.probes
    assert table.governs is governs


def test_a_long_way_is_not_taken_for_a_slow_link_for_ever() -> None:
    table = UplinkTimetable(400.0, 300.0)
    assert table.probes
    for number in range(5):
        table.committed(STEP_MS * number, STEP_MS, 1)
    table.sent(5, 150.0, 300.0, 1.0)
    assert table.governs
    table.arrived(5, 300.0 + 299.0)
    assert not table.governs
    full = UplinkTimetable(400.0, 300.0)
    for number in range(20):
        full.committed(82.0 * number, STEP_MS, 1)
    full.sent(5, 150.0, 300.0, 1.0)
    full.arrived(5, 300.0 + 299.0)
    assert full.governs, "commits queue on the way back: that is where the time went"


def test_where_the_link_is_in_doubt_a_message_goes_now_and_then() -> None:
    poor = [0.2]
    silent = timetable(0.8, commits=PROBED_EVERY - 1, heard=False)
    assert ask(silent, 1.0, poor) == Departure()
    silent.committed(STEP_MS, STEP_MS, 1)
    due = ask(silent, STEP_MS + 1.0, poor)
    assert due.count or due.due_ms is not None
    silent.sent(1, 130.0, STEP_MS + 1.0, 0.3)
    assert ask(silent, STEP_MS + 2.0, poor) == Departure()
