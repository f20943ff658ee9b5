"""Both sides in one process: the edge's real loop against the verifier's real session, over a memory link.

Meant for simulated time (``run_virtual``), where a run is the same every time: a draft step takes 1 ms at any
width, a forward of the target 10 ms, a message what the test says.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable

from acespec.cloud_verifier.engine import TargetEngine
from acespec.cloud_verifier.session import serve_session
from acespec.compute import InlineRunner
from acespec.edge_runtime.draft_model import DraftModel
from acespec.edge_runtime.engine import DraftEngine
from acespec.edge_runtime.generate import GenerationResult, TargetIdentity, generate
from acespec.edge_runtime.request import DraftSettings, GenerationRequest
from acespec.wire import SessionError, memory_link
from acespec.wire.memory import MemoryCloud

STEP_MS = 1.0
FORWARD_MS = 10.0


def link_delay(delays_ms: Iterable[float]) -> Callable[[], Awaitable[None]]:
    """How long messages travel, one after another; the delays are taken over and over."""
    delays = itertools.cycle(delays_ms)

    async def delay() -> None:
        await asyncio.sleep(next(delays) / 1000.0)

    return delay


async def serve(cloud: MemoryCloud, engine: TargetEngine) -> None:
    """Serve one session and end its stream as the gRPC service does."""
    try:
        await serve_session(cloud, engine, InlineRunner(), latency_ms=lambda _: FORWARD_MS)
    except SessionError as error:
        await cloud.close(error)
    else:
        await cloud.close()


def draft_model(engine: DraftEngine, step_ms: float) -> DraftModel:
    """A draft whose steps are run in the event loop and take ``step_ms`` each."""
    return DraftModel(engine, lambda _: dict.fromkeys(engine.buckets, step_ms), InlineRunner())


async def generate_in_process(
    target: TargetEngine,
    draft: DraftEngine | None,
    request: GenerationRequest,
    settings: DraftSettings | None = None,
    delay: Callable[[], Awaitable[None]] | None = None,
    step_ms: float = STEP_MS,
) -> GenerationResult:
    """Generate ``request``; ``draft`` None lets the cloud decode alone."""
    edge, cloud = memory_link(delay)
    serving = asyncio.ensure_future(serve(cloud, target))
    try:
        return await generate(
            edge,
            request,
            target.info.vocab_size,
            None if draft is None else draft_model(draft, step_ms),
            settings,
            TargetIdentity(vocabulary_hash=target.info.vocabulary_hash),
        )
    finally:
        await serving
