"""What every baseline is made of: two sides that run at once, an inbox, a draft model fed token by token."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from acespec.bench.lab.strategy import Channel, World
from acespec.bench.lab.token_path import TokenPath
from acespec.speculation import CandidateRow, Distribution, coupled_pick, propose, target_bits, weighted
from acespec.wire import AcceptanceMode, Open, encode_open


async def run_sides(edge: Coroutine[Any, Any, None], cloud: Coroutine[Any, Any, None]) -> None:
    """Run both until the edge has ended, then stop the cloud. An error of either ends both and is raised."""
    edge_task, cloud_task = asyncio.create_task(edge), asyncio.create_task(cloud)
    try:
        await asyncio.wait({edge_task, cloud_task}, return_when=asyncio.FIRST_COMPLETED)
        if not edge_task.done():
            await cloud_task
        await edge_task
    finally:
        for task in (edge_task, cloud_task):
            task.cancel()
        await asyncio.gather(edge_task, cloud_task, return_exceptions=True)


class Inbox:
    """A channel's receiver that can be asked whether something has arrived."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._next = asyncio.ensure_future(channel.receive())

    @property
    def ready(self) -> bool:
        return self._next.done()

    async def take(self) -> bytes:
        """The next message, once it is there."""
        message: bytes = await self._next
        self._next = asyncio.ensure_future(self._channel.receive())
        return message

    def close(self) -> None:
        """Receive no more."""
        self._next.cancel()


class Drafter:
    """The draft model at the edge. A step feeds what it has not seen of a path, and costs accordingly."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._fed = 0

    async def row(self, path: TokenPath) -> CandidateRow:
        """The draft's candidates for what follows ``path``."""
        world = self._world
        if self._fed == 0:
            await world.prefill_draft()
            self._fed = len(world.request.prompt)
        if path.length > self._fed:
            await world.draft_step(path.length - self._fed)
        self._fed = path.length
        return world.draft(path)

    def roll_back(self, length: int) -> None:
        """Forget what was fed beyond the first ``length`` tokens."""
        self._fed = min(self._fed, length)


def send_prompt(world: World) -> None:
    """Open the session: the project's own ``Open`` message, so that all strategies pay the same for it."""
    request = world.request
    message = Open(
        model="",
        fingerprint="",
        vocabulary_hash=world.identity.vocabulary_hash,
        vocab_size=world.models.vocab_size,
        end_token_ids=request.end_token_ids,
        sampling=request.sampling,
        seed=request.seed,
        mode=request.mode,
        committed=request.prompt,
        prompt_length=len(request.prompt),
        token_limit=request.token_limit,
    )
    data = encode_open(message).SerializeToString()
    world.up.send(data, len(data))


def send(channel: Channel, data: bytes) -> None:
    """Put an encoded message on its way."""
    channel.send(data, len(data))


def settle(world: World, path: TokenPath, tokens: Iterable[int]) -> TokenPath:
    """Commit ``tokens`` behind ``path``; the path they make."""
    tokens = list(tokens)
    world.commit(tokens)
    return extended(path, tokens)


def extended(path: TokenPath, tokens: Iterable[int]) -> TokenPath:
    """``path`` with ``tokens`` behind it."""
    for token in tokens:
        path = path.then(token)
    return path


def is_end(world: World, token: int) -> bool:
    """Whether ``token`` ends the text."""
    return token in world.request.end_token_ids


def likeliest(distribution: Distribution) -> int:
    """The token greedy decoding takes; the lowest id among equals."""
    return int(distribution.ids[distribution.probs.argmax()])


def cloud_token(world: World, path: TokenPath) -> int:
    """What the cloud puts behind ``path`` when it decodes by itself, in the request's mode."""
    target, seed, position = world.target(path), world.request.seed, path.length
    if world.request.mode is AcceptanceMode.COUPLED:
        return coupled_pick(target, seed, position)
    rounded = weighted(target, target_bits(len(target.ids)))
    return int(propose(rounded, seed, position, first_index=0, count=1)[0])
