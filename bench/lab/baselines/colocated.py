"""Speculative decoding inside the cloud: draft and target on the same hardware, tokens streamed down.

What a serving engine does by itself. The device only shows text, so the network costs half a round trip once.
"""

from __future__ import annotations

from dataclasses import dataclass

from acespec.bench.lab.baselines.messages import decode_tokens, encode_tokens
from acespec.bench.lab.baselines.rejection import (
    Drafted,
    SixteenBits,
    bonus,
    draw_drafted,
    num_accepted,
    prob_of,
    replacement,
    to_sixteen_bits,
)
from acespec.bench.lab.baselines.sides import extended, is_end, run_sides, send, send_prompt
from acespec.bench.lab.strategy import PREFILL_CHUNK, World
from acespec.bench.lab.token_path import TokenPath

CLOUD_SPEEDUP = 1555.0 / 204.8
"""How much faster one A100 40 GB reads weights than an AGX Orin (GB/s, NVIDIA's data sheets). A step of one
token takes as long as reading the weights takes, on the same fraction of either's peak: an assumption, and a
kind one to the cloud, where small models are bound by kernel launches."""


@dataclass(frozen=True)
class Colocated:
    """``Strategy``: exact in distribution, and the target's own text at temperature 0."""

    gamma: int = 4
    draft_speedup: float = CLOUD_SPEEDUP
    """The draft's step in the cloud is the device's divided by this."""
    name: str = "colocated"

    async def run(self, world: World) -> None:
        """See ``Strategy.run``."""
        await run_sides(_edge(world), self._cloud(world))

    def draft_step_ms(self, world: World, num_tokens: int = 1) -> float:
        """What a draft step takes in the cloud."""
        return world.edge_profile.step_ms(num_tokens) / self.draft_speedup

    async def _cloud(self, world: World) -> None:
        await world.up.receive()
        await world.prefill_target()
        await self._prefill_draft(world)
        path, left, first = world.start(), world.request.max_new_tokens, True
        while left > 0 and not (path.parent is not None and is_end(world, path.token)):
            chain = await self._draft(world, path, min(self.gamma, left - 1), first)
            await world.target_forward(len(chain) + 1)
            tokens = _verify(world, path, chain)
            send(world.down, encode_tokens(tokens, world.models.vocab_size))
            path, left, first = extended(path, tokens), left - len(tokens), False

    async def _prefill_draft(self, world: World) -> None:
        left = len(world.request.prompt)
        while left > 0:
            await world.cloud.spend(self.draft_step_ms(world, min(left, PREFILL_CHUNK)))
            left -= PREFILL_CHUNK

    async def _draft(
        self, world: World, path: TokenPath, count: int, first: bool
    ) -> list[Drafted[SixteenBits]]:
        """A chain behind ``path``, a step each; the very first token's row comes with the prompt."""
        chain: list[Drafted[SixteenBits]] = []
        while len(chain) < count and not (chain and is_end(world, chain[-1].token)):
            if chain or not first:
                await world.cloud.spend(self.draft_step_ms(world))
            row = to_sixteen_bits(world.draft(path).distribution)
            chain.append(draw_drafted(row, world.request.seed, path.length))
            path = path.then(chain[-1].token)
        return chain


async def _edge(world: World) -> None:
    send_prompt(world)
    while not world.finished:
        world.commit(decode_tokens(await world.down.receive(), world.models.vocab_size))


def _verify(world: World, path: TokenPath, chain: list[Drafted[SixteenBits]]) -> list[int]:
    """What a round commits behind ``path``."""
    tokens = [drafted.token for drafted in chain]
    drafts = [drafted.row.distribution for drafted in chain]
    probs = [prob_of(draft, token) for draft, token in zip(drafts, tokens, strict=True)]
    accepted, path = num_accepted(world, path, tokens, probs, world.target)
    if accepted and is_end(world, tokens[accepted - 1]):
        return tokens[:accepted]
    target, seed, position = world.target(path), world.request.seed, path.length
    if accepted < len(tokens):
        return [*tokens[:accepted], replacement(target, drafts[accepted], seed, position)]
    return [*tokens, bonus(target, seed, position)]
