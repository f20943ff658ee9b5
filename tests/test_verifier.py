"""Sessions that outlive their streams: resumed, taken over, begun anew."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.tenants import Tenant
from acespec.compute import InlineRunner, T
from acespec.speculation import SamplingParams
from acespec.wire import (
    AcceptanceMode,
    Close,
    CloudMessage,
    Commit,
    ErrorCode,
    RejectVerdict,
    Reset,
    Resume,
    SessionError,
    SparseTarget,
)
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from verifier_client import (
    all_answers,
    decoded_text,
    open_request,
    refused,
)
from verifier_edges import UNKNOWN, GatedEngine, edges_of, lose, table_engine, under_way


async def test_a_lost_verdict_is_answered_from_memory() -> None:
    engine = table_engine()
    async with edges_of(engine) as edges:
        client = await edges.opened(open_request(engine, [1, 2]))
        request = client.next_round([3, 4])
        await client.send(request)
        verdict = await client.receive()
        await lose(client)
        forwards = engine.num_forwards
        again = await edges.resumed(client)
        await again.send(request)
        assert await again.receive_opened() == replace(client.opened, epoch=1)  # type: ignore[type-var]
        assert await again.receive() == verdict
        assert engine.num_forwards == forwards


async def test_a_session_goes_on_over_the_next_stream() -> None:
    engine = table_engine()
    request = open_request(engine, [1, 2])
    expected = await decoded_text(engine, request)
    async with edges_of(engine) as edges:
        client = await edges.opened(request)
        for epoch in range(1, 6):
            await client.round(expected[len(client.committed) :][:2])
            await lose(client)
            client = await edges.resumed(client, epoch)
        await client.decode(client.remaining)
        assert client.committed == expected
        assert engine.num_opened == 2, "one for the reference; the keys and values were kept"


async def test_a_round_under_way_when_its_stream_is_lost_is_computed_once() -> None:
    engine = GatedEngine()
    async with under_way(engine) as (edges, client):
        await lose(client)
        again = await edges.resumed(client)
        await again.send(again.next_round([1, 2]))
        await again.receive_opened()
        engine.gate.set()
        await again.receive()
        assert engine.num_forwards == 1


async def test_a_newer_stream_takes_the_session_from_one_that_still_stands() -> None:
    """A half-open connection: the server has not noticed yet that the edge is gone."""
    engine = GatedEngine()
    async with under_way(engine) as (edges, client):
        again = await edges.resumed(client)
        with pytest.raises(SessionError, match="newer stream") as caught:
            await all_answers(client)
        assert caught.value.code is ErrorCode.ABORTED
        await again.send(again.next_round([1, 2]))
        engine.gate.set()
        await again.receive_opened()
        await again.receive()
        assert engine.num_forwards == 1


@pytest.mark.parametrize("turns", range(8))
async def test_a_stream_that_breaks_while_it_takes_over_leaves_the_session_to_the_next(turns: int) -> None:
    """Cancelled after so many turns of the loop: before, while and after the older stream ends."""
    engine = GatedEngine()
    async with under_way(engine) as (edges, client):
        await edges.resumed(client)
        takes_over = edges.streams.pop()
        for _ in range(turns):
            await asyncio.sleep(0)
        takes_over.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await takes_over
        await lose(client)
        engine.gate.set()
        await asyncio.gather(*edges.streams)
        assert edges.verifier.num_parked == 1, "a session without a stream waits for one"
        last = await edges.resumed(client, epoch=2)
        await last.send(last.next_round([1, 2]))
        await last.receive_opened()
        await last.receive()
        assert engine.num_forwards == 1


@pytest.mark.parametrize("turns", range(12))
def test_a_stream_resumes_in_the_very_turn_in_which_the_forward_ends(turns: int) -> None:
    """The forward ends so many turns of the loop after the stream began."""

    class Held(InlineRunner):
        def __init__(self) -> None:
            self.free = asyncio.Event()

        async def run(self, step: Callable[[], T], latency_ms: float = 0.0) -> T:
            result = await super().run(step, latency_ms)
            await self.free.wait()
            return result

    async def main() -> None:
        engine, runner = table_engine(), Held()
        async with edges_of(engine, runner=runner) as edges:
            client = await edges.opened(open_request(engine, [1]))
            await client.send(client.next_round([1, 2]))
            await asyncio.sleep(1.0)
            again = await edges.resumed(client)
            await again.send(again.next_round([1, 2]))
            for _ in range(turns):
                await asyncio.sleep(0)
            runner.free.set()
            await again.receive_opened()
            await again.receive()
            assert engine.num_forwards == 1

    run_virtual(main())


async def test_a_stale_stream_cannot_take_the_session_back() -> None:
    engine = table_engine()
    async with edges_of(engine) as edges:
        client = await edges.opened(open_request(engine, [1, 2]))
        newest = await edges.resumed(client, epoch=5)
        await newest.receive_opened()
        for epoch in (1, 4, 5):
            stale = await edges.resumed(client, epoch)
            with pytest.raises(SessionError, match="newer stream") as caught:
                await stale.receive_opened()
            assert caught.value.code is ErrorCode.ABORTED
        assert len(await newest.decode(3)) == 3


async def test_a_decode_goes_on_after_what_the_edge_has() -> None:
    engine = table_engine()
    request = open_request(engine, [1, 2], token_limit=20)
    expected = await decoded_text(engine, request)
    async with edges_of(engine) as edges:
        client = await edges.opened(request)
        decode = client.next_decode(18)
        await client.send(decode)
        for _ in range(3):
            commit = await client.receive()
            assert isinstance(commit, Commit)
            client.committed += commit.tokens
        await lose(client)
        again = await edges.resumed(client)
        await again.send(decode)
        while not again.finished:
            commit = await again.receive()
            assert isinstance(commit, Commit)
            assert commit.position == len(again.committed)
            again.committed += commit.tokens
        assert again.committed == expected


async def test_more_draws_can_be_asked_for_over_another_stream() -> None:
    engine = TableTargetEngine(hashed_table(64, salt=2), 64)
    request = open_request(
        engine,
        [1, 2],
        mode=AcceptanceMode.RESIDUAL,
        sampling=SamplingParams(temperature=50.0),
        token_limit=60,
    )
    async with edges_of(engine) as edges:
        client = await edges.opened(request)
        rejection: CloudMessage | None = None
        while not isinstance(rejection, RejectVerdict):
            rejection = await client.round([3], weights=[65536])
        assert not isinstance(rejection.target, SparseTarget)
        await lose(client)
        again = await edges.resumed(client)
        await again.receive_opened()
        first_index = len(rejection.target.ids)
        more = await again.more_draws(len(again.committed), first_index)
        assert more == await again.more_draws(len(again.committed), first_index)


async def test_the_same_number_with_other_content_is_refused() -> None:
    engine = table_engine()
    async with edges_of(engine) as edges:
        client = await edges.opened(open_request(engine, [1, 2]))
        request = client.next_round([3, 4])
        await client.send(request)
        await client.receive()
        await lose(client)
        again = await edges.resumed(client)
        await refused(again, "answered before and now differs", replace(request, chain=(3, 5)))


async def test_an_unknown_session_is_opened_anew_over_the_same_stream() -> None:
    engine = table_engine()
    request = open_request(engine, [1, 2])
    expected = await decoded_text(engine, request)
    async with edges_of(engine) as edges:
        client = edges.stream(replace(request, committed=tuple(expected[:7]), epoch=3))
        await client.send(Resume(b"never heard of", 2, 7))
        await client.send(client.next_round([0]))  # sent before the answer can be there; dropped
        assert await client.receive() == Reset(2, UNKNOWN)
        await client.begin()
        assert (await client.receive_opened()).epoch == 3
        client.committed = expected[:7]
        await client.decode(client.remaining)
        assert client.committed == expected
    async with edges_of(engine) as edges:
        flooding = edges.stream(request)
        await flooding.send(Resume(b"never heard of", 1, 2))
        await flooding.send(flooding.next_round([0]))
        assert await flooding.receive() == Reset(1, UNKNOWN)
        await refused(flooding, "must be open or resume", flooding.next_round([0]))


async def test_an_edge_that_has_more_than_the_server_begins_anew() -> None:
    engine = table_engine()
    async with edges_of(engine) as edges:
        client = await edges.opened(open_request(engine, [1, 2]))
        client.committed.append(3)
        again = await edges.resumed(client)
        assert await again.receive() == Reset(1, UNKNOWN)


async def test_another_tenants_session_is_an_unknown_one() -> None:
    engine = table_engine()
    owner, thief = Tenant("owner"), Tenant("thief")
    async with edges_of(engine) as edges:
        client = await edges.opened(open_request(engine, [1, 2]), owner)
        again = await edges.resumed(client, tenant=thief)
        assert await again.receive() == Reset(1, UNKNOWN)
        assert len(await client.decode(3)) == 3, "its owner goes on undisturbed"


async def test_a_closed_session_cannot_be_resumed() -> None:
    engine = table_engine()
    async with edges_of(engine) as edges:
        client = await edges.opened(open_request(engine, [1, 2]))
        await client.send(Close())
        await edges.streams[-1]
        again = await edges.resumed(client)
        assert await again.receive() == Reset(1, UNKNOWN)
