"""PipeSD (Han et al. 2026): drafts streamed in token batches, checked when a dual threshold says so. Greedy.

The edge sends its draft while it drafts, in batches planned for the link (``upload_plan``). It asks for a
check as soon as a token's confidence, or the product of all since the last check, has fallen to a threshold;
what is unsent goes along. While it waits it drafts on, as if all stood and the target's next token were its
own; if that is so, what it drafted is the beginning of the next window.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from acespec.bench.lab.baselines.messages import (
    Verdict,
    decode_batch,
    decode_verdict,
    encode_batch,
    encode_verdict,
    following,
)
from acespec.bench.lab.baselines.sides import (
    Drafter,
    Inbox,
    extended,
    is_end,
    likeliest,
    run_sides,
    send,
    send_prompt,
    settle,
)
from acespec.bench.lab.baselines.upload_plan import UploadCosts, batch_ends
from acespec.bench.lab.simulated_link import Charged
from acespec.bench.lab.strategy import World
from acespec.bench.lab.token_path import TokenPath
from acespec.speculation import CandidateRow
from acespec.wire import token_bits

FIRST_WINDOW = 20
"""Tokens planned for before any window was seen; also the longest window."""
REMEMBERED_WINDOWS = 100


@dataclass(frozen=True)
class PipeSd:
    """``Strategy``: the target's greedy text, whatever the request's temperature."""

    sequence_threshold: float = 0.2
    """A check is asked for when the product of the tokens' confidences is no more than this."""
    token_threshold: float = 0.2
    """Or when one token's is."""
    name: str = "pipesd"

    async def run(self, world: World) -> None:
        """See ``Strategy.run``."""
        await run_sides(_Edge(world, self).run(), _cloud(world))


class _Window:
    """Tokens drafted for one check."""

    def __init__(self, limit: int) -> None:
        self.tokens: list[int] = []
        self.limit = limit
        """Tokens it may have."""
        self.confidence = 1.0
        """Product of the tokens'."""
        self.is_over = limit == 0
        """Whether it is to be checked as it is."""
        self.num_sent = 0


