"""The wide-area relay: bytes and order untouched, time as the link says, by a clock moved by hand."""

from __future__ import annotations

import asyncio
import math
import random
import re
import signal
import socket
import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.bench.link import SEGMENT_BYTES, DelayLine, DirectionShape, LinkShape
from acespec.bench.pipe import MAX_HELD_BYTES, Pipe
from acespec.bench.relay import Relay, Traffic
from manual_clock import ManualClock


class RecordingEnd:
    """Both ends of a pipe: what came out and when, and whether the source may send."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.arrivals: list[tuple[float, bytes]] = []
        self.ended_at: float | None = None
        self.closed = False
        self.reading = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def write(self, data: bytes) -> None:
        assert self.ended_at is None
        self.arrivals.append((self.clock.now, data))

    def write_eof(self) -> None:
        self.ended_at = self.clock.now

    def close(self) -> None:
        self.closed = True

    @property
    def received(self) -> bytes:
        return b"".join(data for _, data in self.arrivals)


def make_pipe(shape: DirectionShape, seed: int = 0) -> tuple[ManualClock, RecordingEnd, Pipe]:
    clock = ManualClock()
    end = RecordingEnd(clock)
    return clock, end, Pipe(clock, DelayLine(shape, random.Random(seed)), end, end, lambda: None)


@given(
    chunks=st.lists(
        st.tuples(st.floats(0.0, 0.2), st.integers(1, 4 * SEGMENT_BYTES)), min_size=1, max_size=20
    ),
    delay_ms=st.floats(0.0, 300.0),
    jitter_ms=st.floats(0.0, 50.0),
    bytes_per_second=st.sampled_from([math.inf, 1e6, 6250.0]),
    seed=st.integers(0, 1000),
)
def test_bytes_come_out_whole_in_order_and_never_early(
    chunks: list[tuple[float, int]], delay_ms: float, jitter_ms: float, bytes_per_second: float, seed: int
) -> None:
    clock, end, pipe = make_pipe(DirectionShape(delay_ms, jitter_ms, bytes_per_second), seed)
    stream = random.Random(seed).randbytes(sum(size for _, size in chunks))
    sent: list[tuple[float, int]] = []  # (when, stream offset after it)
    offset = 0
    for pause, size in chunks:
        clock.advance_to(clock.now + pause)
        pipe.feed(stream[offset : offset + size])
        offset += size
        sent.append((clock.now, offset))
    pipe.feed_end()
    clock.advance_to(1e9)

    assert end.received == stream
    assert pipe.bytes_in == len(stream)
    assert end.ended_at is not None
    assert end.ended_at >= end.arrivals[-1][0]
    offset = 0
    for arrived, data in end.arrivals:
        offset += len(data)
        entered = next(when for when, after in sent if offset <= after)
        least = entered + delay_ms / 1000.0 + len(data) / bytes_per_second
        assert arrived >= least - 1e-9
        if math.isinf(bytes_per_second):
            assert arrived <= max(when for when, _ in sent) + (delay_ms + jitter_ms) / 1000.0 + 1e-9


def test_a_rate_limit_serialises_segment_after_segment() -> None:
    clock, end, pipe = make_pipe(DirectionShape(delay_ms=100.0, bytes_per_second=14480.0))
    pipe.feed(bytes(3 * SEGMENT_BYTES))  # 0.1 s each at ten segments a second
    clock.advance_to(0.35)
    pipe.feed(bytes(SEGMENT_BYTES // 2))  # the link is idle again: leaves at 0.35 + 0.05
    clock.advance_to(10.0)
    assert [when for when, _ in end.arrivals] == pytest.approx([0.2, 0.3, 0.4, 0.5])


def test_without_jitter_every_byte_is_late_by_exactly_the_delay() -> None:
    clock, end, pipe = make_pipe(DirectionShape(delay_ms=25.0))
    for when in (0.0, 0.010, 0.020):
        clock.advance_to(when)
        pipe.feed(b"x")
    clock.advance_to(0.0249)
    assert end.arrivals == []
    clock.advance_to(1.0)
    assert [when for when, _ in end.arrivals] == pytest.approx([0.025, 0.035, 0.045])


def test_jitter_is_drawn_and_differs() -> None:
    line = DelayLine(DirectionShape(delay_ms=10.0, jitter_ms=5.0), random.Random(3))
    late = [line.due(now, 1) - now for now in range(50)]
    assert min(late) >= 0.010
    assert max(late) <= 0.015
    assert len(set(late)) == 50


def test_the_sender_waits_while_too_much_is_held_back() -> None:
    clock, end, pipe = make_pipe(DirectionShape(delay_ms=1000.0))
    pipe.feed(bytes(MAX_HELD_BYTES))
    assert end.reading
    pipe.feed(b"x")
    assert not end.reading
    clock.advance_to(1.0)
    assert end.reading
    pipe.sink_full(True)
    assert not end.reading
    pipe.sink_full(False)
    assert end.reading


def test_what_a_lost_source_had_sent_still_arrives_before_the_close() -> None:
    clock, end, pipe = make_pipe(DirectionShape(delay_ms=50.0))
    pipe.feed(b"last words")
    pipe.source_lost()
    assert not end.closed
    clock.advance_to(0.049)
    assert (end.received, end.closed) == (b"", False)
    clock.advance_to(0.05)
    assert (end.received, end.closed) == (b"last words", True)


def test_a_source_lost_after_its_end_closes_the_sink() -> None:
    clock, end, pipe = make_pipe(DirectionShape())
    pipe.feed_end()
    clock.advance_to(0.0)
    assert not end.closed
    pipe.source_lost()
    assert end.closed


def test_a_lost_sink_drops_what_is_under_way_and_lets_the_source_send() -> None:
    clock, end, pipe = make_pipe(DirectionShape(delay_ms=50.0))
    pipe.feed(bytes(MAX_HELD_BYTES + 1))
    assert not end.reading
    pipe.sink_lost()
    assert end.reading
    pipe.feed(b"more")
    clock.advance_to(1.0)
    assert end.arrivals == []


@pytest.mark.parametrize(
    "bad", [{"delay_ms": -1.0}, {"delay_ms": math.nan}, {"jitter_ms": math.inf}, {"bytes_per_second": 0.0}]
)
def test_an_impossible_link_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        DirectionShape(**bad)


# --- real sockets on the loopback interface -----------------------------------------------------------------


class EchoServer:
    """Sends back what it receives, then closes when the client has ended."""

    async def __aenter__(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return host, port

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()


async def send_in_chunks(writer: asyncio.StreamWriter, stream: bytes, seed: int) -> None:
    chunks = random.Random(seed)
    offset = 0
    while offset < len(stream):
        size = chunks.choice((1, 7, SEGMENT_BYTES, 50_000))
        writer.write(stream[offset : offset + size])
        await writer.drain()
        offset += size
    writer.write_eof()


@pytest.mark.parametrize(
    "shape",
    [
        DirectionShape(),
        DirectionShape(delay_ms=2.0, jitter_ms=2.0),
        DirectionShape(delay_ms=1.0, bytes_per_second=2e7),
    ],
)
async def test_a_stream_through_the_relay_is_unchanged_and_counted(shape: DirectionShape) -> None:
    stream = random.Random(1).randbytes(3 << 20)  # three times what a direction may hold back
    closed: asyncio.Queue[Traffic] = asyncio.Queue()
    async with EchoServer() as target:
        relay = Relay(target, LinkShape(shape, shape), on_closed=closed.put_nowait)
        reader, writer = await asyncio.open_connection(*await relay.start("127.0.0.1", 0))
        sending = asyncio.create_task(send_in_chunks(writer, stream, seed=2))
        assert await reader.read() == stream  # to the end: the half-closed direction stayed open until then
        await sending
        writer.close()
        assert await closed.get() == Traffic(up=len(stream), down=len(stream))
        assert relay.traffic == Traffic(up=len(stream), down=len(stream))
        await relay.close()


async def test_a_round_trip_takes_the_links_time_by_the_relays_clock() -> None:
    clock = ManualClock()
    shape = LinkShape(DirectionShape(delay_ms=30.0), DirectionShape(delay_ms=20.0))
    async with EchoServer() as target:
        relay = Relay(target, shape, clock=clock)
        reader, writer = await asyncio.open_connection(*await relay.start("127.0.0.1", 0))
        answer = asyncio.create_task(reader.readexactly(4))
        writer.write(b"ping")
        await clock.timer_set.wait()  # the bytes are in the relay
        clock.timer_set.clear()
        clock.advance_to(0.0299)
        assert not clock.timer_set.is_set()
        clock.advance_to(0.030)  # out towards the target, which echoes them
        await clock.timer_set.wait()
        clock.advance_to(0.0499)
        assert not answer.done()
        clock.advance_to(0.050)
        assert await answer == b"ping"
        writer.close()
        await relay.close()


async def test_a_target_that_refuses_closes_the_client_and_spares_the_relay() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connecting to it is refused
        relay = Relay(taken.getsockname(), LinkShape())
        address = await relay.start("127.0.0.1", 0)
        for _ in range(2):
            reader, writer = await asyncio.open_connection(*address)
            assert await reader.read() == b""
            writer.close()
        await relay.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection by a TCP reset."""
    linger_zero = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_zero)
    writer.transport.abort()


