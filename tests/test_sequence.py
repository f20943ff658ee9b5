"""Sequences are freed once, whatever happens to a session, and never under a step that runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from acespec.cloud_verifier.engine import Feed
from acespec.cloud_verifier.sequence import StepAbandonedError
from acespec.cloud_verifier.session import serve_session
from acespec.compute import InlineRunner, StepRunner, T, ThreadRunner
from acespec.wire import Close, ErrorCode, SessionError, memory_link
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from verifier_client import VerifierClient, all_answers, decoded_text, open_request, refused, session

VOCAB = 8
TABLE = hashed_table(VOCAB, salt=2)


class GatedEngine(TableTargetEngine):
    """A target whose ``verify`` waits in its thread until it is let go."""

    def __init__(self) -> None:
        super().__init__(TABLE, VOCAB)
        self.gate = threading.Event()
        self.on_entry: Callable[[], None] = lambda: None
        self.freed_while_running = False
        self._running: int | None = None

    def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
        if not feeds[0].num_logits:
            return super().step(feeds)
        self._running = feeds[0].sequence
        self.on_entry()
        assert self.gate.wait(30.0)
        try:
            return super().step(feeds)
        finally:
            self._running = None

    def close(self, sequence: int) -> None:
        self.freed_while_running |= self._running == sequence
        super().close(sequence)


class CountingRunner(ThreadRunner):
    """Tells when a second step has been handed to it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.num_steps = 0
        self.second = asyncio.Event()

    async def run(self, step: Callable[[], T], latency_ms: float = 0.0) -> T:
        self.num_steps += 1
        if self.num_steps == 2:
            asyncio.get_running_loop().call_soon(self.second.set)
        return await super().run(step, latency_ms)


async def started(engine: GatedEngine, runner: StepRunner) -> tuple[asyncio.Task[None], VerifierClient]:
    """A session whose first round is being computed."""
    loop = asyncio.get_running_loop()
    entered = asyncio.Event()
    engine.on_entry = lambda: loop.call_soon_threadsafe(entered.set)
    serving, client = await asked(engine, runner)
    await entered.wait()
    return serving, client


async def asked(engine: GatedEngine, runner: StepRunner) -> tuple[asyncio.Task[None], VerifierClient]:
    """A session that has sent its first round."""
    edge, cloud = memory_link()
    serving = asyncio.create_task(serve_session(cloud, engine, runner))
    client = VerifierClient(edge, open_request(engine, [1]))
    await client.begin()
    await client.send(client.next_round([1, 2]))
    return serving, client


async def test_a_session_cancelled_in_a_forward_is_freed_after_it() -> None:
    engine, runner = GatedEngine(), ThreadRunner("test")
    serving, _ = await started(engine, runner)
    serving.cancel()
    await asyncio.sleep(0)
    assert len(engine.sequences) == 1
    engine.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert engine.sequences == {}
    assert not engine.freed_while_running
    runner.close()


async def test_a_session_cancelled_twice_is_freed_too() -> None:
    engine, runner = GatedEngine(), ThreadRunner("test")
    serving, _ = await started(engine, runner)
    serving.cancel()
    await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert len(engine.sequences) == 1
    freed = asyncio.Event()
    loop, close = asyncio.get_running_loop(), engine.close

    def close_and_tell(sequence: int) -> None:
        close(sequence)
        loop.call_soon_threadsafe(freed.set)

    engine.close = close_and_tell  # type: ignore[method-assign]
    engine.gate.set()
    await freed.wait()
    assert engine.sequences == {}
    assert not engine.freed_while_running
    runner.close()


async def test_a_step_that_waits_for_its_turn_never_runs_once_its_session_is_cancelled() -> None:
    engine, runner = GatedEngine(), CountingRunner("test")
    running, first = await started(engine, runner)
    waiting, _ = await asked(engine, runner)
    await runner.second.wait()
    assert len(engine.sequences) == 2
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(engine.sequences) == 1, "freed at once: its step had not begun"
    engine.gate.set()
    await first.receive()
    await first.link.close()
    await running
    assert engine.num_forwards == 1
    assert engine.sequences == {}
    runner.close()


async def test_an_edge_that_leaves_stops_the_decoding() -> None:
    """After the forward under way: a thread cannot be stopped."""
    engine, runner = GatedEngine(), ThreadRunner("test")
    loop, entered = asyncio.get_running_loop(), asyncio.Event()
    engine.on_entry = lambda: loop.call_soon_threadsafe(entered.set)
    async with session(engine, open_request(engine, [1], token_limit=1000), runner) as client:
        await client.send(client.next_decode(900))
        await entered.wait()
        await client.link.close()
        engine.gate.set()
    assert engine.num_forwards == 1
    assert engine.sequences == {}
    runner.close()


async def test_a_close_stops_the_decoding() -> None:
    engine = TableTargetEngine(TABLE, VOCAB)
    async with session(engine, open_request(engine, [1], token_limit=1000)) as client:
        await client.send(client.next_decode(900))
        await client.send(Close())
        with pytest.raises(SessionError, match="ended the session"):
            await all_answers(client)
    assert 1 <= engine.num_forwards < 10
    assert engine.sequences == {}


class LateRunner(InlineRunner):
    """Runs its step whether or not the caller still waits: what a thread that has just begun does."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()
        self.step: Callable[[], object] = lambda: None

    async def run(self, step: Callable[[], T], latency_ms: float = 0.0) -> T:
        self.step = step
        self.taken.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets this event")


async def test_a_step_that_begins_just_after_its_session_ended_leaves_the_engine_alone() -> None:
    engine, runner = TableTargetEngine(TABLE, VOCAB), LateRunner()
    edge, cloud = memory_link()
    serving = asyncio.create_task(serve_session(cloud, engine, runner))
    client = VerifierClient(edge, open_request(engine, [1]))
    await client.begin()
    await client.send(client.next_round([1]))
    await runner.taken.wait()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert engine.sequences == {}
    with pytest.raises(StepAbandonedError):
        runner.step()


class FailingEngine(TableTargetEngine):
    """A target that fails on one token."""

    def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
        if any(feed.num_logits and 7 in feed.tokens for feed in feeds):
            raise RuntimeError("out of memory at address 0xdeadbeef")
        return super().step(feeds)


async def test_a_failure_ends_its_own_session_and_tells_the_edge_no_detail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FailingEngine(hashed_table(7, salt=2), 8)  # token 7 is known and never drawn
    healthy_request = open_request(engine, [1, 2])
    expected = await decoded_text(engine, healthy_request)
    async with session(engine, healthy_request) as healthy:
        await healthy.decode(3)
        async with session(engine, open_request(engine, [7])) as client:
            error = await refused(client, "the verifier failed", client.next_round([]))
            assert client.opened is not None
            reference = client.opened.session_id.hex()
        assert error.code is ErrorCode.INTERNAL
        assert reference in error.message
        assert "deadbeef" not in error.message
        assert f"session {reference} failed" in caplog.text
        assert "deadbeef" in caplog.text
        await healthy.decode(healthy.remaining)
        assert healthy.committed == expected
    assert engine.sequences == {}


async def test_an_open_that_is_refused_leaves_no_sequence() -> None:
    engine = TableTargetEngine(TABLE, VOCAB)
    edge, cloud = memory_link()
    serving = asyncio.create_task(serve_session(cloud, engine, InlineRunner()))
    client = VerifierClient(edge, open_request(engine, [1], vocabulary_hash=""))
    await client.begin()
    with pytest.raises(SessionError, match="vocabulary"):
        await serving
    assert engine.num_opened == 0
