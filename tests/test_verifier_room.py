"""Sessions for which there is no room or time: put off, evicted, displaced, refused, expired."""

from __future__ import annotations

import asyncio

import pytest

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.tenants import Quota, Tenant
from acespec.wire import (
    Busy,
    Close,
    ErrorCode,
    Open,
    Reset,
    SessionError,
    memory_link,
)
from verifier_client import (
    VerifierClient,
    decoded_text,
    open_request,
    refused,
)
from verifier_edges import UNKNOWN, Edges, edges_of, lose, table_engine

# --- memory ---------------------------------------------------------------------------------------------


def test_the_session_idle_longest_is_evicted_and_goes_on_as_if_it_were_not() -> None:
    engine = table_engine(kv_tokens=60)
    request = open_request(engine, [1, 2, 3], token_limit=20)
    expected = asyncio.run(decoded_text(engine, request))

    async def main() -> None:
        async with edges_of(engine, Limits(evict_after_s=1.0)) as edges:
            clients = []
            for _ in range(3):
                clients.append(await edges.opened(request))
                await asyncio.sleep(2.0)
            await clients[0].decode(2)  # so the second is idle longest
            await asyncio.sleep(2.0)
            fourth = await edges.opened(request)
            assert engine.kv_tokens_used == 60
            await clients[2].decode(1)
            await clients[1].decode(17)  # evicted; takes the place of the first
            assert clients[1].committed == expected
            await asyncio.sleep(2.0)
            await clients[0].decode(15)
            assert clients[0].committed == expected
            await fourth.decode(17)
            assert fourth.committed == expected

    run_virtual(main())


async def test_a_session_without_a_stream_is_evicted_first_and_at_once() -> None:
    engine = table_engine(kv_tokens=40)
    request = open_request(engine, [1, 2, 3], token_limit=20)
    async with edges_of(engine, Limits(evict_after_s=1000.0)) as edges:
        lost = await edges.opened(request)
        await edges.opened(request)
        await lost.decode(2)
        await lose(lost)
        await edges.streams[0]
        await (await edges.opened(request)).decode(2)
        back = await edges.resumed(lost)
        await back.receive_opened()
        await back.send(back.next_round([]))
        assert isinstance(await back.receive(), Busy), "all others were at work lately"


def test_an_open_without_room_is_put_off_until_there_is() -> None:
    async def main() -> None:
        engine = table_engine(kv_tokens=20)
        request = open_request(engine, [1, 2, 3], token_limit=20)
        async with edges_of(engine, Limits(busy_retry_ms=70, evict_after_s=1000.0)) as edges:
            first = await edges.opened(request)
            second = edges.stream(request)
            await second.begin()
            await second.send(second.next_round([1]))  # sent with Open; dropped with it
            assert await second.receive() == Busy(70)
            await first.send(Close())
            await edges.streams[0]
            await second.begin()
            await second.receive_opened()
            assert len(await second.decode(3)) == 3

    run_virtual(main())


async def test_the_server_is_full() -> None:
    engine = table_engine()
    request = open_request(engine, [1, 2])
    async with edges_of(engine, Limits(max_sessions=2)) as edges:
        lost = await edges.opened(request)
        await edges.opened(request)
        third = edges.stream(request)
        await third.begin()
        assert isinstance(await third.receive(), Busy)
        await lose(lost)
        await edges.streams[0]
        await third.begin()
        await third.receive_opened()  # in the place of the one that has no stream
        back = await edges.resumed(lost)
        assert await back.receive() == Reset(1, UNKNOWN)


# --- quotas ---------------------------------------------------------------------------------------------


