"""Both sides in one process: the edge's real loop against the verifier's real session, over a memory link.

Meant for simulated time (``run_virtual``), where a run is the same every time: a draft step takes 1 ms at any
width, a forward of the target 10 ms, a message what the test says.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable

from acespec.cloud_verifier.engine import TargetEngine
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.edge_runtime.draft_model import DraftModel
from acespec.edge_runtime.engine import DraftEngine
from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.request import DraftSettings, GenerationRequest
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from acespec.wire import EdgeTransport, SessionError, memory_link
from acespec.wire.memory import Delay, MemoryCloud

STEP_MS = 1.0
FORWARD_MS = 10.0


def link_delay(delays_ms: Iterable[float]) -> Delay:
    """How long messages travel, one after another; the delays are taken over and over."""
    delays = itertools.cycle(delays_ms)

    async def delay(_: int) -> None:
        await asyncio.sleep(next(delays) / 1000.0)

    return delay


def verifier_of(engine: TargetEngine) -> Verifier:
    """A verifier whose forwards take ``FORWARD_MS`` each."""
    return Verifier(engine, InlineRunner(), latency_ms=lambda _: FORWARD_MS)


async def serve(cloud: MemoryCloud, verifier: Verifier) -> None:
    """Serve one stream and end it as the gRPC service does."""
    try:
        await verifier.serve(cloud)
    except SessionError as error:
        await cloud.close(error)
    else:
        await cloud.close()


def draft_model(engine: DraftEngine, step_ms: float) -> DraftModel:
    """A draft whose steps are run in the event loop and take ``step_ms`` each."""
    return DraftModel(engine, lambda _: dict.fromkeys(engine.buckets, step_ms), InlineRunner())


class Streams:
    """Opens streams to a verifier: a ``Connector``."""

    def __init__(self, verifier: Verifier, delay: Delay | None = None) -> None:
        self._verifier = verifier
        self._delay = delay
        self._serving: list[asyncio.Task[None]] = []

    async def __call__(self, timeout_s: float) -> EdgeTransport:
        edge, cloud = memory_link(self._delay)
        self._serving.append(asyncio.create_task(serve(cloud, self._verifier)))
        return edge

    async def ended(self) -> None:
        """Wait until the verifier serves none of them any more."""
        await asyncio.gather(*self._serving)


async def generate_in_process(
    target: TargetEngine,
    draft: DraftEngine | None,
    request: GenerationRequest,
    settings: DraftSettings | None = None,
    delay: Delay | None = None,
    step_ms: float = STEP_MS,
) -> GenerationResult:
    """Generate ``request``; ``draft`` None lets the cloud decode alone."""
    verifier = verifier_of(target)
    streams = Streams(verifier, delay)
    try:
        return await generate(
            streams,
            request,
            target.info.vocab_size,
            None if draft is None else draft_model(draft, step_ms),
            settings,
            SessionSettings(TargetIdentity(vocabulary_hash=target.info.vocabulary_hash)),
        )
    finally:
        await streams.ended()
        await verifier.drain(0.0)
