"""PicoSpec (Zhang et al. 2026): a single-chain asynchronous pipeline with separate rejection sampling.

The edge drafts on while its chains are checked. Up go tokens and their own draft probabilities; where one is
rejected, the target's distribution comes down sparsely and the edge resamples, and rolls back.
"""

from __future__ import annotations

from dataclasses import dataclass

from acespec.bench.lab.baselines.messages import Verdict
from acespec.bench.lab.baselines.pipeline import PipelineCloud, PipelineEdge
from acespec.bench.lab.baselines.rejection import (
    Drafted,
    SixteenBits,
    draw_drafted,
    replacement,
    stands,
    to_half,
    to_sixteen_bits,
)
from acespec.bench.lab.baselines.sides import likeliest, run_sides
from acespec.bench.lab.strategy import World
from acespec.bench.lab.token_path import TokenPath
from acespec.speculation import DRAFT_BITS, CandidateRow


@dataclass(frozen=True)
class PicoSpec:
    """``Strategy``: exact for the target rounded to float16, and its own text at temperature 0."""

    gamma: int = 4
    max_in_flight: int = 4
    """Chains sent ahead of their verdicts."""
    name: str = "picospec"

    async def run(self, world: World) -> None:
        """See ``Strategy.run``."""
        edge = PipelineEdge(world, _EdgeRules(world, self.gamma), self.max_in_flight)
        cloud = PipelineCloud(world, _CloudRules(world), sparse=True)
        await run_sides(edge.run(), cloud.run())


class _EdgeRules:
    leads = False

    def __init__(self, world: World, gamma: int) -> None:
        self._seed = world.request.seed
        self._gamma = gamma

    def chain_length(self) -> int:
        return self._gamma

    def draw(self, row: CandidateRow, position: int) -> Drafted[SixteenBits]:
        return draw_drafted(to_sixteen_bits(row.distribution), self._seed, position)

    def replace(self, verdict: Verdict, rejected: Drafted[SixteenBits], position: int) -> int:
        if verdict.next_token is not None:
            return verdict.next_token
        assert verdict.target is not None
        return replacement(verdict.target.distribution, rejected.row.distribution, self._seed, position)

    def note(self, all_stood: bool) -> None:
        """Every chain is as long as the last."""


class _CloudRules:
    def __init__(self, world: World) -> None:
        self._world = world

    def stands(self, path: TokenPath, token: int, weight: int) -> bool:
        target = to_half(self._world.target(path)).distribution
        return stands(target, token, weight / (1 << DRAFT_BITS), self._world.request.seed, path.length)

    def reject(self, path: TokenPath, accepted: int) -> Verdict:
        target = self._world.target(path)
        if self._world.request.sampling.temperature == 0.0:
            return Verdict(accepted, next_token=likeliest(target))
        return Verdict(accepted, target=to_half(target))

    def note(self, accepted: int, length: int) -> None:
        """Every token is tested as the last."""
