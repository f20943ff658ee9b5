"""Speculative sampling as published (Leviathan et al. 2023, Chen et al. 2023), for the baselines.

A drafted token stands with probability ``min(1, target / draft)``; what replaces the first that does not is
drawn from the normalized ``max(0, target - draft)``. Both sides must mean the same two distributions, so what
crosses the network is rounded *before* anything is drawn from it or decided by it: rounding a draft costs no
exactness, and a rounded target is what the text is distributed as.

Draws are the project's, keyed by the request's seed and absolute positions (docs/exactness.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from acespec.bench.lab.baselines.sides import Drafter, is_end
from acespec.bench.lab.strategy import World
from acespec.bench.lab.token_path import TokenPath
from acespec.speculation import DRAFT_BITS, Distribution, Purpose, Weighted, uniform, weighted


class Rounded(Protocol):
    """A distribution as it crosses the network."""

    @property
    def distribution(self) -> Distribution:
        """What both sides make of it."""


@dataclass(frozen=True)
class HalfPrecision:
    """Probabilities as float16 numbers, which sum to 1 only nearly: they mean shares of their sum."""

    ids: NDArray[np.int64]
    """Support, ascending, [n]."""
    values: NDArray[np.float16]
    """Positive, [n]."""

    @property
    def distribution(self) -> Distribution:
        values = self.values.astype(np.float64)
        return Distribution(self.ids, values / values.sum())


@dataclass(frozen=True)
class SixteenBits:
    """Probabilities as weights out of 2^16: one token's weight alone is its exact probability."""

    weighted: Weighted

    @property
    def distribution(self) -> Distribution:
        return Distribution(self.weighted.ids, self.weighted.weights / float(1 << DRAFT_BITS))


R = TypeVar("R", bound=Rounded)


@dataclass(frozen=True)
class Drafted(Generic[R]):
    """A drafted token and the distribution it was drawn from."""

    token: int
    row: R


def to_half(distribution: Distribution) -> HalfPrecision:
    """Round to float16; what becomes 0 (below 2^-25) leaves the support."""
    values = distribution.probs.astype(np.float16)
    kept = np.flatnonzero(values)
    return HalfPrecision(distribution.ids[kept], values[kept])


def to_sixteen_bits(distribution: Distribution) -> SixteenBits:
    """Round to weights out of 2^16."""
    return SixteenBits(weighted(distribution, DRAFT_BITS))


async def draft_chain(
    world: World, drafter: Drafter, path: TokenPath, count: int, rounded: Callable[[Distribution], R]
) -> list[Drafted[R]]:
    """Draft ``count`` tokens behind ``path``, or up to and including an end token, a step each."""
    chain: list[Drafted[R]] = []
    while len(chain) < count and not (chain and is_end(world, chain[-1].token)):
        row = rounded((await drafter.row(path)).distribution)
        chain.append(draw_drafted(row, world.request.seed, path.length))
        path = path.then(chain[-1].token)
    return chain


def draw_drafted(row: R, seed: int, position: int) -> Drafted[R]:
    """Draw the token drafted at ``position``."""
    return Drafted(pick(row.distribution, float(uniform(seed, Purpose.DRAFT, position))), row)


def num_accepted(
    world: World,
    path: TokenPath,
    tokens: Sequence[int],
    draft_probs: Sequence[float],
    target_after: Callable[[TokenPath], Distribution],
) -> tuple[int, TokenPath]:
    """How many of ``tokens``, drafted behind ``path``, stand; and the path up to the last of them.

    ``draft_probs`` are the tokens' probabilities in the distributions they were drawn from. Counts them in
    the world's log.
    """
    accepted = 0
    for token, draft_prob in zip(tokens, draft_probs, strict=True):
        if not stands(target_after(path), token, draft_prob, world.request.seed, path.length):
            break
        path = path.then(token)
        accepted += 1
    world.log.accepted += accepted
    world.log.tested += min(accepted + 1, len(tokens))
    return accepted, path


def stands(target: Distribution, token: int, draft_prob: float, seed: int, position: int) -> bool:
    """Whether a token drafted with probability ``draft_prob`` stands at ``position``."""
    return float(uniform(seed, Purpose.ACCEPT, position)) * draft_prob < prob_of(target, token)


def replacement(target: Distribution, draft: Distribution, seed: int, position: int) -> int:
    """The token that takes the place of a rejected one."""
    return pick(residual(target, draft), float(uniform(seed, Purpose.RESIDUAL, position)))


def bonus(target: Distribution, seed: int, position: int) -> int:
    """The token the target puts behind a chain that stands as a whole."""
    return pick(target, float(uniform(seed, Purpose.PROPOSAL, position)))


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """``max(0, target - draft)``, normalized."""
    places = np.minimum(np.searchsorted(draft.ids, target.ids), len(draft.ids) - 1)
    drafted = np.where(draft.ids[places] == target.ids, draft.probs[places], 0.0)
    excess = np.maximum(target.probs - drafted, 0.0)
    kept = np.flatnonzero(excess)
    if len(kept) == 0:
        return target  # equal but for rounding: nothing is rejected but for rounding
    return Distribution(target.ids[kept], excess[kept] / excess[kept].sum())


def pick(distribution: Distribution, u: float) -> int:
    """The token ``u`` falls on (inverse CDF)."""
    ends = np.cumsum(distribution.probs)
    index = int(np.searchsorted(ends, u * ends[-1], side="right"))
    return int(distribution.ids[min(index, len(ends) - 1)])


def prob_of(distribution: Distribution, token: int) -> float:
    """The probability of ``token``; 0 outside the support."""
    place = int(np.searchsorted(distribution.ids, token))
    if place < len(distribution.ids) and distribution.ids[place] == token:
        return float(distribution.probs[place])
    return 0.0
