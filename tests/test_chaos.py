"""Generations through a relay that mistreats them and a server that is killed; and the relay itself.

``chaos.py`` runs hundreds of scenarios; here are as many as fit a test run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from chaos import (
    Outcome,
    draw_scenario,
    impatient_edges,
    model_target,
    run_group,
    table_target,
    wrong,
)
from chaos_relay import ChaosRelay, ConnectionPlan, Fault, draw_plan

SEED = 1


def check(outcomes: Sequence[Outcome]) -> Counter[Fault]:
    """All texts are right; returns the faults that happened on the way."""
    failures = {outcome.scenario.number: outcome.failure for outcome in outcomes if outcome.failure}
    assert not failures, f"run 'python tests/chaos.py --only NUMBER' for each of {failures}"
    return sum((outcome.faults for outcome in outcomes), Counter())


async def test_texts_survive_every_kind_of_trouble_and_a_killed_server() -> None:
    target = table_target()
    scenarios = [draw_scenario(SEED, number, target.vocab_size) for number in range(16)]
    with impatient_edges():
        outcomes, kills = await run_group(target, scenarios)
    faults = check(outcomes)
    assert kills >= 3
    assert set(faults) == set(Fault) - {Fault.NONE}
    assert sum(outcome.overtaken for outcome in outcomes) >= 1
    assert sum(outcome.reconnects for outcome in outcomes) > 20


async def test_texts_of_a_model_survive_the_same(tmp_path: Path) -> None:
    target = model_target(tmp_path)
    killer = next(number for number in itertools.count() if draw_scenario(SEED, number, 257).kill_at)
    scenarios = [draw_scenario(SEED, number, target.vocab_size) for number in range(killer, killer + 4)]
    with impatient_edges():
        outcomes, kills = await run_group(target, scenarios)
    assert sum(check(outcomes).values()) >= 4
    assert kills >= 1


async def test_undisturbed_scenarios_lose_no_connection() -> None:
    target = table_target()
    scenarios = [draw_scenario(SEED, number, target.vocab_size) for number in range(3)]
    outcomes, kills = await run_group(target, scenarios, disturbed=False)
    assert not check(outcomes)
    assert kills == 0
    assert [outcome.connections for outcome in outcomes] == [1, 1, 1]
    assert [outcome.reconnects for outcome in outcomes] == [0, 0, 0]


def test_a_scenario_is_fixed_by_its_seed_and_number() -> None:
    assert draw_scenario(1, 7, 16) == draw_scenario(1, 7, 16)
    assert len({repr(draw_scenario(seed, number, 16)) for seed in (1, 2) for number in range(50)}) == 100
    faults = Counter(plan.fault for number in range(100) for plan in draw_scenario(1, number, 16).plans)
    assert set(faults) == set(Fault) - {Fault.NONE}
    assert min(faults.values()) > 20


def test_wrong_texts_and_deliveries_are_seen() -> None:
    truth = [3, 1, 4, 1, 5]
    assert wrong(truth, [], truth, truth) == ""
    assert wrong(truth[:-1], [], truth, truth).startswith("another text")
    assert wrong(truth, [], [3, *truth], truth).startswith("delivered")
    assert wrong(truth, [], truth[::-1], truth).startswith("delivered")
    assert wrong(truth, [1], truth, truth).startswith("provisional")


# --- the relay ----------------------------------------------------------------------------------------------


class Received:
    """A server that keeps what each of its connections brings, and answers every byte with two."""

    def __init__(self) -> None:
        self.in_order: list[bytes] = []
        self.grown = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                self.in_order.append(data)
                self.grown.set()
                writer.write(data * 2)
                await writer.drain()
        writer.close()

    async def until(self, num_bytes: int) -> bytes:
        """All bytes, once there are so many."""
        while sum(map(len, self.in_order)) < num_bytes:
            self.grown.clear()
            await self.grown.wait()
        return b"".join(self.in_order)


@contextlib.asynccontextmanager
async def relayed(*plans: ConnectionPlan) -> AsyncIterator[tuple[ChaosRelay, Received]]:
    """A relay to such a server, with plans for the first connections."""
    received = Received()
    server = await asyncio.start_server(received.serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    async with ChaosRelay(address, itertools.chain(plans, itertools.repeat(ConnectionPlan())), 0, 3) as relay:
        yield relay, received
    server.close()


async def connect(relay: ChaosRelay) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = relay.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """Everything until the connection is closed or reset."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(1000):
            data += part
    return data


