"""Decoding that is asked to go on: a ``Decode`` sent again with a higher count, in time or late."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.wire import Commit, Decode, Opened, Resume, SessionError, memory_link
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from verifier_client import VerifierClient, open_request, refused, serve_stream, session

VOCAB = 12
TABLE = hashed_table(VOCAB, salt=5)
FORWARD_MS = 10.0


def engine() -> TableTargetEngine:
    return TableTargetEngine(TABLE, VOCAB)


async def commits(client: VerifierClient, count: int) -> list[tuple[int, int]]:
    """Take ``count`` commits of one token each: their positions and tokens."""
    taken = []
    for _ in range(count):
        commit = await client.receive()
        assert isinstance(commit, Commit)
        assert len(commit.tokens) == 1
        taken.append((commit.position, commit.tokens[0]))
        client.committed += commit.tokens
    return taken


async def test_a_decode_asked_to_go_on_repeats_nothing() -> None:
    target = engine()
    async with session(target, open_request(target, [1, 2, 3])) as client:
        request = client.next_decode(5)
        await client.send(request)
        first = await commits(client, 5)
        await client.send(replace(request, count=8))  # late: it has ended
        await client.send(replace(request, count=9))
        rest = await commits(client, 4)
        assert [position for position, _ in first + rest] == list(range(3, 12))
        client.seq += 1
        whole = [token for _, token in first + rest]
        await client.round([whole[0]])
    async with session(target, open_request(target, [1, 2, 3])) as client:
        assert await client.decode(9) == whole


async def test_the_same_decode_again_brings_what_the_stream_has_not_carried() -> None:
    target = engine()
    verifier = Verifier(target, InlineRunner())
    edge, cloud = memory_link()
    serving = asyncio.ensure_future(serve_stream(verifier, cloud))
    client = VerifierClient(edge, open_request(target, [1, 2, 3]))
    await client.begin()
    request = client.next_decode(5)
    for _ in range(3):  # the second and third come while the first is answered
        await client.send(request)
    first = await commits(client, 5)
    assert [position for position, _ in first] == list(range(3, 8))
    assert client.opened is not None
    await edge.close()
    await serving

    edge, cloud = memory_link()
    serving = asyncio.ensure_future(serve_stream(verifier, cloud))
    client.link = edge
    await client.send(Resume(client.opened.session_id, 1, committed=3 + 2))
    for _ in range(2):
        await client.send(request)
    again = await client.receive()
    assert isinstance(again, Commit)
    assert (again.position, list(again.tokens)) == (5, [token for _, token in first[2:]])
    client.seq += 1
    await client.decode(2)  # whose commits come right behind
    assert target.num_forwards == 7
    await edge.close()
    await serving
    await verifier.drain(0.0)


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=5, unique=True).map(sorted),
    seen=st.lists(st.integers(0, 30), min_size=5, max_size=5),
)
def test_however_it_is_asked_to_go_on_the_text_is_the_same(counts: list[int], seen: list[int]) -> None:
    """``seen``: commits read before each further request."""

    async def drive() -> list[int]:
        target = engine()
        async with session(target, open_request(target, [1, 2, 3], token_limit=20)) as client:
            request, taken = client.next_decode(counts[0]), 0
            for count, wait in zip(counts, seen, strict=False):
                await client.send(replace(request, count=count))
                due = min(max(wait - taken, 0), count - taken, client.remaining)
                taken += len(await commits(client, due))
            await commits(client, min(counts[-1] - taken, client.remaining))
            return client.committed

    async def at_once() -> list[int]:
        target = engine()
        async with session(target, open_request(target, [1, 2, 3], token_limit=20)) as client:
            await client.decode(counts[-1])
            return client.committed

    assert asyncio.run(drive()) == asyncio.run(at_once())


def test_the_target_does_not_pause_if_asked_in_time() -> None:
    """Over a link of 30 ms a way, forwards of 10 ms: asked when seven commits are still to come."""

    async def delay(_: int) -> None:
        await asyncio.sleep(0.03)

    async def times_ms(counts: list[int], ahead: int) -> list[float]:
        edge, cloud = memory_link(delay)
        target = engine()
        verifier = Verifier(target, InlineRunner(), latency_ms=lambda _: FORWARD_MS)
        serving = asyncio.ensure_future(serve_stream(verifier, cloud))
        client = VerifierClient(edge, open_request(target, [1], token_limit=100))
        await client.begin()
        request, arrivals, now = client.next_decode(counts[0]), [], asyncio.get_running_loop().time
        await client.send(request)
        goals = counts[1:]
        while len(arrivals) < counts[-1]:
            await commits(client, 1)
            arrivals.append(1000.0 * now())
            if goals and len(arrivals) == request.count - ahead:
                request = replace(request, count=goals.pop(0))
                await client.send(request)
        await edge.close()
        await serving
        await verifier.drain(0.0)
        return arrivals

    expected = [60.0 + FORWARD_MS * number for number in range(1, 41)]
    assert run_virtual(times_ms([10, 20, 30, 40], ahead=7)) == pytest.approx(expected, abs=3.0)
    late = run_virtual(times_ms([10, 40], ahead=0))
    assert late[:10] == pytest.approx(expected[:10], abs=3.0)
    assert late[10] == pytest.approx(expected[10] + 60.0, abs=3.0), "a round trip passes idly"


async def test_over_another_stream_it_goes_on_from_what_the_edge_has() -> None:
    target = engine()
    verifier = Verifier(target, InlineRunner())
    edge, cloud = memory_link()
    serving = asyncio.ensure_future(serve_stream(verifier, cloud))
    client = VerifierClient(edge, open_request(target, [1, 2, 3]))
    await client.begin()
    request = client.next_decode(5)
    await client.send(request)
    first = await commits(client, 5)
    assert client.opened is not None
    await edge.close()
    await serving

    edge, cloud = memory_link()
    serving = asyncio.ensure_future(serve_stream(verifier, cloud))
    client.link = edge
    await client.send(Resume(client.opened.session_id, 1, committed=3 + 4))  # the last one was lost
    await client.send(replace(request, count=7))
    again = await commits(client, 3)
    assert again[0] == first[-1]
    assert [position for position, _ in again] == [7, 8, 9]
    await client.send(replace(request, count=8))
    assert [position for position, _ in await commits(client, 1)] == [10]
    await edge.close()
    await serving
    await verifier.drain(0.0)


@pytest.mark.parametrize(
    "change", [{"count": 4}, {"count": 6, "prefix_check": 7}], ids=["fewer", "another text"]
)
async def test_it_may_only_go_on(change: dict[str, int]) -> None:
    target = engine()
    async with session(target, open_request(target, [1, 2, 3])) as client:
        request = client.next_decode(5)
        await client.decode(5)
        changed: Decode = replace(request, **change)  # type: ignore[arg-type]
        await refused(client, "request 0 was answered before and now differs", changed)


async def test_a_round_does_not_turn_into_decoding() -> None:
    target = engine()
    async with session(target, open_request(target, [1, 2, 3])) as client:
        round_ = client.next_round([4])
        await client.round([4])
        error: SessionError = await refused(
            client, "request 0 was answered before and now differs", Decode(0, round_.prefix_check, 3)
        )
        assert error.code.value == "INVALID_ARGUMENT"
        assert isinstance(client.opened, Opened)
