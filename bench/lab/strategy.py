"""What a strategy of the laboratory is, what it may use, and what a run of it gives.

A strategy carries one request from prompt to end between an edge and a cloud. It looks the models up for
nothing (``World.models``, ``World.draft``, ``World.target``) and must itself spend the time that its steps
take (``World.edge``, ``World.cloud``) and send what one side has to learn from the other over the link
(``World.up``, ``World.down``), with the size it would have there: neither side may act on what it has not
been sent. Randomness is ``acespec.speculation``'s, keyed by the request's seed and absolute positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from acespec.bench.lab.lab_pair import PairIdentity
from acespec.bench.lab.profiles import DeviceProfile, TargetProfile
from acespec.bench.lab.simulated_link import SimulatedLink
from acespec.bench.lab.token_path import TokenPath
from acespec.edge_runtime import FinishReason, GenerationRequest
from acespec.edge_runtime.step_clock import now_ms
from acespec.speculation import (
    CandidateRow,
    Distribution,
    LogitsRow,
    TokenCounts,
    candidate_row,
    distribution,
)

PREFILL_CHUNK = 512
"""Prompt tokens the target is fed in one forward: the verifier's own token budget."""


class Models(Protocol):
    """What the pair's two models say. Looking it up takes no simulated time."""

    @property
    def vocab_size(self) -> int:
        """Of the tokenizer, which both share."""

    def draft(self, path: TokenPath) -> LogitsRow:
        """The draft's logits for what follows ``path``."""

    def target(self, path: TokenPath) -> NDArray[np.float32]:
        """The target's logits for what follows ``path``: ``[vocab_size]``.

        What the run's sampling makes of them (``distribution``) is exactly what it makes of the model's own
        row; entries that sampling leaves out may have been replaced.
        """


class Processor:
    """One side's compute in simulated time: one step at a time, in the order asked for."""

    def __init__(self) -> None:
        self.busy_ms = 0.0
        self.num_steps = 0
        self._turn = asyncio.Lock()

    async def spend(self, step_ms: float) -> None:
        """Wait for its turn, then for ``step_ms``."""
        async with self._turn:
            self.busy_ms += step_ms
            self.num_steps += 1
            await asyncio.sleep(step_ms / 1000.0)


class Channel(Protocol):
    """One direction of the link: messages arrive in the order sent."""

    def send(self, message: Any, num_bytes: int) -> None:
        """Put ``message`` on its way as one of ``num_bytes`` bytes of payload; never waits."""

    async def receive(self) -> Any:
        """Wait for the next message."""


@dataclass
class RunLog:
    """What happened in a run, noted by the strategy as it happens."""

    started_ms: float = field(default_factory=now_ms)
    tokens: list[int] = field(default_factory=list)
    first_token_ms: float | None = None
    last_token_ms: float | None = None
    finish_reason: FinishReason | None = None
    forwards: int = 0
    """Of the target, the prompt's excluded."""
    tested: int = 0
    """Drafted tokens the target decided about: those up to and including a first rejection."""
    accepted: int = 0
    lookups: int = 0
    """Times something could have been drafted ahead when an answer came."""
    hits: int = 0
    """Times it had been, with one token ready at least."""
    ready_tokens: int = 0
    """Tokens that were ready at hits."""
    inexact: int = 0
    """Committed tokens that the target would not have put there: of strategies that allow any."""


