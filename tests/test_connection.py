"""What the edge says on each stream, and when: against a server told what to do."""

from __future__ import annotations

import pytest

from acespec.edge_runtime.drafter import Chain
from acespec.edge_runtime.session import EdgeSession
from acespec.wire import (
    AcceptanceMode,
    CloudMessage,
    Commit,
    Decode,
    ErrorCode,
    MoreDraws,
    MoreTarget,
    Open,
    RejectVerdict,
    Reset,
    ResetReason,
    Resume,
    Round,
    SessionError,
    TargetDraws,
    TokenVerdict,
)
from scripted_server import (
    DRAWS,
    ID,
    PROMPT,
    ROUND,
    VERDICT,
    Server,
    check_of,
    forgotten,
    one_round,
    opened,
    play,
)


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
