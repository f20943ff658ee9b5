"""A paced runner's times, and what a session reports of them, on a clock that jumps."""

from __future__ import annotations

import asyncio

import pytest

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.pacing import PacedRunner
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.wire import TokenVerdict, memory_link
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from verifier_client import VerifierClient, open_request, session


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_step_takes_the_pace_or_as_long_as_it_needs() -> None:
    async def main() -> list[float]:
        runner = PacedRunner(InlineRunner(), min_ms=100.0)
        times = [now()]
        for latency_ms in (0.0, 30.0, 250.0):
            await runner.run(lambda: None, latency_ms)
            times.append(now())
        return times

    assert run_virtual(main()) == pytest.approx([0.0, 0.1, 0.2, 0.45])


def test_one_step_at_a_time_in_the_order_asked_for() -> None:
    async def main() -> list[tuple[int, float]]:
        runner = PacedRunner(InlineRunner(), min_ms=100.0)
        started: list[tuple[int, float]] = []
        await asyncio.gather(*(runner.run(lambda i=i: started.append((i, now()))) for i in range(3)))
        return started

    assert run_virtual(main()) == [
        (0, pytest.approx(0.0)),
        (1, pytest.approx(0.1)),
        (2, pytest.approx(0.2)),
    ]


def test_a_cancelled_wait_gives_up_its_turn_and_a_begun_step_keeps_it() -> None:
    async def main() -> float:
        runner = PacedRunner(InlineRunner(), min_ms=100.0)
        begun = asyncio.ensure_future(runner.run(lambda: None))
        waiting = asyncio.ensure_future(runner.run(lambda: None))
        last = asyncio.ensure_future(runner.run(now))
        await asyncio.sleep(0.05)
        waiting.cancel()
        begun.cancel()
        return await last

    assert run_virtual(main()) == pytest.approx(0.1)


def test_a_failing_step_fails_its_caller_and_frees_the_turn() -> None:
    async def main() -> float:
        runner = PacedRunner(InlineRunner(), min_ms=100.0)
        with pytest.raises(ZeroDivisionError):
            await runner.run(lambda: 1 // 0)
        return await runner.run(now)

    assert run_virtual(main()) == pytest.approx(0.1)


@pytest.mark.parametrize("min_ms", [-1.0, float("nan"), 1e9])
def test_an_impossible_pace_is_refused(min_ms: float) -> None:
    with pytest.raises(ValueError, match="paced forward"):
        PacedRunner(InlineRunner(), min_ms)


def test_verdicts_report_queue_and_compute_time() -> None:
    """Two sessions share the target: each waits for the other's forwards, and for its own prefill."""

    async def main() -> list[tuple[float, float]]:
        target = TableTargetEngine(hashed_table(8, salt=1), 8)
        runner = PacedRunner(InlineRunner(), min_ms=100.0)
        times = []
        async with (
            session(target, open_request(target, [1, 2]), runner) as first,
            session(target, open_request(target, [1]), runner) as second,
        ):
            # The first prefills [1] until 100 ms; the second has nothing to prefill: its round comes next.
            for verdict in await asyncio.gather(first.round([3]), second.round([3])):
                assert isinstance(verdict, TokenVerdict)
                times.append((verdict.times.queue_ms, verdict.times.compute_ms))
            alone = await second.round([4])
            times.append((alone.times.queue_ms, alone.times.compute_ms))
        return times

    first, second, alone = run_virtual(main())
    assert alone == (0.0, pytest.approx(100.0, rel=0.03))
    assert second == (pytest.approx(100.0, rel=0.03), pytest.approx(100.0, rel=0.03))
    assert first == (pytest.approx(200.0, rel=0.03), pytest.approx(100.0, rel=0.03))


def test_expected_latency_reaches_the_runner() -> None:
    """What simulations use: a forward of n tokens takes as long as the model of the hardware says."""

    async def main() -> tuple[float, float]:
        target = TableTargetEngine(hashed_table(8, salt=1), 8)
        edge, cloud = memory_link()
        serving = asyncio.ensure_future(
            Verifier(target, InlineRunner(), latency_ms=lambda n: 50.0 + 10.0 * n).serve(cloud)
        )
        client = VerifierClient(edge, open_request(target, [1, 2, 3]))
        await client.begin()
        verdict = await client.round([3, 4])
        await edge.close()
        await serving
        return now(), verdict.times.compute_ms

    # 70 ms for the prefill of two tokens, 80 ms for the round of three.
    assert run_virtual(main()) == (pytest.approx(0.15), pytest.approx(80.0, rel=0.03))
