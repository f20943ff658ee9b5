"""Where model steps run: the one seam between the event loop and the compute it waits for.

Time is always the running loop's (``asyncio.get_running_loop().time()``), so a loop with simulated time and a
runner that sleeps for the modelled latency turn the same code into a simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class StepRunner(Protocol):
    """Runs a blocking model step without blocking the event loop."""

    async def run(self, step: Callable[[], T], latency_ms: float = 0.0) -> T:
        """Run ``step`` and return its result. ``latency_ms`` is what the step is expected to take."""

    def close(self) -> None:
        """Wait for the step under way and free the runner."""


class ThreadRunner:
    """One worker thread: steps run one at a time, in the order asked for."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, step: Callable[[], T], latency_ms: float = 0.0) -> T:  # noqa: ARG002 - real time passes by itself
        return await asyncio.get_running_loop().run_in_executor(self._executor, step)

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)


class InlineRunner:
    """Runs a step in the event loop, then sleeps for its modelled latency: for simulated time.

    In real time a step would take its own time and the modelled one.
    """

    async def run(self, step: Callable[[], T], latency_ms: float = 0.0) -> T:
        result = step()
        await asyncio.sleep(latency_ms / 1000.0)
        return result

    def close(self) -> None:
        """Nothing to free."""