async def test_a_client_reset_after_its_end_is_noticed_when_its_target_closes() -> None:
    target_saw_the_end = asyncio.Event()
    client_was_reset = asyncio.Event()
    closed: asyncio.Queue[Traffic] = asyncio.Queue()

    async def close_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b"x"
        target_saw_the_end.set()
        await client_was_reset.wait()
        writer.close()

    server = await asyncio.start_server(close_late, "127.0.0.1", 0)
    relay = Relay(server.sockets[0].getsockname(), LinkShape(), on_closed=closed.put_nowait)
    _, writer = await asyncio.open_connection(*await relay.start("127.0.0.1", 0))
    writer.write(b"x")
    writer.write_eof()
    await target_saw_the_end.wait()
    reset(writer)
    client_was_reset.set()
    assert await closed.get() == Traffic(up=1, down=0)
    await relay.close()
    server.close()


async def test_a_client_that_vanishes_closes_its_target_only() -> None:
    target_saw_the_end = asyncio.Event()

    async def wait_for_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            pass
        target_saw_the_end.set()
        writer.close()

    server = await asyncio.start_server(wait_for_end, "127.0.0.1", 0)
    relay = Relay(server.sockets[0].getsockname(), LinkShape(DirectionShape(1.0), DirectionShape(1.0)))
    address = await relay.start("127.0.0.1", 0)
    _, staying = await asyncio.open_connection(*address)
    _, vanishing = await asyncio.open_connection(*address)
    vanishing.write(b"x")
    await vanishing.drain()
    reset(vanishing)
    await target_saw_the_end.wait()
    assert not staying.is_closing()
    staying.write(b"still here")
    await staying.drain()
    staying.close()
    await relay.close()
    server.close()


