"""What the edge says on each stream, when, and when it gives up: against a server told what to do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from acespec.bench.virtual_clock import run_virtual
from acespec.edge_runtime.drafter import Chain
from acespec.edge_runtime.outage import LinkChange, OnOutage, OutageError, OutageSettings, ignore_change
from acespec.edge_runtime.request import GenerationRequest
from acespec.edge_runtime.session import EdgeSession, SessionSettings
from acespec.edge_runtime.statistics import Statistics
from acespec.wire import (
    AcceptanceMode,
    Busy,
    CloudMessage,
    Codec,
    Commit,
    Decode,
    EdgeMessage,
    EdgeTransport,
    ErrorCode,
    MoreDraws,
    MoreTarget,
    Open,
    Opened,
    PrefixCheck,
    RejectVerdict,
    Reset,
    ResetReason,
    Resume,
    Round,
    SessionError,
    TargetDraws,
    TokenVerdict,
    memory_link,
)
from acespec.wire.memory import MemoryCloud

VOCAB = 8
PROMPT = (1, 2)
ID = b"the session"
CUT = SessionError(ErrorCode.UNAVAILABLE, "the link was cut")
DRAWS = TargetDraws(16, 0, (3, 3), (2**15, 2**15))


def opened(epoch: int, pad_sizes: bool = False) -> Opened:
    return Opened(ID, epoch, "table", "f", max_context=64, max_chain=63, pad_sizes=pad_sizes)


def forgotten(epoch: int) -> Reset:
    return Reset(epoch, ResetReason.UNKNOWN_SESSION)


class Server:
    """Takes streams, one after the other, and does with them what the test says (a ``Connector``)."""

    def __init__(self, mode: AcceptanceMode) -> None:
        self.codec = Codec(VOCAB, mode)
        self.attempts_s: list[float] = []
        self.refuses = False
        self._links: asyncio.Queue[MemoryCloud] = asyncio.Queue()

    async def __call__(self, timeout_s: float) -> EdgeTransport:
        assert timeout_s > 0.0
        self.attempts_s.append(asyncio.get_running_loop().time())
        if self.refuses:
            raise SessionError(ErrorCode.UNAVAILABLE, "no verifier answers")
        edge, cloud = memory_link()
        self._links.put_nowait(cloud)
        return edge

    async def stream(self) -> Stream:
        """The next stream."""
        return Stream(await self._links.get(), self.codec)


class Stream:
    """One stream as the server sees it."""

    def __init__(self, link: MemoryCloud, codec: Codec) -> None:
        self.link = link
        self.sizes: list[int] = []
        self._codec = codec

    async def receive(self) -> EdgeMessage:
        message = await self.link.receive()
        assert message is not None
        self.sizes.append(message.ByteSize())
        return self._codec.decode_edge(message)

    async def send(self, *messages: CloudMessage) -> None:
        for message in messages:
            await self.link.send(self._codec.encode_cloud(message))

    async def cut(self) -> None:
        await self.link.close(CUT)


def play(
    edge: Callable[[EdgeSession], Awaitable[object]],
    server: Callable[[Server], Awaitable[object]],
    mode: AcceptanceMode = AcceptanceMode.COUPLED,
    outage: OutageSettings | None = None,
    jitter: float = 0.5,
    pad_sizes: bool = False,
    scripted: Server | None = None,
    on_change: Callable[[LinkChange], object] = ignore_change,
) -> tuple[EdgeSession, Server]:
    """Let both sides play their parts to the end, in simulated time; every random number is ``jitter``.

    ``scripted`` is the server to take, by default a new one that takes all streams.
    """
    scripted = scripted or Server(mode)

    async def main() -> tuple[EdgeSession, Server]:
        session = EdgeSession(
            scripted,
            GenerationRequest(PROMPT, (), max_new_tokens=20, mode=mode),
            VOCAB,
            Statistics(),
            SessionSettings(outage=outage or OutageSettings(), pad_sizes=pad_sizes),
            jitter=lambda: jitter,
            on_change=on_change,
        )
        serving = asyncio.ensure_future(server(scripted))
        try:
            await edge(session)
            await serving
        finally:
            serving.cancel()
            await session.connection.close()
        return session, scripted

    return run_virtual(main())


async def one_round(session: EdgeSession) -> None:
    """Open, send an empty chain, commit what comes back."""
    await session.open()
    await session.send_round(Chain())
    verdict = (await session.receive_verdict()).verdict
    assert isinstance(verdict, TokenVerdict)
    session.commit([verdict.next_token])


def check_of(*tokens: int) -> int:
    check = PrefixCheck()
    check.update(tokens)
    return check.value


ROUND = Round(0, check_of(*PROMPT), ())
VERDICT = TokenVerdict(0, 0, 5)


def test_a_lost_stream_is_resumed_and_the_round_sent_again() -> None:
    async def server(streams: Server) -> None:
        first = await streams.stream()
        opening = await first.receive()
        assert isinstance(opening, Open)
        assert (opening.epoch, opening.committed) == (0, PROMPT)
        assert await first.receive() == ROUND
        await first.send(opened(0))
        await first.cut()
        second = await streams.stream()
        assert await second.receive() == Resume(ID, 1, committed=2)
        assert await second.receive() == ROUND
        await second.cut()
        third = await streams.stream()
        assert await third.receive() == Resume(ID, 2, committed=2)
        assert await third.receive() == ROUND
        await third.send(opened(2), VERDICT)

    session, _ = play(one_round, server)
    assert session.committed == [*PROMPT, 5]
    assert session.statistics.reconnects == 2


def test_a_session_never_opened_is_opened_again() -> None:
    async def server(streams: Server) -> None:
        first = await streams.stream()
        opening = await first.receive()
        await first.cut()
        second = await streams.stream()
        again = await second.receive()
        assert isinstance(opening, Open)
        assert isinstance(again, Open)
        assert (opening.epoch, again.epoch) == (0, 1)
        assert again.committed == PROMPT
        assert await second.receive() == ROUND
        await second.send(opened(1), VERDICT)

    assert play(one_round, server)[0].committed == [*PROMPT, 5]


def test_a_forgotten_session_begins_anew_with_all_that_is_committed() -> None:
    """Over the same stream, under its epoch; the resampled token needs no other mention."""

    async def edge(session: EdgeSession) -> None:
        await one_round(session)
        session.commit([6], resampled=True)
        await session.send_round(Chain())
        await session.receive_verdict()
        session.commit([7])
        await session.send_round(Chain())

    async def server(streams: Server) -> None:
        first = await streams.stream()
        await first.receive()
        await first.receive()
        await first.send(opened(0), VERDICT)
        assert await first.receive() == Round(1, check_of(1, 2, 5, 6), (), resampled=6)
        await first.cut()
        second = await streams.stream()
        assert await second.receive() == Resume(ID, 1, committed=4)
        assert await second.receive() == Round(1, check_of(1, 2, 5, 6), (), resampled=6)
        await second.send(forgotten(1))
        anew = await second.receive()
        assert isinstance(anew, Open)
        assert (anew.epoch, anew.committed, anew.prompt_length) == (1, (1, 2, 5, 6), 2)
        assert await second.receive() == Round(0, check_of(1, 2, 5, 6), ())
        await second.send(opened(1), TokenVerdict(0, 0, 7))
        assert await second.receive() == Round(1, check_of(1, 2, 5, 6, 7), ())

    play(edge, server, AcceptanceMode.RESIDUAL)


def test_more_draws_are_asked_for_again() -> None:
    async def edge(session: EdgeSession) -> None:
        await session.open()
        await session.send_round(Chain())
        await session.receive_verdict()
        target = await session.more_draws(position=2, first_index=2)
        assert target == TargetDraws(16, 2, (3, 3), (2**15, 2**15))

    async def server(streams: Server) -> None:
        first = await streams.stream()
        await first.receive()
        await first.receive()
        await first.send(opened(0), RejectVerdict(0, 0, DRAWS))
        assert await first.receive() == MoreDraws(2, 2)
        await first.cut()
        second = await streams.stream()
        assert await second.receive() == Resume(ID, 1, committed=2)
        assert await second.receive() == MoreDraws(2, 2)
        await second.send(opened(1), MoreTarget(TargetDraws(16, 2, (3, 3), (2**15, 2**15))))

    play(edge, server, AcceptanceMode.RESIDUAL)


def test_more_draws_of_a_forgotten_session_begin_with_its_round() -> None:
    async def edge(session: EdgeSession) -> None:
        await session.open()
        await session.send_round(Chain())
        await session.receive_verdict()
        verdict = await session.more_draws(position=2, first_index=2)
        assert verdict == RejectVerdict(0, 0, DRAWS), "nothing was committed: the caller begins again from it"
        await session.more_draws(position=2, first_index=2)

    async def server(streams: Server) -> None:
        first = await streams.stream()
        await first.receive()
        await first.receive()
        await first.send(opened(0), RejectVerdict(0, 0, DRAWS))
        await first.receive()
        await first.cut()
        second = await streams.stream()
        await second.receive()
        await second.receive()
        await second.send(forgotten(1))
        assert isinstance(await second.receive(), Open)
        assert await second.receive() == ROUND
        await second.send(opened(1), RejectVerdict(0, 0, DRAWS))
        assert await second.receive() == MoreDraws(2, 2)
        await second.send(MoreTarget(TargetDraws(16, 2, (3,), (2**15,))))

    play(edge, server, AcceptanceMode.RESIDUAL)


@pytest.mark.parametrize("keeps_session", [True, False])
def test_decoding_goes_on_where_it_stopped(keeps_session: bool) -> None:
    async def edge(session: EdgeSession) -> None:
        await session.open()
        await session.decode(5)
        while len(session.committed) < 7:
            session.commit(list((await session.receive_commit()).tokens))

    async def server(streams: Server) -> None:
        first = await streams.stream()
        await first.receive()
        request = Decode(0, check_of(*PROMPT), 5)
        assert await first.receive() == request
        await first.send(opened(0), Commit(2, (3, 4)))
        await first.cut()
        second = await streams.stream()
        assert await second.receive() == Resume(ID, 1, committed=4)
        assert await second.receive() == request
        if not keeps_session:
            await second.send(forgotten(1))
            assert isinstance(await second.receive(), Open)
            assert await second.receive() == Decode(0, check_of(1, 2, 3, 4), 3)
        await second.send(opened(1), Commit(4, (5,)), Commit(5, (6, 7)))

    assert play(edge, server)[0].committed == [1, 2, 3, 4, 5, 6, 7]


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

    async def edge(session: EdgeSession) -> None:
        try:
            await one_round(session)
        finally:
            given_up_s.append(asyncio.get_running_loop().time())

    async def server(streams: Server) -> None:
        stream = await streams.stream()
        while True:
            await stream.receive()
            await stream.receive()
            await stream.send(Busy(600_000))

    with pytest.raises(SessionError, match="without room for 60 s"):
        play(edge, server, outage=OutageSettings(timeout_s=60.0))
    assert given_up_s == [pytest.approx(60.0, abs=1.0)]


def test_a_server_that_shuts_down_is_left_for_the_next() -> None:
    async def server(streams: Server) -> None:
        first = await streams.stream()
        await first.receive()
        await first.receive()
        await first.send(opened(0), Reset(0, ResetReason.SHUTTING_DOWN))
        second = await streams.stream()
        assert await second.receive() == Resume(ID, 1, committed=2)
        assert await second.receive() == ROUND
        await second.send(forgotten(1))
        assert isinstance(await second.receive(), Open)
        assert await second.receive() == ROUND
        await second.send(opened(1), VERDICT)

    assert play(one_round, server)[0].committed == [*PROMPT, 5]


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

    async def edge(session: EdgeSession) -> None:
        try:
            await one_round(session)
        finally:
            ended_s.append(asyncio.get_running_loop().time())

    async def server(streams: Server) -> None:
        stream = await streams.stream()
        await stream.send(opened(0))
        await asyncio.sleep(7.0)
        streams.refuses = True
        await stream.cut()

    with pytest.raises(OutageError):
        play(edge, server, outage=settings)
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


@pytest.mark.parametrize(
    ("answers", "cause"),
    [
        ([opened(1)], "it opened epoch 1 where 0 was due"),
        ([VERDICT], "it answered a request before it opened the session"),
        ([forgotten(0)], "it does not know the session it was asked to open"),
        ([opened(0), opened(0)], "it sent Opened twice"),
    ],
)
def test_a_server_that_breaks_the_rules_of_opening(answers: list[CloudMessage], cause: str) -> None:
    async def server(streams: Server) -> None:
        stream = await streams.stream()
        await stream.send(*answers)

    with pytest.raises(SessionError) as caught:
        play(one_round, server)
    assert caught.value.code is ErrorCode.INTERNAL
    assert cause in caught.value.message


def test_a_refusal_is_the_servers_last_word() -> None:
    async def server(streams: Server) -> None:
        stream = await streams.stream()
        await stream.send(opened(0))
        await stream.link.close(SessionError(ErrorCode.FAILED_PRECONDITION, "another model"))

    with pytest.raises(SessionError, match="another model"):
        play(one_round, server)


@pytest.mark.parametrize("asked_by", ["edge", "server"])
def test_padded_messages_have_the_sizes_of_a_few_buckets(asked_by: str) -> None:
    sizes: list[int] = []

    async def edge(session: EdgeSession) -> None:
        await one_round(session)
        await session.send_round(Chain())

    async def server(streams: Server) -> None:
        stream = await streams.stream()
        await stream.receive()
        await stream.receive()
        await stream.send(opened(0, pad_sizes=asked_by == "server"), VERDICT)
        await stream.receive()
        sizes.extend(stream.sizes)

    play(edge, server, pad_sizes=asked_by == "edge")
    padded = sizes if asked_by == "edge" else sizes[2:]
    assert all(size in (64, 128, 256) for size in padded), sizes
    if asked_by == "server":
        assert sizes[1] < 64, "before the server said so, nothing was padded"