@dataclass
class World:
    """One run's request, models, devices and link. Everything in it belongs to this run alone."""

    request: GenerationRequest
    identity: PairIdentity
    """Which models they are, and their contexts."""
    models: Models
    edge_profile: DeviceProfile
    cloud_profile: TargetProfile
    edge: Processor
    cloud: Processor
    link: SimulatedLink
    """What ``up`` and ``down`` go over; it counts their bytes."""
    up: Channel
    down: Channel
    log: RunLog

    def start(self) -> TokenPath:
        """The path of the prompt."""
        return TokenPath.of(self.request.prompt)

    def draft(self, path: TokenPath) -> CandidateRow:
        """The draft's candidates for what follows ``path``, and the distribution it draws from."""
        return candidate_row(self.models.draft(path), self.request.sampling, self._counts(path))

    def target(self, path: TokenPath) -> Distribution:
        """The distribution of what follows ``path``: the one a lossless strategy must draw from."""
        return distribution(self.models.target(path), self.request.sampling, self._counts(path))

    async def draft_step(self, num_tokens: int = 1) -> None:
        """Spend one step of the edge's model over ``num_tokens`` tokens."""
        await self.edge.spend(self.edge_profile.step_ms(num_tokens))

    async def target_forward(self, num_tokens: int) -> None:
        """Spend, and count, one forward of the target over ``num_tokens`` tokens."""
        await self.cloud.spend(self.cloud_profile.forward_ms(num_tokens))
        self.log.forwards += 1

    async def prefill_target(self) -> None:
        """Feed the target all of the prompt but its last token, which goes with the first chain."""
        left = len(self.request.prompt) - 1
        while left > 0:
            await self.cloud.spend(self.cloud_profile.forward_ms(min(left, PREFILL_CHUNK)))
            left -= PREFILL_CHUNK

    async def prefill_draft(self) -> None:
        """Feed the draft the whole prompt; its first token may be drawn then."""
        left, widest = len(self.request.prompt), self.identity.draft_prefill_width
        while left > 0:
            await self.draft_step(min(left, widest))
            left -= widest

    @property
    def room(self) -> int:
        """Tokens that may still be committed."""
        return self.request.max_new_tokens - len(self.log.tokens)

    @property
    def finished(self) -> bool:
        return self.log.finish_reason is not None

    def commit(self, tokens: Sequence[int]) -> None:
        """``tokens`` are final and known at the edge, now. An end token or the limit ends the run.

        It is the strategy's to send nothing beyond either.
        """
        log = self.log
        for token in tokens:
            assert log.finish_reason is None, "nothing follows the end of the text"
            log.tokens.append(int(token))
            if token in self.request.end_token_ids:
                log.finish_reason = FinishReason.END_TOKEN
            elif len(log.tokens) >= self.request.max_new_tokens:
                log.finish_reason = FinishReason.LENGTH
        if tokens:
            log.last_token_ms = now_ms()
            if log.first_token_ms is None:
                log.first_token_ms = log.last_token_ms

    def _counts(self, path: TokenPath) -> TokenCounts | None:
        if not self.request.sampling.has_penalties:
            return None
        return TokenCounts(path.prompt, path.generated)


class Strategy(Protocol):
    """A way to generate. Holds settings only: one object may run many requests."""

    @property
    def name(self) -> str:
        """As tables call it: ``vanilla``, ``dssd``, …"""

    async def run(self, world: World) -> None:
        """Generate ``world.request`` to its end: ``world.finished`` holds on return.

        Both sides may be written as tasks of their own; none may be left running.
        """


@dataclass(frozen=True)
class RunResult:
    """What one run gave. Times are virtual."""

    strategy: str
    tokens: tuple[int, ...]
    """Generated tokens."""
    finish_reason: FinishReason
    ttft_ms: float
    """From the request to the first token at the edge."""
    total_ms: float
    """From the request to the last token at the edge."""
    payload_up: int
    payload_down: int
    """Bytes of messages as the strategy serializes them."""
    wire_up: int
    wire_down: int
    """Bytes on the wire: payload, framing, headers, acknowledgements and what was sent again."""
    messages_up: int
    messages_down: int
    target_forwards: int
    tested: int
    accepted: int
    lookups: int
    hits: int
    ready_tokens: int
    edge_idle_share: float
    """Share of the time in which the edge computed nothing."""
    inexact: int = 0
    """Tokens that the target would not have put there."""

    @property
    def tokens_per_s(self) -> float:
        return len(self.tokens) / self.total_ms * 1000.0

    @property
    def acceptance(self) -> float | None:
        """Accepted over tested tokens; None if none was tested."""
        return self.accepted / self.tested if self.tested else None

    @property
    def hit_rate(self) -> float | None:
        """Hits over lookups; None if there was none."""
        return self.hits / self.lookups if self.lookups else None
