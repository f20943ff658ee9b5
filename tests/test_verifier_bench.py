"""The benchmark's load says what a session would, hears only what is right, and counts what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from acespec.bench.verifier_batching import Batching, measure_batching
from acespec.bench.verifier_bench import figures
from acespec.bench.verifier_load import Edge, Load, connect, decode_text, measure_load, time_rounds
from acespec.bench.verifier_memory import SessionMemory, measure_session_memory, resident_bytes
from acespec.bench.verifier_script import CHAIN, ROUND_TOKENS, write_script
from acespec.bench.verifier_silent_race import SilentRace, measure_silent_race
from acespec.bench.verifier_soak import fitted, soak
from acespec.bench.verifier_zero_cost import (
    VOCAB_SIZE,
    VOCABULARY_HASH,
    ZeroCostEngine,
    zero_cost_answer,
    zero_cost_script,
)
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import BatchReport, Observer
from acespec.cloud_verifier.server import VerifierServer
from acespec.cloud_verifier.server_options import ServerOptions
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import ThreadRunner
from acespec.errors import AcespecError
from acespec.wire import SEQ_MODULUS, AcceptanceMode, Codec, EndVerdict, ServerTimes, TokenVerdict
from tiny_target import write_target_folder


class Counts(Observer):
    """What the verifier reports."""

    def __init__(self) -> None:
        self.batches: list[BatchReport] = []
        self.closed_sessions: list[str] = []
        self.num_resumed = 0

    def batch(self, report: BatchReport) -> None:
        self.batches.append(report)

    def closed(self, tenant: str, reason: str) -> None:
        self.closed_sessions.append(reason)

    def resumed(self, tenant: str) -> None:
        self.num_resumed += 1


@contextlib.asynccontextmanager
async def serving(limits: Limits | None = None) -> AsyncIterator[tuple[str, Counts]]:
    """A verifier in this process whose target costs nothing: its address, and what it reports."""
    counts, runner = Counts(), ThreadRunner("target")
    verifier = Verifier(ZeroCostEngine(), runner, limits or Limits(), counts)
    server = VerifierServer(verifier, ServerOptions(port=0))
    try:
        yield await server.start(), counts
    finally:
        await server.stop(0.0)
        runner.close()


def test_a_verdict_is_known_whatever_its_times() -> None:
    script = write_script("0", 1000, [1, 2], list(range(100, 110)))
    codec = Codec(1000, AcceptanceMode.COUPLED)

    def answer(seq: int, accepted: int, next_token: int, *times_ms: float) -> bytes:
        verdict = TokenVerdict(seq, accepted, next_token, ServerTimes(*times_ms))
        return codec.encode_cloud(verdict).SerializeToString()

    for times_ms in ((0.0, 0.0), (0.5, 80.0), (1e9, 1e9)):
        assert script.accepts(0, answer(0, CHAIN, 104, *times_ms))
        assert script.accepts(1, answer(1, CHAIN, 109, *times_ms))
        assert not script.accepts(0, answer(1, CHAIN, 104, *times_ms))
        assert not script.accepts(0, answer(0, CHAIN - 1, 104, *times_ms))
        assert not script.accepts(0, answer(0, CHAIN, 105, *times_ms))
    end = codec.encode_cloud(EndVerdict(0, CHAIN, ServerTimes(0.0, 0.0)))
    assert not script.accepts(0, end.SerializeToString())


async def test_a_script_is_served_to_its_end_and_over_breaks() -> None:
    num_rounds = SEQ_MODULUS + 6
    script = zero_cost_script(prompt_length=30, num_rounds=num_rounds)
    async with serving() as (address, counts), connect(address, 1) as (streams,):
        edge = Edge(streams, script)
        await edge.open()
        while not edge.finished:
            await edge.round()
            if edge.num_rounds % 10 == 0:
                await edge.drop()
                await edge.resume()
        await edge.close()
    assert counts.num_resumed == num_rounds // 10
    assert counts.closed_sessions == ["closed"]
    assert sum(batch.num_tokens for batch in counts.batches) == 29 + num_rounds * ROUND_TOKENS


async def test_the_target_that_costs_nothing_decodes_its_answer_and_checks_it() -> None:
    first = zero_cost_answer(1)
    async with serving() as (address, _), connect(address, 1) as (streams,):
        text = await decode_text(streams, VOCABULARY_HASH, VOCAB_SIZE, [5, 6], num_tokens=7)
        assert text == first * 7
        wrong = Edge(streams, write_script(VOCABULARY_HASH, VOCAB_SIZE, [5, 6], [*first, 8, 9, 10, 11]))
        await wrong.open()
        with pytest.raises(AcespecError, match="round 0 was answered"):
            await wrong.round()


async def test_what_the_verifier_refuses_is_told() -> None:
    async with serving() as (address, _), connect(address, 1) as (streams,):
        edge = Edge(streams, write_script("", VOCAB_SIZE, [5], zero_cost_answer(ROUND_TOKENS)))
        with pytest.raises(AcespecError, match=r"ended a session \(FAILED_PRECONDITION"):
            await edge.open()


async def test_load_is_what_was_answered_in_time_over_many_sessions() -> None:
    script = zero_cost_script(prompt_length=8, num_rounds=20)
    async with serving() as (address, counts):
        load = await measure_load(address, [script] * 6, num_channels=3, warm_up_s=0.2, seconds=0.5)
    rounds = sum(batch.num_sequences for batch in counts.batches if batch.prefill_tokens == 0)
    assert load.num_sessions == 6
    assert 0 < load.rounds_per_s * 0.5 < rounds
    assert 0.0 < load.p50_ms <= load.p99_ms
    assert len(counts.closed_sessions) > 6, "a session whose script ends begins anew"


async def test_one_by_one_no_forward_holds_two_rounds() -> None:
    script = zero_cost_script(prompt_length=8, num_rounds=40)
    largest = []
    for limits in (Limits(), Limits(max_chain=CHAIN, token_budget=ROUND_TOKENS)):
        async with serving(limits) as (address, counts), connect(address, 2) as channels:
            edges = [Edge(channels[index % 2], script) for index in range(8)]
            await asyncio.gather(*[edge.open() for edge in edges])
            await asyncio.gather(*[edge.round() for edge in edges])
            counts.batches.clear()  # they held prompts too
            assert await time_rounds(edges, 30) > 0.0
            await asyncio.gather(*[edge.close() for edge in edges])
        rounds = [batch.num_sequences for batch in counts.batches]
        assert sum(rounds) == 8 * 30
        largest.append(max(rounds))
    assert largest[0] > 1
    assert largest[1] == 1


async def test_memory_is_that_of_the_server_and_both_kinds_of_session_take_some() -> None:
    assert 2**20 < resident_bytes(os.getpid()) < 2**40
    script = zero_cost_script(prompt_length=4000, num_rounds=4)
    memory = await measure_session_memory(script, num_sessions=40, num_channels=2)
    assert 16.0 < memory.parked_kib < 1000.0, "4,000 tokens of 4 bytes at least"
    assert 16.0 < memory.open_kib < 1000.0


async def test_memory_that_grows_is_told_from_memory_that_is_uneasy() -> None:
    warm_up = [(float(second), 3.0 * second) for second in range(100)]
    uneasy = [(float(second), 300.0 + second % 2) for second in range(100, 400)]
    growing = [(float(second), 300.0 + second / 60.0) for second in range(100, 400)]
    slope, growth = fitted(warm_up + uneasy)
    assert (slope, growth) == pytest.approx((0.0, 0.0), abs=0.1)
    slope, growth = fitted(warm_up + growing)
    assert slope == pytest.approx(1024.0)
    assert growth == pytest.approx(266 / 60, abs=0.02)


async def test_a_short_soak_reports_what_it_did() -> None:
    report = await soak(0.05, Console(quiet=True), sample_s=0.2)
    assert report.num_sessions >= 64
    assert report.rounds_per_s > 0
    assert report.max_mib > 20


def test_the_last_line_holds_what_is_promised() -> None:
    loads = [Load(1, 900.0, 1.0, 2.0), Load(256, 3500.126, 70.0, 110.0)]
    found = figures(
        loads, SessionMemory(50.0, 20.0), Batching(16, 30.0, 10.0), SilentRace(10.0, 10.1), soaked=None
    )
    assert found["silent_race_time_ratio"] == 1.01
    assert found["rounds_per_s"] == 3500.126
    assert found["sessions"] == 256
    assert found["kib_per_session"] == 50.0
    assert found["batched_speedup"] == 3.0
    json.dumps(found)


async def test_rounds_of_a_model_are_the_same_batched_and_one_by_one(tmp_path: Path) -> None:
    """A verdict that differs from the text the target decodes by itself would raise."""
    model = write_target_folder(tmp_path)
    batching = await measure_batching(str(model), num_sessions=4, threads=1, num_turns=1)
    assert batching.num_sessions == 4
    assert batching.batched_rounds_per_s > 0.0
    assert batching.speedup == batching.batched_rounds_per_s / batching.one_by_one_rounds_per_s


async def test_a_race_without_drafts_gives_the_text_of_plain_decoding(tmp_path: Path) -> None:
    """Another text would raise."""
    race = await measure_silent_race(str(write_target_folder(tmp_path)), threads=1, num_turns=1)
    assert race.ratio == race.race_ms_per_token / race.plain_ms_per_token > 0.0
