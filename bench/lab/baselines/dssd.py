"""DSSD, distributed split speculative decoding (Ning, Zheng, Yang 2025): the device resamples.

Stop and wait as in vanilla speculative decoding, but up go only the drafted tokens and their own draft
probabilities; where one is rejected, the whole target distribution of that one position comes down, and the
device, which has the draft's, draws the replacement.
"""

from __future__ import annotations

from dataclasses import dataclass

from acespec.bench.lab.baselines.messages import (
    ChainPart,
    Verdict,
    decode_chain_part,
    decode_verdict,
    encode_chain_part,
    encode_verdict,
    following,
)
from acespec.bench.lab.baselines.rejection import (
    bonus,
    draft_chain,
    num_accepted,
    replacement,
    to_half,
    to_sixteen_bits,
)
from acespec.bench.lab.baselines.sides import (
    Drafter,
    extended,
    is_end,
    run_sides,
    send,
    send_prompt,
    settle,
)
from acespec.bench.lab.strategy import World
from acespec.bench.lab.token_path import TokenPath
from acespec.speculation import DRAFT_BITS, Distribution


@dataclass(frozen=True)
class Dssd:
    """``Strategy``: exact for the target rounded to float16, and its own text at temperature 0."""

    gamma: int = 4
    name: str = "dssd"

    async def run(self, world: World) -> None:
        """See ``Strategy.run``."""
        await run_sides(self._edge(world), _cloud(world))

    async def _edge(self, world: World) -> None:
        vocab_size, seed = world.models.vocab_size, world.request.seed
        send_prompt(world)
        drafter, path = Drafter(world), world.start()
        resampled: int | None = None
        while not world.finished:
            chain = await draft_chain(world, drafter, path, min(self.gamma, world.room - 1), to_sixteen_bits)
            tokens = tuple(drafted.token for drafted in chain)
            weights = tuple(drafted.row.weighted.weight_of(drafted.token) for drafted in chain)
            send(world.up, encode_chain_part(ChainPart(tokens, weights, resampled), vocab_size))
            verdict = decode_verdict(await world.down.receive(), vocab_size)
            position = path.length + verdict.accepted
            drafter.roll_back(position)
            resampled = None
            if verdict.target is not None:
                rejected = chain[verdict.accepted].row.distribution
                resampled = replacement(verdict.target.distribution, rejected, seed, position)
            next_token = following(verdict) if resampled is None else (resampled,)
            path = settle(world, path, [*tokens[: verdict.accepted], *next_token])


async def _cloud(world: World) -> None:
    vocab_size = world.models.vocab_size
    await world.up.receive()
    await world.prefill_target()
    path = world.start()
    while True:
        part = decode_chain_part(await world.up.receive(), vocab_size)
        if part.resampled is not None:
            path = path.then(part.resampled)
        await world.target_forward(len(part.tokens) + 1)
        verdict, path = _verify(world, path, part)
        path = extended(path, following(verdict))
        send(world.down, encode_verdict(verdict, vocab_size))


def _verify(world: World, path: TokenPath, part: ChainPart) -> tuple[Verdict, TokenPath]:
    """The verdict on a chain behind ``path``, and the path of what stands."""

    def target_after(path: TokenPath) -> Distribution:
        return to_half(world.target(path)).distribution

    probs = [weight / (1 << DRAFT_BITS) for weight in part.weights]
    accepted, path = num_accepted(world, path, part.tokens, probs, target_after)
    if accepted and is_end(world, part.tokens[accepted - 1]):
        return Verdict(accepted), path
    if accepted < len(part.tokens) and world.request.sampling.temperature > 0.0:
        return Verdict(accepted, target=to_half(world.target(path))), path
    return Verdict(accepted, bonus(target_after(path), world.request.seed, path.length)), path
