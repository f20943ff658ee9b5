"""Outages on schedule: when they are, what they do to time, and what the relay does in them."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.bench.link import DelayLine, DirectionShape, LinkShape
from acespec.bench.outages import LinkOutages, Outage, OutageSchedule, parse_outage
from acespec.bench.relay import Relay, Traffic
from acespec.errors import AcespecError
from manual_clock import ManualClock

HORIZON_S = 200
"""Whole seconds in which schedules are compared with a list of the seconds that are out."""


@st.composite
def outages(draw: st.DrawFn) -> list[Outage]:
    """A few outages of whole seconds; what comes again takes a third of the time at most."""
    made = []
    for _ in range(draw(st.integers(0, 3))):
        for_s = draw(st.integers(1, 5))
        every_s = draw(st.none() | st.integers(3 * for_s + 1, 40))
        made.append(Outage(draw(st.integers(0, 30)), for_s, every_s))
    return made


def out_seconds(made: list[Outage]) -> set[int]:
    """Every whole second up to the horizon that some outage covers."""
    out: set[int] = set()
    for outage in made:
        begins = range(int(outage.at_s), 2 * HORIZON_S, int(outage.every_s or 2 * HORIZON_S))
        out |= {begin + second for begin in begins for second in range(int(outage.for_s))}
    return out


@given(made=outages(), now=st.integers(0, HORIZON_S), started=st.sampled_from([0, 1000]))
def test_a_schedule_is_the_union_of_its_outages(made: list[Outage], now: int, started: int) -> None:
    out, schedule = out_seconds(made), OutageSchedule(made, started)
    expected = next(second for second in range(now, 3 * HORIZON_S) if second not in out)
    assert schedule.over(started + now) == started + expected
    assert schedule.over(started + now + 0.5) == started + expected + (0.5 if expected == now else 0.0)
    later = [begin for outage in made if (begin := outage.next_begin(now)) > now]
    assert schedule.next_begin(started + now) == min(
        (started + begin for begin in later), default=float("inf")
    )


@given(made=outages(), now=st.integers(0, HORIZON_S), work_s=st.integers(0, 30))
def test_work_stands_still_in_outages(made: list[Outage], now: int, work_s: int) -> None:
    up = [second for second in range(now, 4 * HORIZON_S) if second not in out_seconds(made)]
    finished = OutageSchedule(made).finish(now, work_s)
    assert finished == (up[work_s - 1] + 1 if work_s else up[0])


@given(every_s=st.floats(0.11, 5.0), count=st.integers(1, 10_000))
def test_no_outage_is_missed_where_time_is_rounded(every_s: float, count: int) -> None:
    outage = Outage(0.1, 0.1, every_s)
    begin = OutageSchedule([outage]).next_begin(0.1 + (count - 0.5) * every_s)
    assert begin == pytest.approx(0.1 + count * every_s)
    assert outage.last_begin(begin) == begin
    assert OutageSchedule([outage]).over(begin) > begin


def test_a_segment_waits_for_the_end_of_an_outage_wherever_it_is() -> None:
    line = DelayLine(
        DirectionShape(delay_ms=500.0, bytes_per_second=100.0),
        random.Random(0),
        OutageSchedule([Outage(10.0, 4.0)]),
    )
    assert line.due(0.0, 100) == pytest.approx(1.5)  # long before
    assert line.due(8.8, 100) == pytest.approx(14.0)  # has left, and would arrive in it
    assert line.due(9.9, 100) == pytest.approx(15.4)  # leaves at 14.9: 0.1 s of it before the outage
    assert line.due(20.0, 100) == pytest.approx(21.5)  # long after


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10:2", Outage(10.0, 2.0)), ("0:0.5,30", Outage(0.0, 0.5, 30.0)), ("1.5:2", Outage(1.5, 2.0))],
)
def test_outages_are_read_as_they_are_written(text: str, expected: Outage) -> None:
    assert parse_outage(text) == expected


@pytest.mark.parametrize(
    "text", ["", "10", "10:", "a:2", "10:0", "-1:2", "10:2,", "10:2,2", "1:nan", "1:2,inf"]
)
def test_what_is_no_outage_is_refused_with_the_way_to_write_one(text: str) -> None:
    with pytest.raises(AcespecError, match="write AT:FOR or AT:FOR,EVERY in seconds"):
        parse_outage(text)


def test_outages_that_leave_no_time_are_refused() -> None:
    endless = (Outage(0.0, 2.0, 4.0), Outage(2.0, 2.0, 4.0))
    with pytest.raises(ValueError, match="take 100% of the time"):
        LinkOutages(up=endless)


class Answering:
    """A server that says what it hears."""

    async def __aenter__(self) -> Answering:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.address: tuple[str, int] = self._server.sockets[0].getsockname()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_stalled_direction_delivers_when_its_outage_is_over(direction: str) -> None:
    clock = ManualClock()
    outage = (Outage(1.0, 5.0),)
    outages = LinkOutages(up=outage) if direction == "up" else LinkOutages(down=outage)
    async with Answering() as target:
        relay = Relay(target.address, LinkShape(), outages=outages, clock=clock)
        reader, writer = await asyncio.open_connection(*await relay.start("127.0.0.1", 0))
        clock.advance_to(2.0)
        writer.write(b"x")
        await clock.timer_set.wait()  # it is in the relay
        clock.timer_set.clear()
        assert clock.next_timer == (6.0 if direction == "up" else 2.0)
        clock.advance_to(clock.next_timer)
        await clock.timer_set.wait()  # the answer is in the relay
        assert clock.next_timer == 6.0
        clock.advance_to(6.0)
        assert await reader.readexactly(1) == b"x"
        writer.close()
        await relay.close()


async def test_a_cut_closes_what_stands_and_refuses_what_comes_until_it_is_over() -> None:
    clock = ManualClock()
    closed: asyncio.Queue[Traffic] = asyncio.Queue()
    outages = LinkOutages(cuts=(Outage(1.0, 5.0, 20.0),))
    async with Answering() as target:
        relay = Relay(target.address, LinkShape(), outages=outages, clock=clock, on_closed=closed.put_nowait)
        address = await relay.start("127.0.0.1", 0)
        for begins in (1.0, 21.0):
            reader, writer = await asyncio.open_connection(*address)
            clock.timer_set.clear()
            writer.write(b"x")
            for _ in range(2):
                await clock.timer_set.wait()
                clock.timer_set.clear()
                clock.advance_to(clock.now + 0.001)
            assert await reader.readexactly(1) == b"x"
            clock.advance_to(begins)
            assert await reader.read() == b""
            assert await closed.get() == Traffic(up=1, down=1)
            writer.close()
            reader, writer = await asyncio.open_connection(*address)
            assert await ended(reader)
            writer.close()
            clock.advance_to(begins + 5.0)
        assert relay.num_connections == 4
        assert relay.traffic == Traffic(up=2, down=2)
        await relay.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the connection ends without a byte."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--outage", "10"], "write AT:FOR"),
        (["--outage", "0:2,4", "--outage-up", "2:2,4"], "take 100% of the time"),
        (["--cut", "0:5,2"], "comes again later"),
    ],
)
def test_the_command_refuses_impossible_outages(arguments: list[str], expected: str) -> None:
    command = [sys.executable, "-m", "acespec", "wan-relay", "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [*command, "--target", "127.0.0.1:1", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert expected in " ".join(done.stderr.split())


async def test_the_command_carries_out_its_schedule_and_each_directions_own_settings() -> None:
    """Cut from its first moment on, for longer than the test: nothing depends on how quick it is."""
    command = [sys.executable, "-m", "acespec", "wan-relay", "--listen", "127.0.0.1:0", "--cut", "0:3600"]
    command += ["--delay-up", "1", "--delay-down", "2", "--jitter-up", "1", "--rate-down", "1Mbps"]
    async with Answering() as target:
        command += ["--target", f"127.0.0.1:{target.address[1]}"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        ready = (await process.stdout.readline()).decode()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(ready.rpartition(":")[2]))
        assert await ended(reader)
        writer.close()
        process.terminate()
        lines = (await process.stdout.read()).decode().splitlines()
        assert json.loads(lines[-1]) == {"total": {"connections": 1, "bytes_up": 0, "bytes_down": 0}}
        assert await process.wait() == 0
