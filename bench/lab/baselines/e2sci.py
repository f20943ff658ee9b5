"""E²-SCI (Li et al. 2026): a pipeline whose check is lenient while recent tokens did well. Greedy, inexact.

Credit inertia: chains after good ones are likely good. The cloud keeps a smoothed acceptance rate and lets a
token stand that is not the target's own, if the two models' distributions diverge less than a threshold,
which grows and shrinks with that rate. Progressive lookahead: the edge drafts on meanwhile, chains grow with
each good verdict, and a chain's first token goes ahead of it to be tested early.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from acespec.bench.lab.baselines.messages import Verdict
from acespec.bench.lab.baselines.pipeline import PipelineCloud, PipelineEdge
from acespec.bench.lab.baselines.rejection import Drafted, SixteenBits, prob_of, to_sixteen_bits
from acespec.bench.lab.baselines.sides import likeliest, run_sides
from acespec.bench.lab.strategy import World
from acespec.bench.lab.token_path import TokenPath
from acespec.speculation import DRAFT_BITS, CandidateRow

SMOOTHING = 0.3
"""Weight of the newest chain in the smoothed acceptance rate (the paper's beta)."""


@dataclass(frozen=True)
class Leniency:
    """How the threshold follows the smoothed acceptance rate. Thresholds in nats of divergence."""

    base: float = 0.10
    gain: float = 0.20
    """Threshold for each unit of acceptance above ``neutral``."""
    neutral: float = 0.6
    least: float = 0.02
    most: float = 0.20

    def threshold(self, acceptance: float) -> float:
        """At this smoothed acceptance rate."""
        return min(max(self.base + self.gain * (acceptance - self.neutral), self.least), self.most)


@dataclass(frozen=True)
class E2Sci:
    """``Strategy``: near the target's greedy text, whatever the request's temperature.

    ``log.inexact`` counts the tokens that are not the target's choice behind what stands before them.
    """

    gamma: int = 4
    growth: float = 0.25
    """How much longer a chain gets with each good verdict since the last rejection."""
    longest: int = 8
    max_in_flight: int = 4
    leniency: Leniency = Leniency()
    name: str = "e2sci"

    async def run(self, world: World) -> None:
        """See ``Strategy.run``."""
        edge = PipelineEdge(world, _EdgeRules(self), self.max_in_flight)
        cloud = PipelineCloud(world, _CloudRules(world, self.leniency), sparse=True)
        await run_sides(edge.run(), cloud.run())


class _EdgeRules:
    leads = True

    def __init__(self, settings: E2Sci) -> None:
        self._settings = settings
        self._length = float(settings.gamma)

    def chain_length(self) -> int:
        return min(int(self._length), self._settings.longest)

    def draw(self, row: CandidateRow, position: int) -> Drafted[SixteenBits]:  # noqa: ARG002 - greedy
        return Drafted(int(row.ids[row.scores.argmax()]), to_sixteen_bits(row.distribution))

    def replace(self, verdict: Verdict, rejected: Drafted[SixteenBits], position: int) -> int:  # noqa: ARG002
        assert verdict.next_token is not None
        return verdict.next_token

    def note(self, all_stood: bool) -> None:
        self._length = self._length * (1.0 + self._settings.growth) if all_stood else self._settings.gamma


class _CloudRules:
    def __init__(self, world: World, leniency: Leniency) -> None:
        self._world = world
        self._leniency = leniency
        self._acceptance = leniency.neutral

    def stands(self, path: TokenPath, token: int, weight: int) -> bool:
        target = self._world.target(path)
        if token == likeliest(target):
            return True
        divergence = binary_divergence(prob_of(target, token), weight / (1 << DRAFT_BITS))
        lenient = divergence < self._leniency.threshold(self._acceptance)
        self._world.log.inexact += int(lenient)
        return lenient

    def reject(self, path: TokenPath, accepted: int) -> Verdict:
        return Verdict(accepted, next_token=likeliest(self._world.target(path)))

    def note(self, accepted: int, length: int) -> None:
        self._acceptance += SMOOTHING * (accepted / length - self._acceptance)


def binary_divergence(first: float, second: float) -> float:
    """Jensen-Shannon divergence, in nats, of two distributions over "this token" and "another one".

    No more than that of the whole distributions (data processing), of which the cloud has one alone.
    """
    middle = (first + second) / 2.0
    return (_relative_entropy(first, middle) + _relative_entropy(second, middle)) / 2.0


def _relative_entropy(prob: float, reference: float) -> float:
    parts = ((prob, reference), (1.0 - prob, 1.0 - reference))
    return sum(p * math.log(p / q) for p, q in parts if p > 0.0)
