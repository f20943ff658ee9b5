"""Simulated time: it jumps, keeps order, and a deadlock is an error instead of a hang."""

from __future__ import annotations

import asyncio
import time

import pytest

from acespec.bench.virtual_clock import DeadlockError, run_virtual
from acespec.compute import InlineRunner


def test_an_hour_passes_at_once_and_timers_fire_in_order() -> None:
    fired: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        fired.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(sleeper("late", 3600.0), sleeper("early", 0.05), sleeper("middle", 7.0))

    started = time.monotonic()
    run_virtual(main())
    assert [name for name, _ in fired] == ["early", "middle", "late"]
    assert [at for _, at in fired] == pytest.approx([0.05, 7.0, 3600.0])
    assert time.monotonic() - started < 60.0


def test_a_step_takes_its_modelled_latency() -> None:
    async def main() -> tuple[int, float]:
        result = await InlineRunner().run(lambda: 7, latency_ms=146.0)
        return result, asyncio.get_running_loop().time()

    assert run_virtual(main()) == (7, pytest.approx(0.146))


def test_a_deadlock_is_an_error() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError):
        run_virtual(main())
