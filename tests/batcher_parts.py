"""Batchers to test, on targets and runners that wait, fail or come late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.batcher import Batcher, Timed
from acespec.cloud_verifier.engine import Feed, TargetEngine
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import BatchReport, Observer
from acespec.compute import InlineRunner, StepRunner, T
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


def make_batcher(
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
