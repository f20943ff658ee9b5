"""Pacing on a simulated link: a short queue however slow it is, and no waiting where it is fast."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.edge_runtime.uplink_pacing import LEAST_WINDOW, MESSAGE_BYTES, UplinkPacer, worth_sending

STEP_MS = 72.0
DRAFT_MS = 8.5
NODE_BYTES = 2.625


@dataclass
class Link:
    """A first-in first-out link, and a target that says with each step what has come over it."""

    kbps: float
    trip_ms: float
    jitter_ms: float = 0.0
    free_ms: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    queues_ms: list[float] = field(default_factory=list)
    waits_ms: list[float] = field(default_factory=list)
    bytes_sent: float = 0.0

    def send(self, num_bytes: float, end_id: int, now_ms: float) -> None:
        self.queues_ms.append(max(self.free_ms - now_ms, 0.0))
        self.free_ms = max(self.free_ms, now_ms) + num_bytes * 8.0 / self.kbps
        self.arrivals.append((self.free_ms + self.trip_ms / 2.0, end_id))
        self.bytes_sent += num_bytes

    def heard(self, now_ms: float) -> tuple[int, float]:
        """Nodes whose arrival is known at the edge, told by the last step whose commit is there, and the time
        from the last one's arrival to that commit's."""
        step_end = np.floor((now_ms - self.trip_ms / 2.0) / STEP_MS) * STEP_MS
        at, end = max(((at, end) for at, end in self.arrivals if at <= step_end), default=(0.0, 0))
        return end, step_end - at


def run(
    link: Link, until_s: float, pacer: UplinkPacer, settle_s: float = 5.0, from_s: float = 0.0
) -> UplinkPacer:
    """Offer twelve nodes a draft step; about every other target step a miss takes what is not sent."""
    generator = np.random.default_rng(1)
    waiting: list[tuple[float, float]] = []
    known = 0
    sent = link.arrivals[-1][1] if link.arrivals else 0
    for tick in range(int(from_s * 1000.0 / DRAFT_MS), int(until_s * 1000.0 / DRAFT_MS)):
        now_ms = tick * DRAFT_MS
        jitter_ms = generator.exponential(1.0) * link.jitter_ms
        heard, age_ms = link.heard(now_ms - jitter_ms)
        if heard > known:
            known = heard
            pacer.arrived(known, now_ms + jitter_ms - age_ms, STEP_MS)
        if generator.random() < DRAFT_MS / (2.0 * STEP_MS):
            waiting = []
        waiting += [(value, now_ms) for value in 0.6 * generator.dirichlet(np.ones(12))]
        waiting = sorted(waiting, reverse=True)[:100]
        count = pacer.batch([value for value, _ in waiting], NODE_BYTES, now_ms, STEP_MS)
        if count:
            sent += count
            link.send(MESSAGE_BYTES + NODE_BYTES * count, sent, now_ms)
            pacer.sent(sent, count, NODE_BYTES, now_ms)
            link.waits_ms += [now_ms - since for _, since in waiting[:count]]
            waiting = waiting[count:]
        if now_ms < settle_s * 1000.0:
            link.queues_ms.clear()
            link.waits_ms.clear()
            link.bytes_sent = 0.0
    return pacer


@pytest.mark.parametrize("kbps", [20.0, 50.0, 100.0])
@pytest.mark.parametrize("trip_ms", [10.0, 50.0, 200.0])
@pytest.mark.parametrize("jitter_ms", [0.0, 15.0])
def test_the_queue_of_a_slow_link_is_short_and_the_link_is_used(
    kbps: float, trip_ms: float, jitter_ms: float
) -> None:
    link = Link(kbps, trip_ms, jitter_ms)
    run(link, 25.0, UplinkPacer(300.0))
    assert np.mean(link.queues_ms) < 0.8 * STEP_MS
    assert np.percentile(link.queues_ms, 95) < 1.8 * STEP_MS
    assert link.bytes_sent * 8.0 / kbps > 0.4 * 20_000.0


def test_where_a_message_takes_longer_than_a_step_the_queue_is_one_message() -> None:
    link = Link(10.0, 50.0)
    pacer = run(link, 25.0, UplinkPacer(300.0))
    message_ms = pacer.window * 8.0 / 10.0
    assert np.percentile(link.queues_ms, 95) < message_ms
    assert link.bytes_sent > 0.6 * 25_000.0


@pytest.mark.parametrize("trip_ms", [10.0, 50.0, 200.0])
def test_on_a_fast_link_nodes_go_at_once(trip_ms: float) -> None:
    link = Link(100_000.0, trip_ms)
    run(link, 8.0, UplinkPacer(300.0), settle_s=2.0)
    assert max(link.waits_ms) == 0.0
    assert max(link.queues_ms) == 0.0


def test_a_link_that_becomes_faster_is_found_out() -> None:
    link = Link(20.0, 50.0)
    pacer = run(link, 10.0, UplinkPacer(300.0))
    narrow = pacer.window
    assert max(link.waits_ms) > STEP_MS
    link.kbps = 2000.0
    run(link, 40.0, pacer, settle_s=30.0, from_s=10.0)
    assert pacer.window > 2.0 * narrow
    assert max(link.waits_ms) <= DRAFT_MS


def test_what_nothing_is_heard_of_does_not_hold_up_the_rest_for_ever() -> None:
    pacer = UplinkPacer(LEAST_WINDOW)
    assert pacer.batch([0.5] * 10, NODE_BYTES, 0.0, STEP_MS) == 10
    pacer.sent(10, 10, NODE_BYTES, 0.0)
    assert pacer.batch([0.5] * 20, NODE_BYTES, 1.0, STEP_MS) == 0
    assert pacer.batch([0.5] * 20, NODE_BYTES, 5000.0, STEP_MS) > 0
    assert pacer.under_way == 0.0


def test_nothing_is_sent_of_nothing() -> None:
    assert UplinkPacer(1000.0).batch([], NODE_BYTES, 0.0, STEP_MS) == 0


def test_only_what_was_under_way_arrives() -> None:
    pacer = UplinkPacer(1000.0)
    pacer.arrived(7, 3.0, STEP_MS)
    pacer.sent(4, 4, 2.0, 10.0)
    pacer.sent(9, 5, 2.0, 20.0)
    assert pacer.under_way == 2 * MESSAGE_BYTES + 18.0
    pacer.arrived(8, 60.0, STEP_MS)
    assert pacer.under_way == MESSAGE_BYTES + 10.0, "of the second message not all has come"
    assert pacer.queue_ms == 0.0


@given(
    values=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30).map(lambda v: sorted(v, reverse=True)),
    overhead=st.floats(0.0, 200.0),
    cost=st.floats(0.5, 10.0),
)
def test_a_message_has_the_most_value_for_its_bytes(
    values: list[float], overhead: float, cost: float
) -> None:
    def worth(count: int) -> float:
        return sum(values[:count]) / (overhead + cost * count)

    count = worth_sending(values, overhead, cost)
    best = max(worth(n) for n in range(1, len(values) + 1))
    assert worth(count) >= best * (1.0 - 1e-9)


def test_the_dearer_a_message_the_more_goes_with_it() -> None:
    values = [0.5**n for n in range(1, 20)]
    counts = [worth_sending(values, overhead, 2.0) for overhead in (0.0, 10.0, 100.0, 1000.0)]
    assert all(a < b for a, b in itertools.pairwise(counts))
    assert counts[0] == 1
