"""Work of many sequences goes through the target together; what becomes of one touches no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.engine import KvPoolFullError
from acespec.compute import InlineRunner, T, ThreadRunner
from batcher_parts import (
    BAD_TOKEN,
    TABLE,
    VOCAB,
    FailingEngine,
    Reports,
    ask,
    copied,
    make_batcher,
    table_engine,
    tokens,
    virtual,
)


@virtual
async def test_work_of_several_sequences_is_one_forward_and_each_gets_its_own() -> None:
    engine = table_engine()
    batcher = make_batcher(engine)
    sequences = [batcher.open(100) for _ in range(5)]
    asks = [ask(batcher, sequence, sequence, 1, 2) for sequence in sequences]
    for sequence, timed in zip(sequences, await asyncio.gather(*asks), strict=True):
        path = (sequence, 1, 2)
        np.testing.assert_array_equal(timed.result, [TABLE(path[: i + 1]) for i in range(3)])
    assert engine.batches == [[3] * 5]


@virtual
async def test_a_batch_waits_for_others_unless_all_wait() -> None:
    engine = table_engine()
    batcher = make_batcher(engine, latency_ms=lambda num_tokens: 10.0 * num_tokens)
    first, second = batcher.open(100), batcher.open(100)
    timed = await ask(batcher, first, 1)
    assert (timed.started, timed.ended) == pytest.approx((0.002, 0.012))
    both = await asyncio.gather(ask(batcher, first, 1), ask(batcher, second, 1))
    assert [timed.started for timed in both] == pytest.approx([0.012, 0.012])
    assert [timed.ended for timed in both] == pytest.approx([0.032, 0.032])
    batcher.park(second)
    assert (await ask(batcher, first, 1)).started == pytest.approx(0.032)
    batcher.wake(second)
    assert (await ask(batcher, first, 1)).started == pytest.approx(0.044)
    waiting = ask(batcher, first, 1)
    await asyncio.sleep(0.001)
    await batcher.close(second)
    assert (await waiting).started == pytest.approx(0.055)


@virtual
async def test_what_came_during_a_forward_goes_in_the_next_one_at_once() -> None:
    engine = table_engine()
    batcher = make_batcher(engine, latency_ms=lambda num_tokens: 10.0)
    first, *others = [batcher.open(100) for _ in range(4)]
    running = ask(batcher, first, 1)
    await asyncio.sleep(0.005)
    waiting = [ask(batcher, sequence, 1) for sequence in others[:2]]
    ended = (await running).ended
    assert [timed.started for timed in await asyncio.gather(*waiting)] == [ended, ended]
    assert engine.batches == [[1], [1, 1]]


@virtual
async def test_sequences_that_go_on_at_once_stay_together() -> None:
    engine = table_engine()
    batcher = make_batcher(engine, latency_ms=lambda num_tokens: 1.0)

    async def decode(sequence: int) -> None:
        for _ in range(20):
            await batcher.check(sequence, tokens(1), lambda logits: int(logits[0].argmax()))

    await asyncio.gather(*[decode(batcher.open(100)) for _ in range(6)])
    assert engine.batches == [[1] * 6] * 20


@virtual
async def test_no_forward_has_more_tokens_than_the_budget() -> None:
    engine, reports = table_engine(), Reports()
    batcher = make_batcher(engine, observer=reports, token_budget=70)
    prompts = [batcher.prefill(batcher.open(500), np.ones(length, np.int64)) for length in (300, 1, 90, 71)]
    checks = [batcher.check(batcher.open(100), np.ones(n, np.int64), copied) for n in (64, 5, 20, 33)]
    await asyncio.gather(*prompts, *checks)
    assert max(sum(batch) for batch in engine.batches) == 70
    assert sum(map(sum, engine.batches)) == 300 + 1 + 90 + 71 + 64 + 5 + 20 + 33
    assert [report.num_tokens for report in reports.batches] == [sum(batch) for batch in engine.batches]
    assert [report.num_sequences for report in reports.batches] == [len(batch) for batch in engine.batches]
    assert sum(report.prefill_tokens for report in reports.batches) == 300 + 1 + 90 + 71


@pytest.mark.parametrize("prefill_deadline_ms", [0.0, 500.0])
def test_a_long_prompt_delays_a_chain_by_one_forward_at_most(prefill_deadline_ms: float) -> None:
    run_virtual(_long_prompt_and_chain(prefill_deadline_ms))


async def _long_prompt_and_chain(prefill_deadline_ms: float) -> None:
    engine = table_engine(max_context=6000)
    batcher = make_batcher(
        engine, latency_ms=lambda num_tokens: num_tokens / 5.0, prefill_deadline_ms=prefill_deadline_ms
    )
    prompt, chain = batcher.open(6000), batcher.open(1000)
    text = np.arange(5000) % VOCAB
    filling = asyncio.create_task(batcher.prefill(prompt, text))
    longest = 512 / 5.0 / 1000.0
    num_chains = 0
    while not filling.done():
        await asyncio.sleep(0.01)
        asked = asyncio.get_running_loop().time()
        timed = await ask(batcher, chain, *[1] * 60)
        assert timed.started - asked <= longest + 0.002
        num_chains += 1
    assert num_chains >= 5
    assert engine.sequences[prompt] == text.tolist()
    assert len(engine.batches) < 30, "and the chain does not starve the prompt"


@virtual
async def test_a_prompt_without_tokens_is_fed_already() -> None:
    engine = table_engine()
    batcher = make_batcher(engine)
    await batcher.prefill(batcher.open(10), tokens())
    assert engine.batches == []


@virtual
async def test_a_pool_without_room_opens_nothing() -> None:
    engine = table_engine(kv_tokens=100)
    batcher = make_batcher(engine)
    first = batcher.open(60)
    with pytest.raises(KvPoolFullError):
        batcher.open(60)
    await batcher.close(first)
    batcher.open(60)


@virtual
async def test_one_whose_step_fails_fails_alone() -> None:
    engine, reports = FailingEngine(TABLE, VOCAB), Reports()
    batcher = make_batcher(engine, observer=reports)
    sequences = [batcher.open(100) for _ in range(4)]
    work: list[Coroutine[Any, Any, Any]] = [
        batcher.check(sequences[0], tokens(1), copied),
        batcher.check(sequences[1], tokens(1, BAD_TOKEN), copied),
        batcher.prefill(sequences[2], tokens(3, 4)),
        batcher.prefill(sequences[3], tokens(BAD_TOKEN)),
    ]
    good, bad, filled, unfilled = await asyncio.gather(*work, return_exceptions=True)
    np.testing.assert_array_equal(good.result, [TABLE((1,))])
    assert filled is None
    assert [type(error) for error in (bad, unfilled)] == [RuntimeError, RuntimeError]
    assert list(engine.sequences.values()) == [[1], [], [3, 4], []]
    assert [report.num_sequences for report in reports.batches] == [4]
    assert len((await ask(batcher, sequences[2], 5)).result) == 1, "the batcher goes on"


@virtual
async def test_one_whose_decision_fails_fails_alone() -> None:
    engine = table_engine()
    batcher = make_batcher(engine)

    def refuse(logits: NDArray[np.float32]) -> None:
        raise ZeroDivisionError

    first, second = batcher.open(100), batcher.open(100)
    refused = asyncio.create_task(batcher.check(first, tokens(1), refuse))
    good = await ask(batcher, second, 1)
    np.testing.assert_array_equal(good.result, [TABLE((1,))])
    with pytest.raises(ZeroDivisionError):
        await refused
    assert engine.batches == [[1, 1]], "no other is stepped again"


@virtual
async def test_a_prompt_that_fails_half_way_is_given_up() -> None:
    engine = FailingEngine(TABLE, VOCAB)
    batcher = make_batcher(engine, token_budget=65)
    sequence = batcher.open(1000)
    prompt = np.ones(300, np.int64)
    prompt[100] = BAD_TOKEN
    with pytest.raises(RuntimeError, match="out of memory"):
        await batcher.prefill(sequence, prompt)
    other = batcher.open(1000)
    await ask(batcher, other, 1)
    assert engine.batches == [[65], [1]]
    await batcher.close(sequence)
    assert list(engine.sequences) == [other]


@virtual
async def test_a_runner_that_fails_fails_those_it_ran_for() -> None:
    class BrokenRunner(InlineRunner):
        async def run(self, step: Callable[[], T], latency_ms: float = 0.0) -> T:
            raise RuntimeError("cannot schedule new futures after shutdown")

    engine = table_engine()
    batcher = make_batcher(engine, BrokenRunner())
    sequence = batcher.open(100)
    with pytest.raises(RuntimeError, match="after shutdown"):
        await ask(batcher, sequence, 1)
    await batcher.close(sequence)
    assert engine.sequences == {}


async def test_many_sequences_on_a_thread_each_read_their_own_text() -> None:
    """The table's logits depend on all tokens before: a mix-up of any two sequences shows."""
    engine, runner, reports = table_engine(), ThreadRunner("test"), Reports()
    batcher = make_batcher(engine, runner, reports)

    async def decode(seed: int) -> list[int]:
        rng = np.random.default_rng(seed)
        sequence = batcher.open(400)
        text = rng.integers(0, VOCAB, rng.integers(1, 40)).tolist()
        await batcher.prefill(sequence, np.array(text[:-1], np.int64))
        for _ in range(12):
            chain = [text[-1], *rng.integers(0, VOCAB, rng.integers(0, 5)).tolist()]

            def decide(logits: NDArray[np.float32]) -> list[int]:
                engine.keep(sequence, len(text))
                return [int(row.argmax()) for row in logits]

            text.append((await batcher.check(sequence, np.array(chain), decide)).result[0])
            await asyncio.sleep(float(rng.random() * 0.002))
        await batcher.close(sequence)
        return text

    def alone(seed: int) -> list[int]:
        rng = np.random.default_rng(seed)
        text: list[int] = rng.integers(0, VOCAB, rng.integers(1, 40)).tolist()
        for _ in range(12):
            text.append(int(TABLE(tuple(text)).argmax()))
        return text

    texts = await asyncio.gather(*[decode(seed) for seed in range(30)])
    assert texts == [alone(seed) for seed in range(30)]
    assert engine.sequences == {}
    assert max(report.num_sequences for report in reports.batches) > 5
    await batcher.stop()
    runner.close()