async def test_a_tenants_quotas() -> None:
    engine = table_engine()
    request = open_request(engine, [1, 2], token_limit=20)
    few, other = Tenant("few", Quota(max_sessions=1)), Tenant("other")
    small = Tenant("small", Quota(kv_bytes=30 * 1024))  # room for 30 tokens
    async with edges_of(engine) as edges:
        first = await edges.opened(request, few)
        error = await refused(edges.stream(request, few), "max_sessions of tenant 'few' is used up", request)
        assert error.code is ErrorCode.RESOURCE_EXHAUSTED
        await edges.opened(request, other)
        await edges.opened(request, small)
        await refused(edges.stream(request, small), "kv_bytes of tenant 'small'", request)
        await lose(first)
        await edges.streams[0]
        await edges.opened(request, few)  # in the place of its own that has no stream


def test_a_tenant_over_its_rate_is_put_off_and_loses_nothing() -> None:
    async def main() -> tuple[list[int], float]:
        engine = table_engine()
        request = open_request(engine, [1, 2], token_limit=22)
        slow = Tenant("slow", Quota(tokens_per_s=4.0))
        started = asyncio.get_running_loop().time()
        async with edges_of(engine) as edges:
            client = await edges.opened(request, slow)
            while len(client.committed) < 12:
                await client.send(client.next_round([0]))
                answer = await client.receive()
                if isinstance(answer, Busy):
                    await asyncio.sleep(answer.retry_ms / 1000.0)
                    continue
                client.take(answer, [0])
            await client.decode(client.remaining)
            return client.committed, asyncio.get_running_loop().time() - started

    text, seconds = run_virtual(main())
    request = open_request(table_engine(), [1, 2], token_limit=22)
    assert text == asyncio.run(decoded_text(table_engine(), request))
    assert seconds >= (20 - 4) / 4.0 - 0.1, "twenty tokens at least, four of them at once"


# --- time -----------------------------------------------------------------------------------------------


def test_streams_that_say_nothing_are_ended() -> None:
    limits = Limits(open_timeout_s=5.0, idle_timeout_s=30.0, resume_ttl_s=60.0)

    async def main() -> None:
        engine = table_engine()
        now = asyncio.get_running_loop().time
        async with edges_of(engine, limits) as edges:
            request = open_request(engine, [1, 2])
            nameless = edges.stream(request)
            with pytest.raises(SessionError, match="no open came within 5 s") as caught:
                await nameless.receive()
            assert caught.value.code is ErrorCode.UNAVAILABLE
            assert 5.0 < now() < 7.0
            client = await edges.opened(request)
            await client.decode(3)
            with pytest.raises(SessionError, match="no request came for 30 s; connect again to go on"):
                await client.receive()
            assert 35.0 < now() < 39.0
            again = await edges.resumed(client)
            await again.receive_opened()
            assert len(await again.decode(3)) == 3
            await lose(again)
            await asyncio.sleep(63.0)
            assert edges.verifier.num_sessions == 0
            assert engine.sequences == {}
            too_late = await edges.resumed(client, epoch=2)
            assert await too_late.receive() == Reset(2, UNKNOWN)

    run_virtual(main())


def test_an_edge_that_reads_nothing_is_ended() -> None:
    class Clogged:
        """A link that takes ``Opened`` and no message more."""

        def __init__(self, edges: Edges, request: Open) -> None:
            self.edge, self.cloud = memory_link()
            self.sent = 0

        async def receive(self) -> object:
            return await self.cloud.receive()

        async def send(self, message: object) -> None:
            self.sent += 1
            if self.sent > 1:
                await asyncio.Event().wait()

    async def main() -> None:
        engine = table_engine()
        async with edges_of(engine, Limits(write_timeout_s=10.0)) as edges:
            link = Clogged(edges, open_request(engine, [1, 2]))
            client = VerifierClient(link.edge, open_request(engine, [1, 2], token_limit=500))
            await client.begin()
            await client.send(client.next_decode(400))
            with pytest.raises(SessionError, match="nothing was read for 10 s"):
                await edges.verifier.serve(link)  # type: ignore[arg-type]
            assert engine.num_forwards == 1, "nothing is computed for an edge that does not read"

    run_virtual(main())
