"""The in-process link behaves as a stream does: ordered, delayed without blocking, exact about bytes."""

from __future__ import annotations

import asyncio

import pytest

from acespec.wire import CloudTransport, EdgeTransport, ErrorCode, LinkBytes, SessionError, memory_link
from acespec.wire import verifier_pb2 as pb


def chain(data: bytes) -> pb.EdgeMessage:
    return pb.EdgeMessage(round=data)


def verdict(data: bytes) -> pb.CloudMessage:
    return pb.CloudMessage(verdict_token=data)


class Gates:
    """A delay hook whose calls wait until the test opens them, one by one and in any order."""

    def __init__(self) -> None:
        self._entered = asyncio.Semaphore(0)
        self.gates: list[asyncio.Event] = []
        self.sizes: list[int] = []

    async def __call__(self, num_bytes: int) -> None:
        self.sizes.append(num_bytes)
        gate = asyncio.Event()
        self.gates.append(gate)
        self._entered.release()
        await gate.wait()

    async def entered(self, count: int) -> None:
        for _ in range(count):
            await self._entered.acquire()


async def refused(error: SessionError, edge: EdgeTransport) -> None:
    """Both calls of the edge now raise this error, however often."""
    for _ in range(2):
        with pytest.raises(SessionError) as raised:
            await edge.receive()
        assert (raised.value.code, raised.value.message) == (error.code, error.message)
        with pytest.raises(SessionError) as raised:
            await edge.send(chain(b""))
        assert (raised.value.code, raised.value.message) == (error.code, error.message)


async def test_messages_arrive_and_bytes_are_counted_where_the_edge_sees_them() -> None:
    edge: EdgeTransport
    cloud: CloudTransport
    edge, cloud = memory_link()
    await edge.send(chain(b"one"))
    await edge.send(chain(b"three"))
    assert await cloud.receive() == chain(b"one")
    assert await cloud.receive() == chain(b"three")
    assert edge.traffic == LinkBytes(up=5 + 7, messages_up=2)

    await cloud.send(verdict(b"verdict"))
    assert edge.traffic.down == 0
    assert await edge.receive() == verdict(b"verdict")
    assert edge.traffic == LinkBytes(up=12, down=9, messages_up=2, messages_down=1)


async def test_ends_share_no_object() -> None:
    edge, cloud = memory_link()
    sent = pb.EdgeMessage(decode=pb.Decode(count=3))
    await edge.send(sent)
    sent.decode.count = 4
    received = await cloud.receive()
    assert received is not None
    assert received.decode.count == 3


async def test_senders_do_not_wait_and_nothing_overtakes() -> None:
    delay = Gates()
    edge, cloud = memory_link(delay)
    for data in (b"a", b"b", b"c"):
        await edge.send(chain(data))
    await delay.entered(3)  # all under way together
    receiving = asyncio.create_task(cloud.receive())
    delay.gates[2].set()
    delay.gates[1].set()
    await asyncio.wait({receiving}, timeout=0)
    assert not receiving.done()
    delay.gates[0].set()
    assert await receiving == chain(b"a")
    assert await cloud.receive() == chain(b"b")
    assert await cloud.receive() == chain(b"c")


async def test_a_delay_is_told_the_bytes_that_are_counted() -> None:
    up, down = Gates(), Gates()
    edge, cloud = memory_link(up_delay=up, down_delay=down)
    await edge.send(chain(b"abc"))
    await edge.send(chain(b""))
    await cloud.send(verdict(b"longer than the others"))
    await up.entered(2)
    await down.entered(1)
    down.gates[0].set()
    await edge.receive()
    assert sum(up.sizes) == edge.traffic.up
    assert up.sizes[0] == up.sizes[1] + 3
    assert down.sizes == [edge.traffic.down]


