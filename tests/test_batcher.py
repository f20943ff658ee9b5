"""Work of many sequences goes through the target together; what becomes of one touches no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.batcher import Batcher, StepAbandonedError, Timed
from acespec.cloud_verifier.engine import Feed, KvPoolFullError, TargetEngine
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import BatchReport, Observer
from acespec.compute import InlineRunner, StepRunner, T, ThreadRunner
from fake_draft import hashed_table
from fake_target import TableTargetEngine

VOCAB = 8
TABLE = hashed_table(VOCAB, salt=2)
BAD_TOKEN = 7


class Reports(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.batches: list[BatchReport] = []

    def batch(self, report: BatchReport) -> None:
        self.batches.append(report)


class GatedEngine(TableTargetEngine):
    """A target whose steps wait in their thread until they are let go."""

    def __init__(self) -> None:
        super().__init__(TABLE, VOCAB)
        self.loop = asyncio.get_running_loop()
        self.gate = threading.Event()
        self.entered = asyncio.Event()
        self.closed_under_way = False
        self._running: set[int] = set()

    def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
        self._running = {feed.sequence for feed in feeds}
        self.loop.call_soon_threadsafe(self.entered.set)
        assert self.gate.wait(30.0)
        try:
            return super().step(feeds)
        finally:
            self._running = set()

    def close(self, sequence: int) -> None:
        self.closed_under_way |= sequence in self._running
        super().close(sequence)


class FailingEngine(TableTargetEngine):
    """A target that fails on one token, and then holds what it held."""

    def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
        if any(BAD_TOKEN in feed.tokens for feed in feeds):
            raise RuntimeError("out of memory")
        return super().step(feeds)


class LateRunner(InlineRunner):
    """Has taken a step and not begun it: what a thread's queue does."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()
        self.begin = asyncio.Event()

    async def run(self, step: Callable[[], T], latency_ms: float = 0.0) -> T:
        self.taken.set()
        await self.begin.wait()
        return step()


def table_engine(**options: int) -> TableTargetEngine:
    return TableTargetEngine(TABLE, VOCAB, **options)


def make(
    engine: TargetEngine,
    runner: StepRunner | None = None,
    observer: Observer | None = None,
    latency_ms: Callable[[int], float] = lambda num_tokens: 0.0,
    **limits: Any,
) -> Batcher:
    return Batcher(
        engine, runner or InlineRunner(), Limits(**limits), observer or Observer(), latency_ms=latency_ms
    )


def tokens(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def copied(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return logits.copy()


def ask(batcher: Batcher, sequence: int, *values: int) -> asyncio.Task[Timed[NDArray[np.float32]]]:
    """A check whose result are its logits."""
    return asyncio.create_task(batcher.check(sequence, tokens(*values), copied))


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run an asynchronous test in simulated time."""

    def run() -> None:
        run_virtual(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtual
async def test_work_of_several_sequences_is_one_forward_and_each_gets_its_own() -> None:
    engine = table_engine()
    batcher = make(engine)
    sequences = [batcher.open(100) for _ in range(5)]
    asks = [ask(batcher, sequence, sequence, 1, 2) for sequence in sequences]
    for sequence, timed in zip(sequences, await asyncio.gather(*asks), strict=True):
        path = (sequence, 1, 2)
        np.testing.assert_array_equal(timed.result, [TABLE(path[: i + 1]) for i in range(3)])
    assert engine.batches == [[3] * 5]


@virtual
async def test_a_batch_waits_for_others_unless_all_wait() -> None:
    engine = table_engine()
    batcher = make(engine, latency_ms=lambda num_tokens: 10.0 * num_tokens)
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
    batcher = make(engine, latency_ms=lambda num_tokens: 10.0)
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
    batcher = make(engine, latency_ms=lambda num_tokens: 1.0)

    async def decode(sequence: int) -> None:
        for _ in range(20):
            await batcher.check(sequence, tokens(1), lambda logits: int(logits[0].argmax()))

    await asyncio.gather(*[decode(batcher.open(100)) for _ in range(6)])
    assert engine.batches == [[1] * 6] * 20


@virtual
async def test_no_forward_has_more_tokens_than_the_budget() -> None:
    engine, reports = table_engine(), Reports()
    batcher = make(engine, observer=reports, token_budget=70)
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
    batcher = make(
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
    batcher = make(engine)
    await batcher.prefill(batcher.open(10), tokens())
    assert engine.batches == []


@virtual
async def test_a_pool_without_room_opens_nothing() -> None:
    engine = table_engine(kv_tokens=100)
    batcher = make(engine)
    first = batcher.open(60)
    with pytest.raises(KvPoolFullError):
        batcher.open(60)
    await batcher.close(first)
    batcher.open(60)


@virtual
async def test_one_whose_step_fails_fails_alone() -> None:
    engine, reports = FailingEngine(TABLE, VOCAB), Reports()
    batcher = make(engine, observer=reports)
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
    batcher = make(engine)

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
    batcher = make(engine, token_budget=65)
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
    batcher = make(engine, BrokenRunner())
    sequence = batcher.open(100)
    with pytest.raises(RuntimeError, match="after shutdown"):
        await ask(batcher, sequence, 1)
    await batcher.close(sequence)
    assert engine.sequences == {}


@virtual
async def test_work_that_is_cancelled_while_it_waits_is_dropped() -> None:
    engine = table_engine()
    batcher = make(engine)
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
    batcher = make(engine, runner)
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
    batcher = make(engine, runner, reports)
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
    batcher = make(engine, runner)
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
    batcher = make(engine, runner)
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
    batcher = make(engine)
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
    batcher = make(engine, token_budget=65, latency_ms=lambda num_tokens: 10.0)
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
    batcher = make(engine, token_budget=65, latency_ms=lambda num_tokens: 10.0)
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
    batcher = make(engine, token_budget=65, latency_ms=lambda num_tokens: 10.0)
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
    batcher = make(engine, runner, token_budget=65)
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
    batcher = make(engine, runner)
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


async def test_many_sequences_on_a_thread_each_read_their_own_text() -> None:
    """The table's logits depend on all tokens before: a mix-up of any two sequences shows."""
    engine, runner, reports = table_engine(), ThreadRunner("test"), Reports()
    batcher = make(engine, runner, reports)

    async def decode(seed: int) -> list[int]:
        rng = np.random.default_rng(seed)
        sequence = batcher.open(400)
        text = rng.integers(0, VOCAB, rng.integers(1, 40)).tolist()
        await batcher.prefill(sequence, np.array(text[:-1], np.int64))
        for _ in range(12):
            chain = [text[-1], *rng.integers(0, VOCAB, rng.integers(0, 5)).tolist()]

            def decide(logits: NDArray[np.float32]) -> list[int]:
                engine.rollback(sequence, len(text))
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
