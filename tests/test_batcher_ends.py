"""Work that is cancelled, closed or stopped, whenever: nothing of it goes on, and no other is touched."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from acespec.cloud_verifier.batcher import StepAbandonedError
from acespec.compute import ThreadRunner
from batcher_parts import (
    TABLE,
    GatedEngine,
    LateRunner,
    Reports,
    ask,
    copied,
    make_batcher,
    table_engine,
    tokens,
    virtual,
)


@virtual
async def test_work_that_is_cancelled_while_it_waits_is_dropped() -> None:
    engine = table_engine()
    batcher = make_batcher(engine)
    first, _ = batcher.open(100), batcher.open(100)
    waiting = ask(batcher, first, 1)
    await asyncio.sleep(0.001)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await ask(batcher, first, 2)).started == pytest.approx(0.003)
    assert engine.batches == [[1]]
    assert engine.sequences[first] == [2]


async def test_work_that_is_cancelled_in_the_runners_queue_is_dropped() -> None:
    engine, runner = table_engine(), LateRunner()
    batcher = make_batcher(engine, runner)
    cancelled, closed, kept = (batcher.open(100) for _ in range(3))
    asks = [ask(batcher, sequence, 1) for sequence in (cancelled, closed, kept)]
    await runner.taken.wait()
    asks[0].cancel()
    await batcher.close(closed)
    assert closed not in engine.sequences, "at once: its step has not begun"
    runner.begin.set()
    np.testing.assert_array_equal((await asks[2]).result, [TABLE((1,))])
    assert engine.batches == [[1]]
    assert engine.sequences[cancelled] == []
    results = await asyncio.gather(*asks[:2], return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, StepAbandonedError]


async def test_a_forward_all_of_which_was_abandoned_in_the_queue_does_not_run() -> None:
    engine, runner, reports = table_engine(), LateRunner(), Reports()
    batcher = make_batcher(engine, runner, reports)
    sequence = batcher.open(100)
    waiting = ask(batcher, sequence, 1)
    await runner.taken.wait()
    await batcher.close(sequence)
    runner.begin.set()
    with pytest.raises(StepAbandonedError):
        await waiting
    await batcher.stop()
    assert (engine.batches, engine.sequences, reports.batches) == ([], {}, [])


async def test_a_result_nobody_waits_for_is_dropped_and_the_sequence_can_only_be_closed() -> None:
    engine, runner = GatedEngine(), ThreadRunner("test")
    batcher = make_batcher(engine, runner)
    cancelled, kept = batcher.open(100), batcher.open(100)
    asks = [ask(batcher, sequence, 1) for sequence in (cancelled, kept)]
    await engine.entered.wait()
    asks[0].cancel()
    await asyncio.sleep(0)
    engine.gate.set()
    await asks[1]
    assert asks[0].cancelled()
    with pytest.raises(AssertionError):
        await batcher.check(cancelled, tokens(1), copied)
    await batcher.close(cancelled)
    await batcher.close(kept)
    assert engine.sequences == {}
    runner.close()


async def test_a_sequence_is_closed_after_the_forward_that_feeds_it_also_if_the_closer_is_cancelled() -> None:
    engine, runner = GatedEngine(), ThreadRunner("test")
    batcher = make_batcher(engine, runner)
    sequence, other, idle = (batcher.open(100) for _ in range(3))
    batcher.park(idle)
    running = [ask(batcher, sequence, 1), ask(batcher, other, 1)]
    await engine.entered.wait()
    await batcher.close(idle)
    assert idle not in engine.sequences, "it is not fed"
    closers = [asyncio.create_task(batcher.close(sequence)) for _ in range(2)]
    await asyncio.sleep(0)
    closers[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await closers[0]
    with pytest.raises(StepAbandonedError):
        await running[0]
    assert sequence in engine.sequences
    engine.gate.set()
    await closers[1]
    assert sequence not in engine.sequences
    assert len((await running[1]).result) == 1
    assert not engine.closed_under_way
    await batcher.close(sequence)
    await batcher.close(other)
    assert engine.sequences == {}
    runner.close()


@virtual
async def test_closing_drops_what_waits() -> None:
    engine = table_engine()
    batcher = make_batcher(engine)
    sequence, _ = batcher.open(100), batcher.open(100)
    waiting = ask(batcher, sequence, 1)
    await asyncio.sleep(0.001)
    await batcher.close(sequence)
    with pytest.raises(StepAbandonedError):
        await waiting
    with pytest.raises(StepAbandonedError):
        await ask(batcher, sequence, 1)
    assert engine.batches == []


@virtual
async def test_a_prompt_under_way_ends_with_its_sequence() -> None:
    engine = table_engine()
    batcher = make_batcher(engine, token_budget=65, latency_ms=lambda num_tokens: 10.0)
    sequence, other = batcher.open(1000), batcher.open(1000)
    filling = asyncio.create_task(batcher.prefill(sequence, np.ones(1000, np.int64)))
    await asyncio.sleep(0.025)
    await batcher.close(sequence)
    with pytest.raises(StepAbandonedError):
        await filling
    assert asyncio.get_running_loop().time() == pytest.approx(0.03), "after the forward under way"
    assert engine.batches == [[65]] * 3
    await ask(batcher, other, 1)


@virtual
async def test_a_prompt_whose_caller_is_cancelled_goes_no_further() -> None:
    engine = table_engine()
    batcher = make_batcher(engine, token_budget=65, latency_ms=lambda num_tokens: 10.0)
    sequence, other = batcher.open(1000), batcher.open(1000)
    filling = asyncio.create_task(batcher.prefill(sequence, np.ones(1000, np.int64)))
    await asyncio.sleep(0.025)
    filling.cancel()
    await ask(batcher, other, 1)
    assert engine.batches == [[65]] * 3 + [[1]]
    await batcher.close(sequence)
    assert list(engine.sequences) == [other]


@virtual
async def test_a_prompt_cancelled_between_two_forwards_leaves_a_sequence_that_can_only_be_closed() -> None:
    engine = table_engine()
    batcher = make_batcher(engine, token_budget=65, latency_ms=lambda num_tokens: 10.0)
    sequence, other = batcher.open(1000), batcher.open(1000)
    filling = asyncio.create_task(batcher.prefill(sequence, np.ones(1000, np.int64)))
    await asyncio.sleep(0.005)
    checking = asyncio.create_task(batcher.check(other, np.ones(65, np.int64), copied))
    await asyncio.sleep(0.01)
    filling.cancel()
    await checking
    assert engine.batches == [[65], [65]]
    with pytest.raises(AssertionError):
        await batcher.prefill(sequence, tokens(1))
    await batcher.close(sequence)
    assert list(engine.sequences) == [other]


async def test_a_prompt_cancelled_just_as_a_part_of_it_was_fed_is_not_taken_for_one_that_was_not() -> None:
    engine, runner = table_engine(), LateRunner()
    batcher = make_batcher(engine, runner, token_budget=65)
    sequence = batcher.open(1000)
    filling = asyncio.create_task(batcher.prefill(sequence, np.ones(100, np.int64)))
    await runner.taken.wait()
    runner.begin.set()
    filling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await filling
    assert engine.batches == [[65]]
    with pytest.raises(AssertionError):
        await batcher.prefill(sequence, tokens(1))


async def test_stop_gives_up_what_waits_and_lets_the_forward_under_way_end() -> None:
    engine, runner = GatedEngine(), ThreadRunner("test")
    batcher = make_batcher(engine, runner)
    first, second, third = (batcher.open(1000) for _ in range(3))
    running = ask(batcher, first, 1)
    filling = asyncio.create_task(batcher.prefill(second, np.ones(700, np.int64)))
    await engine.entered.wait()
    waiting = ask(batcher, third, 1)
    await asyncio.sleep(0)
    stopping = asyncio.create_task(batcher.stop())
    for task in (waiting, filling):
        with pytest.raises(StepAbandonedError):
            await task
    with pytest.raises(StepAbandonedError):
        await ask(batcher, third, 1)
    assert not stopping.done()
    engine.gate.set()
    await stopping
    assert len((await running).result) == 1
    assert engine.batches == [[1, 511]]
    for sequence in (first, second, third):
        await batcher.close(sequence)
    assert engine.sequences == {}
    assert not engine.closed_under_way
    runner.close()
