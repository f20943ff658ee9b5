"""How long the edge waits for a verifier that is busy, silent or gone, and what it tells of that."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from acespec.edge_runtime.drafter import Chain
from acespec.edge_runtime.outage import LinkChange, OnOutage, OutageError, OutageSettings
from acespec.edge_runtime.session import EdgeSession
from acespec.wire import (
    AcceptanceMode,
    Busy,
    ErrorCode,
    Open,
    SessionError,
    TokenVerdict,
)
from scripted_server import (
    ROUND,
    VERDICT,
    Server,
    one_round,
    opened,
    play,
)


def noting_its_end(ended_s: list[float]) -> Callable[[EdgeSession], Awaitable[None]]:
    """An edge that does one round, and writes down when that came to an end, in whichever way."""

    async def edge(session: EdgeSession) -> None:
        try:
            await one_round(session)
        finally:
            ended_s.append(asyncio.get_running_loop().time())

    return edge


def test_what_a_busy_server_did_not_take_is_sent_again_when_it_says() -> None:
    times_s: list[float] = []

    async def server(streams: Server) -> None:
        def note() -> None:
            times_s.append(asyncio.get_running_loop().time())

        stream = await streams.stream()
        opening = await stream.receive()
        assert await stream.receive() == ROUND
        await stream.send(Busy(1000))
        note()
        assert await stream.receive() == opening
        note()
        assert await stream.receive() == ROUND, "it was dropped with the Open before it"
        await stream.send(opened(0), Busy(3000))
        assert await stream.receive() == ROUND
        note()
        await stream.send(VERDICT)

    session, _ = play(one_round, server, jitter=0.75)
    assert [b - a for a, b in pairwise(times_s)] == pytest.approx([1.1, 3.3]), "a tenth more: jitter 0.75"
    assert session.statistics.busy == 2
    assert session.statistics.reconnects == 0


def test_a_server_without_room_for_too_long_is_given_up() -> None:
    async def server(streams: Server) -> None:
        stream = await streams.stream()
        while True:
            await stream.receive()
            await stream.receive()
            await stream.send(Busy(10_000))

    with pytest.raises(SessionError, match="without room for 60 s") as caught:
        play(one_round, server, outage=OutageSettings(timeout_s=60.0))
    assert caught.value.code is ErrorCode.RESOURCE_EXHAUSTED


def test_a_busy_server_is_not_waited_for_beyond_the_outage_that_is_borne() -> None:
    given_up_s: list[float] = []

    async def server(streams: Server) -> None:
        stream = await streams.stream()
        while True:
            await stream.receive()
            await stream.receive()
            await stream.send(Busy(600_000))

    with pytest.raises(SessionError, match="without room for 60 s"):
        play(noting_its_end(given_up_s), server, outage=OutageSettings(timeout_s=60.0))
    assert given_up_s == [pytest.approx(60.0, abs=1.0)]


def test_silence_counts_as_loss_and_is_met_with_growing_patience() -> None:
    async def server(streams: Server) -> None:
        for _ in range(3):
            await streams.stream()
        last = await streams.stream()
        assert isinstance(await last.receive(), Open)
        await last.send(opened(3), VERDICT)

    session, streams = play(one_round, server, jitter=0.0)
    assert [b - a for a, b in pairwise(streams.attempts_s)] == pytest.approx([10.0, 20.0, 40.0])
    assert session.statistics.outage_ms == pytest.approx(60_000.0), "all but the first 10 s"


async def nothing(_: Server) -> None:
    """A server that is there and says nothing of its own accord."""


@pytest.mark.parametrize(
    ("settings", "waited_s"),
    [
        (OutageSettings(OnOutage.WAIT, timeout_s=30.0), 30.0),
        (OutageSettings(OnOutage.DRAFT, timeout_s=30.0), 30.0),
        (OutageSettings(OnOutage.FAIL, timeout_s=30.0), 0.0),
    ],
)
def test_an_outage_ends_the_session_when_its_time_is_over(settings: OutageSettings, waited_s: float) -> None:
    ended_s: list[float] = []

    async def server(streams: Server) -> None:
        stream = await streams.stream()
        await stream.send(opened(0))
        await asyncio.sleep(7.0)
        streams.refuses = True
        await stream.cut()

    with pytest.raises(OutageError):
        play(noting_its_end(ended_s), server, outage=settings)
    assert ended_s == [pytest.approx(7.0 + waited_s)]


def test_a_verifier_never_reached_is_given_up_earlier_however_often_it_is_tried() -> None:
    server = Server(AcceptanceMode.COUPLED)
    server.refuses = True
    with pytest.raises(OutageError, match=r"^no verifier answers \(tried for 10 s\)$"):
        play(one_round, nothing, jitter=0.999, scripted=server)
    tried = server.attempts_s
    gaps = [b - a for a, b in pairwise(tried)]
    assert gaps == pytest.approx([0.1998 * 2**n for n in range(len(gaps))])
    assert tried[-1] < 10.0
    assert len(tried) == 6


def test_streams_that_come_and_go_without_an_answer_are_one_outage() -> None:
    async def server(streams: Server) -> None:
        epoch = 0
        while True:
            stream = await streams.stream()
            await stream.send(opened(epoch))
            await asyncio.sleep(0.001)
            await stream.cut()
            epoch += 1

    changes: list[LinkChange] = []
    said = "the link was cut, and for 100 s it gave no answer again"
    with pytest.raises(OutageError, match=f"^{said}$"):
        play(one_round, server, outage=OutageSettings(timeout_s=100.0), on_change=changes.append)
    assert changes == [LinkChange(False, "the link was cut; trying again for 100 s")]


async def two_rounds(session: EdgeSession) -> None:
    await one_round(session)
    await session.send_round(Chain())
    await session.receive_verdict()


def test_an_outage_is_told_once_and_its_end_with_the_next_answer() -> None:
    changes: list[LinkChange] = []

    async def server(streams: Server) -> None:
        first = await streams.stream()
        await first.send(opened(0), VERDICT)
        for _ in range(3):  # the opening, and both rounds
            await first.receive()
        streams.refuses = True
        await first.cut()
        await asyncio.sleep(30.0)
        assert changes == [LinkChange(False, "the link was cut; trying again for 120 s")]
        streams.refuses = False
        second = await streams.stream()
        await second.send(opened(1))
        assert len(changes) == 1, "a server that answers nothing is not back"
        await second.send(TokenVerdict(1, 0, 6))

    play(two_rounds, server, on_change=changes.append)
    assert len(changes) == 2
    assert changes[1].is_up
    assert re.fullmatch(r"the verifier answers, after \d+ s", changes[1].said)


def test_a_verifier_lost_behind_the_first_answer_is_not_called_a_wrong_address() -> None:
    async def server(streams: Server) -> None:
        first = await streams.stream()
        await first.send(opened(0), VERDICT)
        for _ in range(3):  # the opening, and both rounds
            await first.receive()
        streams.refuses = True
        await first.cut()

    said = "the link was cut, and for 4 s it gave no answer again; the text so far stands"
    with pytest.raises(OutageError, match=f"^{said}$"):
        play(two_rounds, server, outage=OutageSettings(timeout_s=4.0))
