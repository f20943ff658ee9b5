"""What strategies are given: devices that take time, models looked up by path, an end that is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acespec.bench.lab.laboratory import Laboratory
from acespec.bench.lab.strategy import Processor, RunResult, World
from acespec.bench.virtual_clock import run_virtual
from acespec.edge_runtime import FinishReason
from acespec.edge_runtime.step_clock import now_ms
from acespec.speculation import SamplingParams, TokenCounts, candidate_row, coupled_pick, distribution
from acespec.speculation.draft_logits import LogitsRow
from coupled_text import coupled_text
from lab_world import DRAFT, END, TARGET, VOCAB, case, conditions, identity, table_pair


class Scripted:
    """A strategy that is one function."""

    name = "scripted"

    def __init__(self, script: Callable[[World], Awaitable[None]]) -> None:
        self.run = script


def run(
    tmp_path: Path, script: Callable[[World], Awaitable[None]], *prompt: int, **changes: Any
) -> RunResult:
    with Laboratory(table_pair(), tmp_path) as laboratory:
        return laboratory.run(Scripted(script), case(*prompt), conditions(**changes))


async def decode(world: World) -> None:
    """Cloud-only decoding, written as a baseline is."""
    world.up.send("open", 100)
    assert await world.up.receive() == "open"
    await world.prefill_target()
    path = world.start()
    while not world.finished:
        await world.target_forward(1)
        token = coupled_pick(world.target(path), world.request.seed, path.length)
        path = path.then(token)
        world.down.send(token, 4)
        world.commit([await world.down.receive()])


def test_a_baseline_written_against_the_interface(tmp_path: Path) -> None:
    result = run(tmp_path, decode, 4, 2, 6, end_tokens=False, max_new_tokens=5)
    assert result.strategy == "scripted"
    one_way, forward = 25.0, 146.0
    overhead = (100 + 66) / 12.5e3 + 96 / 12.5e3
    assert result.ttft_ms == pytest.approx(one_way + 2 * forward + one_way + overhead)
    assert result.total_ms == pytest.approx(result.ttft_ms + 4 * (forward + one_way + 70 / 12.5e3))
    assert (result.messages_up, result.messages_down) == (1, 5)
    assert (result.payload_up, result.payload_down) == (100, 20)
    assert result.target_forwards == 5
    assert result.edge_idle_share == 1.0


def test_the_models_at_a_path_are_the_tables_there(tmp_path: Path) -> None:
    sampling = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3)

    async def look(world: World) -> None:
        path = world.start().then(11).then(5)
        counts = TokenCounts((4, 2), (11, 5))
        target = distribution(TARGET((4, 2, 11, 5)), sampling, counts)
        assert np.array_equal(world.target(path).probs, target.probs)
        draft = candidate_row(LogitsRow(DRAFT((4, 2, 11, 5))), sampling, counts)
        assert np.array_equal(world.draft(path).distribution.probs, draft.distribution.probs)
        assert world.models.vocab_size == VOCAB
        assert now_ms() == 0.0, "looking up takes no time"
        world.commit([1])

    run(tmp_path, look, 4, 2, sampling=sampling, max_new_tokens=1)


def test_a_text_ends_where_the_definition_says(tmp_path: Path) -> None:
    reasons = set()
    for seed in range(8):
        result = run(tmp_path, decode, 4, 2, seed=seed, max_new_tokens=12)
        assert (result.tokens[-1] == END) == (result.finish_reason is FinishReason.END_TOKEN)
        assert END not in result.tokens[:-1]
        reasons.add(result.finish_reason)
    assert len(reasons) == 2


def test_the_limit_ends_a_text_and_nothing_may_follow(tmp_path: Path) -> None:
    async def too_much(world: World) -> None:
        await world.draft_step()
        world.commit([3, 4])
        assert world.finished
        assert world.room == 0
        world.commit([5])

    with pytest.raises(AssertionError, match="nothing follows"):
        run(tmp_path, too_much, max_new_tokens=2)


def test_a_strategy_that_stops_short_is_a_bug(tmp_path: Path) -> None:
    async def nothing(world: World) -> None:
        world.commit([])

    with pytest.raises(AssertionError, match="runs to the end"):
        run(tmp_path, nothing)


def test_one_side_computes_one_step_at_a_time() -> None:
    async def main() -> tuple[list[tuple[str, float]], Processor]:
        processor, ended = Processor(), list[tuple[str, float]]()

        async def step(name: str, step_ms: float) -> None:
            await processor.spend(step_ms)
            ended.append((name, now_ms()))

        await asyncio.gather(step("first", 10.0), step("second", 5.0), step("third", 1.0))
        return ended, processor

    ended, processor = run_virtual(main())
    assert ended == [("first", 10.0), ("second", 15.0), ("third", 16.0)]
    assert (processor.busy_ms, processor.num_steps) == (16.0, 3)


def test_prompts_are_fed_in_the_steps_of_the_real_code(tmp_path: Path) -> None:
    async def feed(world: World) -> None:
        await world.prefill_draft()  # 50 tokens in steps of 24
        world.commit([1])
        assert (world.edge.num_steps, world.edge.busy_ms) == (3, 3 * 8.5)
        await world.prefill_target()
        assert (world.cloud.num_steps, world.log.forwards) == (1, 0)

    result = run(tmp_path, feed, *range(50 % VOCAB), *[1] * 40, max_new_tokens=1)
    assert result.ttft_ms == pytest.approx(3 * 8.5)
    assert result.edge_idle_share == pytest.approx(0.0)


def test_shares_that_nothing_defines_are_none(tmp_path: Path) -> None:
    result = run(tmp_path, decode, max_new_tokens=2)
    assert result.acceptance is None
    assert result.hit_rate is None
    assert result.tokens_per_s == pytest.approx(len(result.tokens) / result.total_ms * 1000.0)


def test_the_decoded_text_is_the_coupled_one(tmp_path: Path) -> None:
    from acespec.wire import AcceptanceMode, Open

    meets = conditions(end_tokens=False)
    result = run(tmp_path, decode, 4, 2, 6, end_tokens=False)
    request = Open(
        "",
        "",
        identity().vocabulary_hash,
        VOCAB,
        (),
        meets.sampling,
        7,
        AcceptanceMode.COUPLED,
        (4, 2, 6),
        3,
        27,
    )
    assert [4, 2, 6, *result.tokens] == coupled_text(TARGET, request)
