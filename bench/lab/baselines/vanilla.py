"""Vanilla speculative decoding over a network: stop and wait, whole draft distributions up.

Leviathan et al. 2023 and Chen et al. 2023 with the draft at the edge: it drafts a chain, sends it with the
distributions it was drawn from and waits; the cloud accepts, rejects and resamples.
"""

from __future__ import annotations

from dataclasses import dataclass

from acespec.bench.lab.baselines.messages import (
    Verdict,
    decode_full_chain,
    decode_verdict,
    encode_full_chain,
    encode_verdict,
    following,
)
from acespec.bench.lab.baselines.rejection import (
    HalfPrecision,
    bonus,
    draft_chain,
    num_accepted,
    prob_of,
    replacement,
    to_half,
)
from acespec.bench.lab.baselines.sides import Drafter, is_end, run_sides, send, send_prompt, settle
from acespec.bench.lab.strategy import World
from acespec.bench.lab.token_path import TokenPath


@dataclass(frozen=True)
class Vanilla:
    """``Strategy``: exact in distribution, and the target's own text at temperature 0."""

    gamma: int = 4
    name: str = "vanilla"

    async def run(self, world: World) -> None:
        """See ``Strategy.run``."""
        await run_sides(self._edge(world), _cloud(world))

    async def _edge(self, world: World) -> None:
        vocab_size = world.models.vocab_size
        send_prompt(world)
        drafter, path = Drafter(world), world.start()
        while not world.finished:
            chain = await draft_chain(world, drafter, path, min(self.gamma, world.room - 1), to_half)
            tokens = [drafted.token for drafted in chain]
            greedy = world.request.sampling.temperature == 0.0  # a token is its whole distribution
            rows = [] if greedy else [drafted.row for drafted in chain]
            send(world.up, encode_full_chain(tokens, rows, vocab_size))
            verdict = decode_verdict(await world.down.receive(), vocab_size)
            drafter.roll_back(path.length + verdict.accepted)
            path = settle(world, path, [*tokens[: verdict.accepted], *following(verdict)])


async def _cloud(world: World) -> None:
    vocab_size = world.models.vocab_size
    await world.up.receive()
    await world.prefill_target()
    path = world.start()
    while True:
        tokens, rows = decode_full_chain(await world.up.receive(), vocab_size)
        await world.target_forward(len(tokens) + 1)
        verdict, path = _verify(world, path, tokens, rows)
        send(world.down, encode_verdict(verdict, vocab_size))


def _verify(
    world: World, path: TokenPath, tokens: list[int], rows: list[HalfPrecision]
) -> tuple[Verdict, TokenPath]:
    drafts = [row.distribution for row in rows]
    probs = (
        [prob_of(draft, token) for draft, token in zip(drafts, tokens, strict=True)]
        if rows
        else [1.0] * len(tokens)
    )
    accepted, path = num_accepted(world, path, tokens, probs, world.target)
    if accepted and is_end(world, tokens[accepted - 1]):
        return Verdict(accepted), path
    target, seed, position = world.target(path), world.request.seed, path.length
    if accepted < len(tokens) and rows:
        token = replacement(target, drafts[accepted], seed, position)
    else:
        token = bonus(target, seed, position)
    return Verdict(accepted, token), path.then(token)