async def test_a_connection_left_in_peace_passes_everything() -> None:
    async with relayed() as (relay, received):
        reader, writer = await connect(relay)
        writer.write(b"abcdefgh")
        assert await reader.readexactly(16) == b"abcdefgh" * 2
        assert await received.until(8) == b"abcdefgh"
        writer.close()
        assert not relay.faults


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("up", [False, True])
async def test_a_cut_comes_after_the_very_byte(up: bool, reset: bool) -> None:
    async with relayed(ConnectionPlan(Fault.CUT, up=up, at_byte=5, reset=reset)) as (relay, received):
        reader, writer = await connect(relay)
        writer.write(b"abcdefgh")
        heard = await all_of(reader)
        if up:
            assert await received.until(5) == b"abcde"
        else:
            assert heard == b"abcde"
        assert relay.faults == {Fault.CUT: 1}


async def test_a_half_open_connection_is_silent_both_ways_and_then_reset() -> None:
    plan = ConnectionPlan(Fault.HALF_OPEN, up=True, at_byte=3, linger_s=0.05)
    async with relayed(plan) as (relay, received):
        reader, writer = await connect(relay)
        writer.write(b"abcdefgh")
        assert await all_of(reader) == b""
        assert await received.until(3) == b"abc"
        assert relay.faults == {Fault.HALF_OPEN: 1}


async def test_one_way_passes_the_other_way() -> None:
    plan = ConnectionPlan(Fault.ONE_WAY, up=False, at_byte=3, linger_s=0.05)
    async with relayed(plan) as (relay, received):
        reader, writer = await connect(relay)
        writer.write(b"abcdefgh")
        assert await reader.readexactly(3) == b"abc"
        writer.write(b"ij")
        assert await received.until(10) == b"abcdefghij"
        assert await all_of(reader) == b""


async def test_held_bytes_arrive_after_those_of_a_newer_connection() -> None:
    plan = ConnectionPlan(Fault.REORDER, up=True, at_byte=2, linger_s=0.05)
    async with relayed(plan) as (relay, received):
        older, writer = await connect(relay)
        writer.write(b"abcdefgh")
        await all_of(older)  # its client has lost it
        assert await received.until(2) == b"ab"
        _, newer = await connect(relay)
        newer.write(b"12")
        assert await received.until(4) == b"ab12", "too few bytes to let the older one go"
        newer.write(b"345")
        assert await received.until(13) == b"ab12345cdefgh"
        assert relay.num_released == 1


async def test_a_refused_connection_brings_nothing() -> None:
    async with relayed(ConnectionPlan(Fault.REFUSE)) as (relay, received):
        reader, writer = await connect(relay)
        with contextlib.suppress(ConnectionError):
            writer.write(b"abc")
        assert await all_of(reader) == b""
        assert received.in_order == []
        assert relay.faults == {Fault.REFUSE: 1}


async def test_a_server_that_is_away_uses_up_no_plan() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    server.close()
    await server.wait_closed()
    plans = iter([ConnectionPlan()])
    async with ChaosRelay(address, plans, 0) as relay:
        reader, _ = await connect(relay)
        assert await all_of(reader) == b""
        assert relay.num_connections == 0
    assert next(plans) == ConnectionPlan()


def test_plans_are_drawn_from_their_seed() -> None:
    plans = [draw_plan(random.Random(seed)) for seed in range(500)]
    assert plans == [draw_plan(random.Random(seed)) for seed in range(500)]
    assert {plan.fault for plan in plans} == set(Fault) - {Fault.NONE}
    assert all(plan.up for plan in plans if plan.fault is Fault.REORDER)
