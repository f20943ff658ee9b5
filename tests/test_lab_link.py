"""The simulated link: when bytes arrive, how many of them there are, and what a loss costs."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from acespec.bench.lab import simulated_link
from acespec.bench.lab.overhead import WireOverhead
from acespec.bench.lab.simulated_link import (
    Charged,
    DirectionTraffic,
    LinkConditions,
    SimulatedChannel,
    SimulatedLink,
)
from acespec.bench.link import SEGMENT_BYTES, DirectionShape
from acespec.bench.virtual_clock import run_virtual

RTT_MS = 100.0
ONE_WAY = 0.050
FRAMED = 14 + 52
"""What a message of one segment has beyond its payload."""


class Losses(random.Random):
    """Says of each segment in turn whether it is lost, then never again."""

    def __init__(self, lost: tuple[bool, ...]) -> None:
        super().__init__()
        self._lost = list(lost)

    def random(self) -> float:
        return 0.0 if self._lost and self._lost.pop(0) else 1.0


def link(*lost: bool, **fields: Any) -> SimulatedLink:
    """A link of ``RTT_MS``; ``lost`` says which segments up are."""
    fields.setdefault("bytes_per_second", math.inf)
    made = SimulatedLink(LinkConditions.symmetric(RTT_MS, loss=0.5 if lost else 0.0, **fields), seed=1)
    made.up._losses = Losses(lost)
    made.down._losses = Losses(())
    return made


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return run_virtual(main)


async def arrivals(carried: SimulatedLink, *messages: tuple[float, int]) -> list[float]:
    """When messages up, sent at ``(second, bytes)``, arrive."""
    channel, times = SimulatedChannel(carried.up.delay), []

    async def send() -> None:
        for at, size in messages:
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            channel.send(size, size)

    sending = asyncio.create_task(send())
    for _, size in messages:
        assert await channel.receive() == size
        times.append(asyncio.get_running_loop().time())
    await sending
    return times


def test_a_message_takes_the_delay_and_leaves_at_the_rate() -> None:
    times = run(arrivals(link(bytes_per_second=1000.0), (0.0, 8), (0.0, 108), (3.0, 8)))
    first = (8 + FRAMED) / 1000.0
    assert times == pytest.approx([first + ONE_WAY, first + 0.174 + ONE_WAY, 3.0 + first + ONE_WAY])


def test_by_payload_only_the_messages_themselves_take_up_the_rate() -> None:
    carried = link(bytes_per_second=1000.0, charged=Charged.PAYLOAD)
    big = 3 * SEGMENT_BYTES
    assert run(arrivals(carried, (0.0, 8), (0.0, big))) == pytest.approx(
        [0.008 + ONE_WAY, 0.008 + big / 1000.0 + ONE_WAY]
    )
    assert carried.up.traffic == DirectionTraffic(2, 8 + big, 8 + FRAMED + big + 14 + 4 * 52)


@pytest.mark.parametrize(("answers", "frames"), [(False, 14), (True, 40)])
@pytest.mark.parametrize("size", [0, 1, SEGMENT_BYTES - 40, SEGMENT_BYTES - 39, 5 * SEGMENT_BYTES])
def test_segments_carry_the_message_and_its_frames(size: int, answers: bool, frames: int) -> None:
    segments = WireOverhead().segments(size, answers)
    assert sum(segments) == size + frames + 52 * len(segments)
    assert all(52 < segment <= SEGMENT_BYTES + 52 for segment in segments)
    assert len(segments) == -(-(size + frames) // SEGMENT_BYTES)


def test_a_message_after_one_that_came_tells_of_flow_control() -> None:
    async def main() -> SimulatedLink:
        carried = link()
        await carried.down.delay(8)
        for _ in range(2):
            await carried.up.delay(8)
        await carried.down.delay(8)
        return carried

    carried = run(main())
    assert carried.up.traffic.wire_bytes == 2 * (8 + FRAMED) + 26, "the first of the two, alone"
    assert carried.down.traffic.wire_bytes == 2 * (8 + FRAMED) + 26 + 52, "and an acknowledgement"


def test_jitter_delays_by_up_to_so_much_and_reorders_nothing() -> None:
    times = run(arrivals(link(jitter_ms=30.0), *[(0.010 * number, 8) for number in range(50)]))
    extra = [time - 0.010 * number - ONE_WAY for number, time in enumerate(times)]
    assert times == sorted(times)
    assert 0.0 <= min(extra) < 0.005
    assert 0.02 < max(extra) <= 0.03 + 1e-9


@pytest.mark.parametrize("trouble", [{"jitter_ms": 20.0}, {"loss": 0.2}])
def test_the_seed_decides_jitter_and_loss(trouble: dict[str, float]) -> None:
    def run_with(seed: int) -> list[float]:
        conditions = LinkConditions.symmetric(RTT_MS, **trouble)
        return run(arrivals(SimulatedLink(conditions, seed), *[(0.1 * n, 8) for n in range(30)]))

    assert run_with(3) == run_with(3)
    assert run_with(3) != run_with(4)


def test_a_lone_lost_segment_comes_after_the_time_out_and_twice_lost_after_twice_that() -> None:
    timeout = RTT_MS / 1000.0 + 0.2
    assert run(arrivals(link(True), (0.0, 8))) == pytest.approx([timeout + ONE_WAY])
    assert run(arrivals(link(True, True), (0.0, 8))) == pytest.approx([timeout + 2 * timeout + ONE_WAY])


def test_what_is_sent_behind_a_lost_segment_reveals_the_loss_and_waits_for_it() -> None:
    carried = link(True)
    # The second arrives at 0.07; its acknowledgement is back at 0.12; a quarter round trip later, 0.145, the
    # first goes out again.
    assert run(arrivals(carried, (0.0, 8), (0.02, 8))) == pytest.approx([0.195, 0.195])
    assert carried.up.traffic.wire_bytes == 3 * (8 + FRAMED)
    assert carried.up.traffic.payload_bytes == 16


def test_what_is_sent_too_late_reveals_nothing() -> None:
    assert run(arrivals(link(True), (0.0, 8), (0.25, 8))) == pytest.approx([0.35, 0.35])


def test_in_a_message_of_many_segments_the_later_ones_reveal_a_loss() -> None:
    size = 3 * SEGMENT_BYTES
    assert run(arrivals(link(False, True), (0.0, size))) == pytest.approx([0.05 + 0.05 + 0.025 + 0.05])
    assert run(arrivals(link(False, False, False, True), (0.0, size))) == pytest.approx([0.3 + 0.05])


def test_the_share_of_losses_is_the_one_asked_for() -> None:
    conditions = LinkConditions.symmetric(0.0, loss=0.1)
    carried = SimulatedLink(conditions, seed=2)
    run(arrivals(carried, *[(1.0 * number, 8) for number in range(3000)]))
    sent_again = carried.up.traffic.wire_bytes / (8 + FRAMED) - 3000
    assert sent_again / 3000 == pytest.approx(0.1 / 0.9, rel=0.15)


def test_an_acknowledgement_travels_with_data_or_after_a_while_alone() -> None:
    async def main(answers_after_s: float) -> tuple[SimulatedLink, float]:
        carried = link()
        await carried.up.delay(8)
        await asyncio.sleep(answers_after_s)
        await carried.down.delay(8)
        await asyncio.sleep(1.0)
        return carried, asyncio.get_running_loop().time()

    quick, _ = run(main(0.030))
    assert quick.down.traffic.wire_bytes == 8 + FRAMED + 26
    assert quick.up.traffic.wire_bytes == 8 + FRAMED + 52  # the answer's own
    slow, _ = run(main(0.050))
    assert slow.down.traffic.wire_bytes == 52 + 8 + FRAMED + 26


def test_long_messages_are_acknowledged_as_they_come() -> None:
    async def main() -> SimulatedLink:
        carried = link()
        await carried.up.delay(5 * SEGMENT_BYTES - 40)
        return carried

    assert run(main()).down.traffic.wire_bytes == 2 * 52


def test_acknowledgements_take_up_the_rate() -> None:
    async def main() -> float:
        carried = link(bytes_per_second=100.0)
        await carried.up.delay(8)  # until 0.79 s
        await asyncio.sleep(0.0401)  # 52 bytes leave from 0.83 to 1.35 s
        await carried.down.delay(8)
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(0.79 + 0.04 + 0.52 + 1.0 + 0.05)


@pytest.mark.parametrize("field", ["loss_up", "loss_down"])
@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_a_loss_is_a_probability(field: str, value: float) -> None:
    shape = DirectionShape()
    with pytest.raises(ValueError, match=field):
        LinkConditions(shape, shape, **{field: value})


def test_the_round_trip_is_shared_by_both_ways() -> None:
    conditions = LinkConditions.symmetric(RTT_MS)
    assert (conditions.up.delay_ms, conditions.down.delay_ms, conditions.rtt_ms) == (50.0, 50.0, 100.0)
    assert conditions.up.bytes_per_second == simulated_link.PAPER_BYTES_PER_SECOND == 12.5e6