def test_the_command_reports_where_it_listens_and_what_each_connection_carried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target:
        host, port = target.getsockname()
        command = [sys.executable, "-m", "acespec", "wan-relay", "--listen", "127.0.0.1:0"]
        command += ["--target", f"{host}:{port}", "--rtt", "2", "--rate", "100Mbps"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            ready = re.fullmatch(r"acespec wan-relay: ready on ([\d.]+):(\d+)\n", process.stdout.readline())
            assert ready
            with socket.create_connection((ready[1], int(ready[2]))) as client:
                client.sendall(b"question")
                served, _ = target.accept()
                with served:
                    assert served.recv(8, socket.MSG_WAITALL) == b"question"
                    served.sendall(b"answer")
                    assert client.recv(6, socket.MSG_WAITALL) == b"answer"
            assert process.stdout.readline() == '{"closed": {"bytes_up": 8, "bytes_down": 6}}\n'
            process.send_signal(signal.SIGTERM)
            total = '{"total": {"connections": 1, "bytes_up": 8, "bytes_down": 6}}\n'
            assert process.stdout.read() == total
            assert process.wait() == 0


def test_the_command_says_in_one_line_that_its_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "acespec", "wan-relay", "--target", "127.0.0.1:1"]
        result = subprocess.run(
            [*command, "--listen", f"127.0.0.1:{port}"], capture_output=True, text=True, check=False
        )
    assert result.returncode == 1
    assert result.stderr.startswith(f"acespec: error: cannot listen on 127.0.0.1:{port}: ")
    assert result.stderr.count("\n") == 1


async def test_a_server_that_speaks_first_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its words are there before the relay has laid its pipes."""
    loop = asyncio.get_running_loop()
    greeted = asyncio.Event()
    connect = loop.create_connection

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        greeted.set()

    async def connect_late(*arguments: Any) -> Any:
        connected = await connect(*arguments)
        await greeted.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        return connected

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    relay = Relay(server.sockets[0].getsockname(), LinkShape())
    address = await relay.start("127.0.0.1", 0)
    monkeypatch.setattr(loop, "create_connection", connect_late)
    reader, writer = await asyncio.open_connection(*address)
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await relay.close()
    server.close()
