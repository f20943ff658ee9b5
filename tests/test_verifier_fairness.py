"""One tenant's sessions beside another's: what is given up for whom, and what is paid for."""

from __future__ import annotations

import asyncio

import pytest

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.tenants import Quota, Tenant
from acespec.speculation import SamplingParams
from acespec.wire import AcceptanceMode, Busy, Close, MoreDraws, MoreTarget, RejectVerdict
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from verifier_client import open_request, refused
from verifier_edges import GatedEngine, edges_of, lose, table_engine, under_way


async def test_an_open_that_no_eviction_makes_room_for_evicts_nobody() -> None:
    engine = GatedEngine(kv_tokens=100)
    async with under_way(engine, Limits(evict_after_s=0.0)) as (edges, _):  # which holds 25 tokens
        await edges.opened(open_request(engine, [1], token_limit=50))
        held = set(engine.sequences)
        other = edges.stream(open_request(engine, [1], token_limit=76))
        for _ in range(3):
            await other.begin()
            assert isinstance(await other.receive(), Busy)
        assert set(engine.sequences) == held
        await edges.opened(open_request(engine, [1], token_limit=75))
        assert not held < set(engine.sequences)


def test_an_open_over_its_tenants_rate_takes_nothing_from_others() -> None:
    async def main() -> None:
        engine, spender = table_engine(kv_tokens=100), Tenant("spender", Quota(tokens_per_s=1.0))
        async with edges_of(engine, Limits(max_sessions=2, evict_after_s=0.0)) as edges:
            first = await edges.opened(open_request(engine, [1] * 50, token_limit=60), spender)
            await first.send(Close())
            await edges.streams[0]
            lost = await edges.opened(open_request(engine, [1, 2], token_limit=60))
            await lose(lost)
            await edges.opened(open_request(engine, [1, 2], token_limit=30))
            held = set(engine.sequences)
            second = edges.stream(open_request(engine, [1] * 50, token_limit=60), spender)
            await second.begin()
            assert await second.receive() == Busy(50_000)
            assert set(engine.sequences) == held
            assert edges.verifier.num_sessions == 2
            await asyncio.sleep(50.0)
            await edges.opened(second.request, spender)  # in the place of the one that has no stream

    run_virtual(main())


async def test_a_full_server_gives_up_nobody_for_a_tenant_over_its_quota() -> None:
    engine, few = table_engine(), Tenant("few", Quota(max_sessions=1))
    request = open_request(engine, [1, 2])
    async with edges_of(engine, Limits(max_sessions=2)) as edges:
        lost = await edges.opened(request)
        await lose(lost)
        await edges.streams[0]
        await edges.opened(request, few)
        await refused(edges.stream(request, few), "max_sessions of tenant 'few'", request)
        assert edges.verifier.num_parked == 1
        await (await edges.resumed(lost)).receive_opened()


def test_a_tenant_pays_for_each_time_its_text_is_fed() -> None:
    """Two sessions that fit the engine one at a time, taken up again in turn; and no request ever comes."""

    async def main() -> int:
        engine, tenant = table_engine(kv_tokens=150), Tenant("tenant", Quota(tokens_per_s=10.0))
        request = open_request(engine, [1] * 100, token_limit=110)
        async with edges_of(engine) as edges:
            sessions = []
            for _ in range(2):
                sessions.append(await edges.opened(request, tenant))
                await lose(sessions[-1])
                await asyncio.sleep(10.0)
            for epoch in range(1, 51):
                for client in sessions:
                    stream = await edges.resumed(client, epoch, tenant)
                    await asyncio.sleep(0.25)
                    await lose(stream)
                    await asyncio.sleep(0.25)
        return sum(sum(tokens) for tokens in engine.batches)

    seconds = 20.0 + 50 * 2 * 0.5
    assert 500 <= run_virtual(main()) <= 10.0 * seconds + 100


def test_further_draws_are_paid_for_and_put_off() -> None:
    async def main() -> float:
        engine, tenant = TableTargetEngine(hashed_table(64, salt=2), 64), Tenant("t", Quota(tokens_per_s=2.0))
        request = open_request(
            engine,
            [1],
            mode=AcceptanceMode.RESIDUAL,
            sampling=SamplingParams(temperature=50.0),
            token_limit=60,
        )
        async with edges_of(engine) as edges:
            client = await edges.opened(request, tenant)
            await asyncio.sleep(2.0)
            await client.send(client.next_round([3], weights=[65536]))  # costs what comes in a second
            rejection = await client.receive()
            assert isinstance(rejection, RejectVerdict)
            question = MoreDraws(len(request.committed), len(rejection.target.ids))
            answers = []
            while answers.count(MoreTarget) < 20:
                await client.send(question)
                answer = await client.receive()
                answers.append(type(answer))
                if isinstance(answer, Busy):
                    await asyncio.sleep(answer.retry_ms / 1000.0)
            return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(2.0 + 20 / 2.0, abs=0.1)


def test_a_prompt_is_paid_for_once_however_long_it_takes_to_be_fed() -> None:
    """It is fed at once though its price puts the tenant into debt, and goes on over the next stream."""

    async def main() -> float:
        engine, tenant = table_engine(), Tenant("tenant", Quota(tokens_per_s=100.0))
        async with edges_of(engine, step_ms=1000.0) as edges:
            client = await edges.opened(open_request(engine, [1] * 1600), tenant)
            await asyncio.sleep(1.5)
            await lose(client)
            client = await edges.resumed(client, 1, tenant)
            await asyncio.sleep(4.0)
            assert sum(sum(tokens) for tokens in engine.batches) == 1599
            await client.receive_opened()
            await client.send(client.next_round([1]))
            busy = await client.receive()
            assert isinstance(busy, Busy), "the debt"
            await asyncio.sleep(busy.retry_ms / 1000.0)
            await client.send(client.next_round([1]))
            await client.receive()
            return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(16.0 - 1.0 + 0.02 + 1.0, abs=0.1)
