"""One engine sequence, owned by one session, freed exactly once and never under a running step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from acespec.cloud_verifier.engine import TargetEngine
from acespec.compute import StepRunner

T = TypeVar("T")


@dataclass(frozen=True)
class Timed(Generic[T]):
    """A step's result, and when it began and was over by the loop's clock, in seconds."""

    result: T
    started: float
    ended: float


class StepAbandonedError(Exception):
    """The session was over before its step began."""


@dataclass
class _Flight:
    """The step under way."""

    started: float | None = None
    abandoned: bool = False


class OwnedSequence:
    """A sequence of an engine and the steps a session runs on it, one at a time.

    Whoever awaits a step may be cancelled while a worker thread still computes; ``free`` then waits for the
    thread, and a step that has not begun never begins.
    """

    def __init__(self, engine: TargetEngine, runner: StepRunner, max_tokens: int) -> None:
        self._engine = engine
        self._runner = runner
        self._flight = _Flight()
        self._running: asyncio.Future[Any] | None = None
        self.handle = engine.open(max_tokens)

    async def run(self, step: Callable[[], T], latency_ms: float) -> Timed[T]:
        """Run ``step`` through the runner; ``latency_ms`` is what it is expected to take."""
        loop = asyncio.get_running_loop()
        flight = self._flight = _Flight()

        def guarded() -> T:
            flight.started = loop.time()
            # `started` is set before `abandoned` is looked at, and `free` goes the other way round: whichever
            # comes first, either the step does not run or `free` knows that it does.
            if flight.abandoned:
                raise StepAbandonedError
            return step()

        running = asyncio.ensure_future(self._runner.run(guarded, latency_ms))
        self._running = running
        result = await asyncio.shield(running)
        assert flight.started is not None
        return Timed(result, flight.started, loop.time())

    async def free(self) -> None:
        """Give the sequence back once no step runs on it. Goes on by itself if the caller is cancelled."""
        await asyncio.shield(asyncio.ensure_future(self._free()))

    async def _free(self) -> None:
        self._flight.abandoned = True
        running = self._running
        if running is not None:
            if self._flight.started is None:
                running.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # looked at, so that asyncio does not report it as lost
        self._engine.close(self.handle)
