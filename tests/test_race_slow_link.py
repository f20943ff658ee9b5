"""The race over links of a few kilobits a second, every byte on the wire counted."""

from __future__ import annotations

import asyncio

import pytest

from acespec.bench.lab.simulated_link import LinkConditions, SimulatedLink
from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.race_sender import PROBE_NODES
from acespec.edge_runtime.request import GenerationRequest
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from acespec.wire import EdgeTransport, memory_link
from acespec.wire.memory import Delay
from fake_draft import TableDraftEngine, mixed
from fake_target import TableTargetEngine
from in_process import draft_model, serve
from policy_world import EAGER, OTHER, RACE, TARGET, VOCAB

RTT_MS = 50.0
STEP_MS = 8.5
PROMPT = (4, 2) * 60
"""As long as prompts are: what the introduction takes tells of the rate."""


def stalling(carry: Delay, stall_s: tuple[float, float]) -> Delay:
    """What would come out of ``carry`` between these times of the loop's clock comes at the later one."""
    begins_s, ends_s = stall_s

    async def delay(num_bytes: int) -> None:
        await carry(num_bytes)
        at_s = asyncio.get_running_loop().time()
        if begins_s <= at_s < ends_s:
            await asyncio.sleep(ends_s - at_s)

    return delay


def generated(
    kbps: float,
    target_ms: float,
    *,
    races: bool,
    num_tokens: int = 128,
    seed: int = 1,
    stall_s: tuple[float, float] = (0.0, 0.0),
) -> GenerationResult:
    """Generate over a link of so many kilobits a second each way, of which nothing comes in ``stall_s``."""
    link = SimulatedLink(LinkConditions.symmetric(RTT_MS, bytes_per_second=kbps * 125.0), seed)
    engine = TableTargetEngine(TARGET, VOCAB, max_context=1024)
    draft = TableDraftEngine(mixed(OTHER, TARGET, 0.6), VOCAB, buckets=(1, 8, 16), max_context=1024)
    serving: list[asyncio.Task[None]] = []

    async def main() -> GenerationResult:
        verifier = Verifier(engine, InlineRunner(), EAGER, latency_ms=lambda _: target_ms)

        async def connect(timeout_s: float) -> EdgeTransport:
            up, down = stalling(link.up.delay, stall_s), stalling(link.down.delay, stall_s)
            edge, cloud = memory_link(up_delay=up, down_delay=down)
            serving.append(asyncio.create_task(serve(cloud, verifier)))
            return edge

        try:
            return await generate(
                connect,
                GenerationRequest(PROMPT, (), num_tokens, seed=seed),
                VOCAB,
                draft_model(draft, STEP_MS) if races else None,
                RACE,
                SessionSettings(TargetIdentity(vocabulary_hash=engine.info.vocabulary_hash)),
            )
        finally:
            await asyncio.gather(*serving)
            await verifier.drain(0.0)

    return run_virtual(main())


@pytest.mark.parametrize(("target_ms", "faster"), [(72.0, 1.5), (146.0, 1.85)])
def test_at_50_kbps_it_is_much_faster_than_the_cloud(target_ms: float, faster: float) -> None:
    alone_ms = raced_ms = 0.0
    for seed in (1, 2):
        alone = generated(50.0, target_ms, races=False, seed=seed)
        raced = generated(50.0, target_ms, races=True, seed=seed)
        assert raced.tokens == alone.tokens
        alone_ms += alone.metrics.total_ms
        raced_ms += raced.metrics.total_ms
    assert alone_ms > faster * raced_ms


def test_it_is_the_faster_the_more_the_link_carries() -> None:
    """At 100 kbps few nodes reach the next forward, and others the one after that."""
    raced_ms = [generated(kbps, 72.0, races=True).metrics.total_ms for kbps in (400.0, 100.0, 50.0, 25.0)]
    assert raced_ms == sorted(raced_ms)


def test_at_10_kbps_it_is_no_slower_where_commits_nearly_fill_the_link() -> None:
    alone = generated(10.0, 72.0, races=False)
    raced = generated(10.0, 72.0, races=True)
    assert raced.tokens == alone.tokens
    assert raced.metrics.drafted_nodes > 100
    assert raced.metrics.total_ms < 1.001 * alone.metrics.total_ms


def test_it_falls_silent_where_it_cannot_win() -> None:
    """At 7 kbps a commit takes longer on the way than the target for it: all that is known is long past."""
    alone = generated(7.0, 72.0, races=False)
    raced = generated(7.0, 72.0, races=True)
    assert raced.tokens == alone.tokens
    assert raced.metrics.drafted_nodes <= PROBE_NODES
    assert raced.metrics.total_ms < 1.015 * alone.metrics.total_ms


def test_at_10_kbps_it_goes_on_where_it_wins() -> None:
    alone = generated(10.0, 146.0, races=False)
    raced = generated(10.0, 146.0, races=True)
    assert raced.tokens == alone.tokens
    assert alone.metrics.total_ms > 1.3 * raced.metrics.total_ms


@pytest.mark.parametrize(("kbps", "target_ms"), [(50.0, 72.0), (10.0, 146.0)])
def test_it_goes_on_as_before_after_a_stall(kbps: float, target_ms: float) -> None:
    """Messages are a second late and commits come all at once: neither tells of the link."""
    calm = generated(kbps, target_ms, races=True)
    stalled = generated(kbps, target_ms, races=True, stall_s=(1.5, 2.5))
    assert stalled.tokens == calm.tokens
    assert stalled.metrics.total_ms < 1.15 * calm.metrics.total_ms + 1000.0
