"""How likely the target is to take a drafted token: estimated at its very position, and learned as it goes.

In coupled mode the target takes the token with the best ``log target_prob + noise``, and the noise is known
here too: ``-log(-log U)`` of shared randomness. What the draft does not know is how far the target's
log-probabilities lie from its own. So a candidate's chance hangs on its *score* ``log draft_prob + noise``
against those of the others (the margin), and on its probability, which says how far the two models are apart
where it stands. Both are weighed by a conditional logit (McFadden 1974): over the candidates of a row,

    chance of v  ~  exp(score_weight * score_v + prob_weight * log draft_prob_v + outside_weight * outside_v)

where ``outside`` is 1 for what the draft's own sampling leaves out. At temperature 0 there is no noise:
scores are differences of logits, and they alone are weighed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from acespec.edge_runtime.drafter import DraftRules
from acespec.edge_runtime.estimators import AcceptanceRate
from acespec.edge_runtime.reliability import LEAST_CHANCE, CalibrationCurve, Floats, Reliability
from acespec.speculation import CandidateRow, race_scores

MAX_CHOICES = 8
"""Most candidates of a row that become nodes."""


class Choice(NamedTuple):
    """A token that may follow, and the chance that the target takes it, given that it got there."""

    token: int
    chance: float


class NodeValues(Protocol):
    """Estimates chances, and learns from what the target takes."""

    @property
    def reliability(self) -> Reliability:
        """How its estimates compared with what was taken."""

    def choices(self, row: CandidateRow, position: int, /) -> list[Choice]:
        """The likeliest candidates for ``position`` from the draft's row there, best first."""

    def observe(self, row: CandidateRow, position: int, token: int, /) -> None:
        """The target took ``token`` at ``position``, where the draft's row was ``row``."""


@dataclass(frozen=True)
class ValuePrior:
    """How the target's logits are believed to follow from the draft's, before anything is seen of them.

    ``target = slope * draft + deviation``, with deviations of this spread, makes the race at temperature T
    one of ``(slope * draft + T * noise) / (T + spread)``. The defaults are those of a model and its own lower
    layers: SmolLM2-135M with 4 of 30 skipped, at temperature 0.2.
    """

    slope: float = 2.3
    spread: float = 1.5
    strength: float = 64.0
    """How many observations' worth it is believed."""

    def weights(self, temperature: float) -> tuple[float, float, float]:
        """Of score, log-probability and being left out."""
        if temperature == 0.0:
            return self.slope / self.spread, 0.0, 0.0
        noise = temperature / (temperature + self.spread)
        return noise, (self.slope - 1.0) * noise, 0.0


class CoupledValues:
    """The conditional logit above."""

    def __init__(self, rules: DraftRules, prior: ValuePrior | None = None, memory: float = 1024.0) -> None:
        """``memory`` is the number of tokens that the weights rest on."""
        self._seed = rules.seed
        self._is_greedy = rules.params.temperature == 0.0
        prior = prior or ValuePrior()
        self._weights = np.array(prior.weights(rules.params.temperature))
        self._precision = prior.strength * np.eye(3)
        self._keep = 1.0 - 1.0 / memory
        self._known = AcceptanceRate(0.98, prior_tests=64.0, memory=memory)
        """Share of the target's tokens that are among the draft's candidates."""
        self._curve = CalibrationCurve(memory)
        self.reliability = Reliability()

    @property
    def weights(self) -> tuple[float, float, float]:
        """Of score, log-probability and being left out, as they are now."""
        score, prob, outside = self._weights.tolist()
        return score, prob, outside

    def choices(self, row: CandidateRow, position: int) -> list[Choice]:
        """As `NodeValues.choices`."""
        chances = self._curve.corrected(self._chances(self._features(row, position)))
        best = np.argsort(-chances, kind="stable")[:MAX_CHOICES]
        return [
            Choice(int(row.ids[index]), float(chances[index]))
            for index in best
            if chances[index] >= LEAST_CHANCE
        ]

    def observe(self, row: CandidateRow, position: int, token: int) -> None:
        """As `NodeValues.observe`. A token that is no candidate says nothing of the weights."""
        features = self._features(row, position)
        chances = self._chances(features)
        self.reliability.observe(self._curve.corrected(chances), row.ids == token)
        self._curve.observe(chances, row.ids == token)
        taken = int(np.searchsorted(row.ids, token))
        is_candidate = taken < len(row.ids) and row.ids[taken] == token
        self._known.observe(int(is_candidate), rejected=not is_candidate)
        if not is_candidate:
            return
        chances = chances / chances.sum()
        mean = chances @ features
        centred = features - mean
        self._precision = self._keep * self._precision + (centred * chances[:, None]).T @ centred
        self._precision += (1.0 - self._keep) * np.eye(3)  # so that it stays invertible
        self._weights = self._weights + np.linalg.solve(self._precision, features[taken] - mean)

    def _features(self, row: CandidateRow, position: int) -> Floats:
        """Score, log-probability and being left out of each candidate, ``[n, 3]``."""
        scores = row.scores
        if self._is_greedy:
            return np.stack([scores, np.zeros_like(scores), np.zeros_like(scores)], axis=1)
        logs = np.maximum(scores, -60.0)  # of so little no more is known than that it is little
        noise = -np.log(race_scores(row.ids, np.ones(len(row.ids)), self._seed, position))
        outside = np.ones(len(row.ids))
        outside[np.searchsorted(row.ids, row.distribution.ids)] = 0.0
        return np.stack([logs + noise, logs, outside], axis=1)

    def _chances(self, features: Floats) -> Floats:
        """The chance of each candidate."""
        exponents = features @ self._weights
        chances = np.exp(exponents - exponents.max())
        return np.asarray(chances * (self._known.value / chances.sum()), dtype=np.float64)


class RankValues:
    """The paper's measure: a candidate's rank by the draft's probability, and how often each rank was taken.

    It knows neither the noise nor how sure the draft is: what `CoupledValues` is compared with.
    """

    def __init__(self, first: float = 0.5, strength: float = 20.0) -> None:
        self._taken = np.array([first * 0.5**rank for rank in range(MAX_CHOICES)]) * strength
        self._seen = strength
        self.reliability = Reliability()

    def choices(self, row: CandidateRow, _: int) -> list[Choice]:
        """As `NodeValues.choices`."""
        ranked = self._ranked(row)
        return [Choice(int(token), float(p)) for token, p in zip(ranked, self._rates, strict=False)]

    def observe(self, row: CandidateRow, _: int, token: int) -> None:
        """As `NodeValues.observe`."""
        hits = self._ranked(row) == token
        self.reliability.observe(self._rates[: len(hits)], hits)
        self._seen += 1.0
        self._taken[: len(hits)] += hits

    @property
    def _rates(self) -> Floats:
        rates: Floats = np.minimum.accumulate(self._taken) / self._seen
        return rates

    def _ranked(self, row: CandidateRow) -> NDArray[np.int64]:
        return row.ids[np.argsort(-row.scores, kind="stable")[:MAX_CHOICES]]