async def test_each_direction_has_its_own_delay() -> None:
    up, down = Gates(), Gates()
    edge, cloud = memory_link(up_delay=up, down_delay=down)
    await edge.send(chain(b"up"))
    await cloud.send(verdict(b"down"))
    await up.entered(1)
    await down.entered(1)
    down.gates[0].set()
    assert await edge.receive() == verdict(b"down")
    up.gates[0].set()
    assert await cloud.receive() == chain(b"up")
    assert (len(up.gates), len(down.gates)) == (1, 1)


async def test_a_delay_for_one_direction_replaces_the_common_one() -> None:
    both, up = Gates(), Gates()
    edge, cloud = memory_link(both, up_delay=up)
    await edge.send(chain(b"up"))
    await up.entered(1)
    await cloud.send(verdict(b"down"))
    await both.entered(1)
    assert (len(up.gates), len(both.gates)) == (1, 1)


@pytest.mark.parametrize("delayed", [False, True])
async def test_the_clouds_error_reaches_the_edge_behind_its_messages(delayed: bool) -> None:
    async def pass_control(_: int) -> None:
        await asyncio.sleep(0)

    edge, cloud = memory_link(pass_control if delayed else None)
    error = SessionError(ErrorCode.FAILED_PRECONDITION, "another model is served: use --model x")
    await cloud.send(verdict(b"last"))
    await cloud.close(error)
    assert await edge.receive() == verdict(b"last")
    await refused(error, edge)


async def test_an_error_under_way_is_not_known_yet() -> None:
    delay = Gates()
    edge, cloud = memory_link(down_delay=delay)
    await cloud.send(verdict(b"last"))
    await cloud.close(SessionError(ErrorCode.INTERNAL, "broken"))
    await edge.send(chain(b"still fine"))
    await delay.entered(1)
    delay.gates[0].set()
    assert await edge.receive() == verdict(b"last")
    with pytest.raises(SessionError, match="broken"):
        await edge.receive()
    with pytest.raises(SessionError, match="broken"):
        await edge.send(chain(b""))


async def test_a_clean_end_is_an_error_to_an_edge_that_waits() -> None:
    edge, cloud = memory_link()
    await cloud.close()
    await refused(SessionError(ErrorCode.UNAVAILABLE, "the server ended the session; open another"), edge)


async def test_the_cloud_reads_what_was_sent_before_the_edge_closed() -> None:
    edge, cloud = memory_link()
    await edge.send(chain(b"last"))
    await edge.close()
    await edge.close()
    assert await cloud.receive() == chain(b"last")
    assert await cloud.receive() is None
    assert await cloud.receive() is None
    with pytest.raises(SessionError, match="the edge closed the session"):
        await cloud.send(verdict(b""))


async def test_closing_wakes_an_edge_that_waits() -> None:
    edge, _ = memory_link()
    receiving = asyncio.create_task(edge.receive())
    await asyncio.sleep(0)
    await edge.close()
    with pytest.raises(SessionError, match="this side closed"):
        await receiving
    await refused(SessionError(ErrorCode.UNAVAILABLE, "this side closed the session; open another"), edge)


async def test_closing_after_the_server_ended_keeps_the_servers_reason() -> None:
    edge, cloud = memory_link()
    error = SessionError(ErrorCode.INVALID_ARGUMENT, "seq 3 was expected, not 5")
    await cloud.close(error)
    await edge.close()
    await refused(error, edge)


async def test_a_cancelled_receive_loses_nothing() -> None:
    edge, cloud = memory_link()
    receiving = asyncio.create_task(edge.receive())
    await asyncio.sleep(0)
    receiving.cancel()
    await asyncio.wait({receiving})
    await cloud.send(verdict(b"kept"))
    assert await edge.receive() == verdict(b"kept")


async def test_a_broken_delay_fails_the_receiver() -> None:
    async def broken(_: int) -> None:
        raise RuntimeError("the hook is broken")

    edge, cloud = memory_link(broken)
    await edge.send(chain(b""))
    with pytest.raises(RuntimeError, match="the hook is broken"):
        await cloud.receive()
