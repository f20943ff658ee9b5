"""What rounds are expected to end in, learned from how they ended, and the branches that follow from it.

In residual mode this must not look at draws it helps to decide about (docs/exactness.md): it is fed only with
what a verdict made final, up to and including the first rejection, or with tokens that the cloud decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acespec.edge_runtime.estimators import AcceptanceByConfidence, AcceptanceRate, TailExponent
from acespec.edge_runtime.time_model import OutcomeOdds
from acespec.speculation import Allocation, allocate, allocate_adaptive


class OutcomeEstimates:
    """Acceptance (alpha), the tail of the candidates (beta), and the allocation of branches to depths."""

    def __init__(self, strategy: Allocation, initial_alpha: float, initial_beta: float) -> None:
        self.strategy = strategy
        self.alpha = AcceptanceRate(initial_alpha)
        self.beta = TailExponent(initial_beta)
        self._by_confidence = AcceptanceByConfidence(initial_alpha)
        self._first_rejected = AcceptanceRate(0.4)
        self._first_accepted = AcceptanceRate(initial_alpha)

    @property
    def horizon(self) -> int:
        """How many candidates a rank is looked for in."""
        return self.beta.horizon

    def odds(self, errors: float = 0.0) -> OutcomeOdds:
        """What the model of time needs, with alpha ``errors`` standard errors above its estimate."""
        alpha = min(max(self.alpha.value + errors * self.alpha.error, 1e-3), 1.0 - 1e-3)
        return OutcomeOdds(
            alpha, self.beta.value, self._first_rejected.value, first_accepted=self._first_accepted.value
        )

    def observe_beside(self, confidence: float, ranked: Sequence[int], drafted: int, token: int) -> None:
        """The cloud decoded ``token`` where ``drafted`` had been, with this confidence (coupled mode).

        ``ranked`` are the candidates there, best first: one more than the horizon, or all there are.
        """
        accepted = token == drafted
        others = None
        if not accepted:
            others = self._rank(token, [candidate for candidate in ranked if candidate != drafted])
        self.observe([confidence], int(accepted), rejected=not accepted, rank=others)
        is_first = token == ranked[0]
        self._first_accepted.observe(int(is_first), rejected=not is_first)

    def observe_chance(self, chance: float) -> None:
        """The cloud decoded a token that, drafted, had been accepted with at least this probability."""
        self.alpha.observe_chance(chance)

    def observe(self, confidences: Sequence[float], accepted: int, rejected: bool, rank: int | None) -> None:
        """A round ended with ``accepted`` tokens; ``confidences`` are those of the chain's tokens.

        ``rank`` is that of the next token among the candidates there, None where nobody knows.
        """
        self.alpha.observe(accepted, rejected)
        for index in range(accepted + int(rejected)):
            self._by_confidence.observe(confidences[index], accepted=index < accepted)
        if rank is None:
            return
        first = self._first_rejected if rejected else self._first_accepted
        first.observe(int(rank == 1), rejected=rank != 1)
        if rejected:
            self.beta.observe(rank)

    def _rank(self, token: int, ranked: Sequence[int]) -> int:
        """The rank of ``token`` among ``ranked``, one past the horizon beyond that."""
        within = ranked[: self.horizon]
        return within.index(token) + 1 if token in within else self.horizon + 1

    def allocation(self, num_branches: int, confidences: Sequence[float]) -> list[int]:
        """Branches by depth 0..len(confidences) for a chain whose tokens have these confidences."""
        if self.strategy is Allocation.ADAPTIVE:
            counts = allocate_adaptive(
                num_branches,
                np.array([self._by_confidence.value(confidence) for confidence in confidences]),
                self.beta.value,
                self._first_rejected.value,
                self._first_accepted.value,
            )
        else:
            counts = allocate(
                self.strategy, num_branches, len(confidences), self.alpha.value, self.beta.value
            )
        return [int(count) for count in counts]
