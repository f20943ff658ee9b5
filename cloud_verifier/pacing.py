"""A runner that takes as long as a larger model would: for demonstrations and measurements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from acespec.compute import StepRunner, T


class PacedRunner:
    """Every step takes at least ``min_ms`` from its start, and one step runs at a time, as on a busy GPU.

    The wait belongs to the step: its caller sees it as compute time, other callers as queue time. Cancelling
    a run that waits for its turn gives the turn up; once begun it holds the turn to the end.
    """

    def __init__(self, inner: StepRunner, min_ms: float) -> None:
        if not 0.0 <= min_ms <= 600_000.0:
            raise ValueError(f"a paced forward takes between 0 and 600000 ms, not {min_ms}")
        self._inner = inner
        self._min_seconds = min_ms / 1000.0
        self._turn = asyncio.Lock()  # first come, first served

    async def run(self, step: Callable[[], T], latency_ms: float = 0.0) -> T:
        await self._turn.acquire()
        held = asyncio.ensure_future(self._hold(step, latency_ms))
        held.add_done_callback(look_at)
        return await asyncio.shield(held)

    async def _hold(self, step: Callable[[], T], latency_ms: float) -> T:
        """Run ``step`` and keep the turn for its time."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._min_seconds
        try:
            return await self._inner.run(step, latency_ms)
        finally:
            await asyncio.sleep(ends - loop.time())
            self._turn.release()

    def close(self) -> None:
        self._inner.close()


def look_at(step: asyncio.Future[T]) -> None:
    """Take note of a failure that nobody waits for any more, so that asyncio does not report it as lost."""
    if not step.cancelled():
        step.exception()