class _Edge:
    def __init__(self, world: World, settings: PipeSd) -> None:
        self._world = world
        self._settings = settings
        self._drafter = Drafter(world)
        self._committed = world.start()
        self._window = _Window(self._limit(world.room))
        self._ahead: _Window | None = None
        """What is drafted while a verdict is awaited."""
        self._guess: int | None = None
        """The token it supposes to stand before ``_ahead``."""
        self._costs = upload_costs(world)
        self._lengths: deque[int] = deque(maxlen=REMEMBERED_WINDOWS)
        self._waiting = False

    async def run(self) -> None:
        send_prompt(self._world)
        inbox = Inbox(self._world.down)
        try:
            while not self._world.finished:
                if self._waiting and (inbox.ready or not self._may_draft_ahead):
                    self._take(decode_verdict(await inbox.take(), self._world.models.vocab_size))
                elif self._waiting:
                    await self._draft_ahead()
                elif self._window.is_over:
                    self._send(ask=True)
                elif len(self._window.tokens) in self._plan and self._window.num_sent < len(
                    self._window.tokens
                ):
                    self._send(ask=False)
                else:
                    await self._draft(self._window, extended(self._committed, self._window.tokens))
        finally:
            inbox.close()

    @staticmethod
    def _limit(room: int) -> int:
        """Tokens a window may have, if ``room`` may be committed: the target adds one."""
        return max(0, min(FIRST_WINDOW, room - 1))

    @property
    def _plan(self) -> tuple[int, ...]:
        expected = round(float(np.mean(self._lengths))) if self._lengths else FIRST_WINDOW
        return batch_ends(max(1, expected), self._costs)

    async def _draft(self, window: _Window, path: TokenPath) -> None:
        """Add a token to ``window``, which stands behind ``path``."""
        token, confidence = _greedy(await self._drafter.row(path), self._world.request.sampling.temperature)
        window.tokens.append(token)
        window.confidence *= confidence
        window.is_over = (
            len(window.tokens) >= window.limit
            or is_end(self._world, token)
            or confidence <= self._settings.token_threshold
            or window.confidence <= self._settings.sequence_threshold
        )

    @property
    def _may_draft_ahead(self) -> bool:
        tokens = self._window.tokens
        left = self._world.room - len(tokens) - 1
        if left <= 0 or (tokens and is_end(self._world, tokens[-1])):
            return False
        return self._ahead is None or not self._ahead.is_over

    async def _draft_ahead(self) -> None:
        path = extended(self._committed, self._window.tokens)
        if self._ahead is None:
            row = await self._drafter.row(path)
            self._guess, _ = _greedy(row, self._world.request.sampling.temperature)
            self._ahead = _Window(self._limit(self._world.room - len(self._window.tokens) - 1))
            self._ahead.is_over |= is_end(self._world, self._guess)
        else:
            assert self._guess is not None
            await self._draft(self._ahead, extended(path.then(self._guess), self._ahead.tokens))

    def _send(self, ask: bool) -> None:
        unsent = self._window.tokens[self._window.num_sent :]
        self._window.num_sent = len(self._window.tokens)
        send(self._world.up, encode_batch(unsent, ask, self._world.models.vocab_size))
        if ask:
            self._lengths.append(len(self._window.tokens))
            self._waiting = True

    def _take(self, verdict: Verdict) -> None:
        world, tokens = self._world, self._window.tokens
        position = self._committed.length + verdict.accepted
        stood = verdict.accepted == len(tokens) and verdict.next_token == self._guess
        ahead = self._ahead if stood else None
        self._waiting, self._ahead, self._guess = False, None, None
        settled = [*tokens[: verdict.accepted], *following(verdict)]
        self._committed = settle(world, self._committed, settled)
        if world.finished:
            return
        ready = 0 if ahead is None else len(ahead.tokens)
        world.log.lookups += 1
        world.log.hits += int(ready > 0)
        world.log.ready_tokens += ready
        if ahead is None:
            self._drafter.roll_back(position)
        self._window = ahead or _Window(self._limit(world.room))
        if ready and not self._window.is_over:
            self._send(ask=False)


async def _cloud(world: World) -> None:
    vocab_size = world.models.vocab_size
    await world.up.receive()
    await world.prefill_target()
    path, tokens = world.start(), list[int]()
    while True:
        batch, asked = decode_batch(await world.up.receive(), vocab_size)
        tokens += batch
        if asked:
            await world.target_forward(len(tokens) + 1)
            verdict, path = _verify(world, path, tokens)
            send(world.down, encode_verdict(verdict, vocab_size))
            tokens = []


def _verify(world: World, path: TokenPath, tokens: list[int]) -> tuple[Verdict, TokenPath]:
    """Accept what the target would have said itself; the verdict, and the path it makes."""
    accepted = 0
    for token in tokens:
        if likeliest(world.target(path)) != token:
            break
        path = path.then(token)
        accepted += 1
    world.log.accepted += accepted
    world.log.tested += min(accepted + 1, len(tokens))
    if accepted and is_end(world, tokens[accepted - 1]):
        return Verdict(accepted), path
    next_token = likeliest(world.target(path))
    return Verdict(accepted, next_token), path.then(next_token)


def _greedy(row: CandidateRow, temperature: float) -> tuple[int, float]:
    """The draft's likeliest token and its confidence: its share of the candidates at temperature 1."""
    scores = row.scores * (temperature or 1.0)
    weights = np.exp(scores - scores.max())
    return int(row.ids[scores.argmax()]), float(weights.max() / weights.sum())


def upload_costs(world: World) -> UploadCosts:
    """What the environment monitor would find, taken to be right: the link's own rate and overhead."""
    link = world.link.conditions
    bytes_per_ms = link.up.bytes_per_second / 1000.0
    fixed = 1.0
    if link.charged is Charged.WIRE:
        fixed += link.overhead.message_bytes + link.overhead.segment_bytes
    return UploadCosts(
        startup_ms=fixed / bytes_per_ms,
        token_ms=token_bits(world.models.vocab_size) / 8.0 / bytes_per_ms,
        draft_ms=world.edge_profile.step_ms(1),
    )
