"""How sessions and the verifier end: drained, closed, failed, refused; and nothing is left."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.engine import Feed
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.tenants import Tenant
from acespec.cloud_verifier.verifier import GOODBYE_S, Verifier
from acespec.compute import InlineRunner, ThreadRunner
from acespec.wire import (
    Close,
    ErrorCode,
    Opened,
    Reset,
    ResetReason,
    SessionError,
    memory_link,
)
from acespec.wire import verifier_pb2 as pb
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from verifier_client import (
    VerifierClient,
    all_answers,
    decoded_text,
    open_request,
    refused,
    session,
)
from verifier_edges import UNKNOWN, GatedEngine, edges_of, lose, table_engine, under_way


async def test_a_drain_answers_what_is_under_way_and_sends_everyone_away() -> None:
    engine = GatedEngine()
    async with under_way(engine) as (edges, busy):
        idle = await edges.opened(open_request(engine, [2]))
        draining = asyncio.ensure_future(edges.verifier.drain(30.0))
        assert await idle.receive() == Reset(0, ResetReason.SHUTTING_DOWN)
        late = edges.stream(open_request(engine, [3]))
        with pytest.raises(SessionError, match="shutting down") as caught:
            await late.receive()
        assert caught.value.code is ErrorCode.UNAVAILABLE, "worth another attempt"
        engine.gate.set()
        await busy.receive()
        assert await busy.receive() == Reset(0, ResetReason.SHUTTING_DOWN)
        await draining


def test_a_drain_does_not_wait_for_streams_that_keep_coming() -> None:
    async def main() -> None:
        engine = table_engine()
        async with edges_of(engine) as edges:

            async def flood() -> None:
                while True:
                    edges.stream(open_request(engine, [1]))
                    await asyncio.sleep(0)

            flooding = asyncio.ensure_future(flood())
            await asyncio.sleep(0)
            draining = asyncio.ensure_future(edges.verifier.drain(1.0))
            for _ in range(100):  # turns of the loop, in which no time passes
                await asyncio.sleep(0)
            flooding.cancel()
            assert draining.done()

    run_virtual(main())


class Clogged:
    """A link that takes ``Opened`` and no message more."""

    def __init__(self) -> None:
        self.edge, self._cloud = memory_link()
        self._sent = 0

    async def receive(self) -> pb.EdgeMessage | None:
        return await self._cloud.receive()

    async def send(self, message: pb.CloudMessage) -> None:
        self._sent += 1
        if self._sent > 1:
            await asyncio.Event().wait()


@pytest.mark.parametrize(("count", "most_s"), [(0, GOODBYE_S), (3, 5.0)], ids=["idle", "owed an answer"])
def test_a_drain_does_not_wait_for_an_edge_that_reads_nothing(count: int, most_s: float) -> None:
    async def main() -> float:
        engine, link = table_engine(), Clogged()
        async with edges_of(engine) as edges:
            client = VerifierClient(link.edge, open_request(engine, [1, 2]))
            await client.begin()
            if count:
                await client.send(client.next_decode(count))
            serving = asyncio.ensure_future(edges.verifier.serve(link))
            await asyncio.sleep(1.0)
            began = asyncio.get_running_loop().time()
            await asyncio.wait_for(edges.verifier.drain(5.0), 60.0)
            with pytest.raises(SessionError, match="shutting down"):
                await serving
            return asyncio.get_running_loop().time() - began

    assert run_virtual(main()) == most_s


async def test_a_forward_that_runs_when_its_session_ends_is_waited_for() -> None:
    engine = GatedEngine()
    async with under_way(engine, Limits(resume_ttl_s=0.0)) as (edges, client):
        await lose(client)
        draining = asyncio.ensure_future(edges.verifier.drain(0.0))
        await edges.streams[-1]
        for _ in range(20):  # turns of the loop in which it could end, were it not waiting
            await asyncio.sleep(0)
        assert len(engine.sequences) == 1
        assert not draining.done()
        engine.gate.set()
        await draining
        assert engine.sequences == {}


async def test_an_edge_that_leaves_stops_the_decoding() -> None:
    """After the forward under way: a thread cannot be stopped."""
    engine, runner = GatedEngine(), ThreadRunner("test")
    loop, entered = asyncio.get_running_loop(), asyncio.Event()
    engine.on_entry = lambda: loop.call_soon_threadsafe(entered.set)
    async with session(engine, open_request(engine, [1], token_limit=1000), runner) as client:
        await client.send(client.next_decode(900))
        await entered.wait()
        await client.link.close()
        engine.gate.set()
    assert engine.num_forwards == 1
    runner.close()


def test_a_prompt_is_not_fed_on_when_its_stream_is_cancelled() -> None:
    """As gRPC does with the handler of a stream whose edge is gone."""

    async def main() -> None:
        engine = table_engine()
        verifier = Verifier(engine, InlineRunner(), latency_ms=lambda _: 1000.0)
        edge, cloud = memory_link()
        serving = asyncio.ensure_future(verifier.serve(cloud))
        client = VerifierClient(edge, open_request(engine, [1] * 4000))
        await client.begin()
        await asyncio.sleep(2.5)
        serving.cancel()
        await asyncio.sleep(60.0)
        assert len(engine.batches) == 3, "the one under way was the last"
        await verifier.drain(0.0)

    run_virtual(main())


async def test_a_close_stops_the_decoding() -> None:
    engine = table_engine()
    async with session(engine, open_request(engine, [1], token_limit=1000)) as client:
        await client.send(client.next_decode(900))
        await client.send(Close())
        with pytest.raises(SessionError, match="ended the session"):
            await all_answers(client)
    assert 1 <= engine.num_forwards < 10


class FailingEngine(TableTargetEngine):
    """A target that fails on one token."""

    def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
        if any(feed.num_logits and 7 in feed.tokens for feed in feeds):
            raise RuntimeError("out of memory at address 0xdeadbeef")
        return super().step(feeds)


async def test_a_failure_ends_its_own_session_and_tells_the_edge_no_detail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FailingEngine(hashed_table(7, salt=2), 8)  # token 7 is known and never drawn
    request = open_request(engine, [1, 2])
    expected = await decoded_text(engine, request)
    async with edges_of(engine) as edges:
        healthy = await edges.opened(request)
        await healthy.decode(3)
        broken = await edges.opened(open_request(engine, [7]))
        error = await refused(broken, "the verifier failed", broken.next_round([]))
        assert error.code is ErrorCode.INTERNAL
        assert "deadbeef" not in error.message
        reference = error.message.partition("under ")[2].partition(";")[0]
        assert f"session {reference} failed" in caplog.text
        assert "deadbeef" in caplog.text
        assert broken.opened is not None
        assert broken.opened.session_id.hex() not in caplog.text, "whoever has the id can resume the session"
        await healthy.decode(healthy.remaining)
        assert healthy.committed == expected
        again = await edges.resumed(broken)
        assert await again.receive() == Reset(1, UNKNOWN)


def test_the_log_follows_sessions_at_info(caplog: pytest.LogCaptureFixture) -> None:
    """One that is resumed and closed, one whose stream never comes back, and one that is drained."""
    caplog.set_level(logging.INFO, logger="acespec.cloud_verifier.verifier")

    async def main() -> None:
        engine = table_engine()
        async with edges_of(engine, Limits(resume_ttl_s=5.0)) as edges:
            lost = await edges.opened(open_request(engine, [1, 2, 3]), Tenant("acme"))
            await lost.decode(2)
            await lose(lost)
            back = await edges.resumed(lost, tenant=Tenant("acme"))
            await back.receive_opened()
            await back.send(Close())
            await edges.streams[-1]
            await lose(await edges.opened(open_request(engine, [1])))
            await asyncio.sleep(10.0)
            await edges.opened(open_request(engine, [1, 2]))

    run_virtual(main())
    told = [re.sub("session [0-9a-f]{16} of ", "", record.getMessage()) for record in caplog.records]
    assert told == [
        "acme: opened with 3 tokens",
        "acme: resumed with 5 tokens",
        "acme: ended with 5 tokens (closed)",
        "anonymous: opened with 1 tokens",
        "anonymous: ended with 1 tokens (expired)",
        "anonymous: opened with 2 tokens",
        "anonymous: stream ended: UNAVAILABLE",
        "anonymous: ended with 2 tokens (drained)",
    ]


async def test_an_open_that_is_refused_leaves_nothing() -> None:
    engine = table_engine()
    async with edges_of(engine) as edges:
        client = edges.stream(open_request(engine, [1], vocabulary_hash=""))
        await refused(client, "vocabulary", client.request)
    assert engine.num_opened == 0


async def test_padded_streams() -> None:
    engine = table_engine()
    async with edges_of(engine, Limits(pad_sizes=True)) as edges:
        client = await edges.opened(open_request(engine, [1, 2]))
        assert isinstance(client.opened, Opened)
        assert client.opened.pad_sizes
        before = client.link.traffic.down
        await client.round([3, 4])
        assert client.link.traffic.down - before == 64
