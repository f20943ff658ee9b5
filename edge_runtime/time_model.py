"""How long rounds take: the corrected model of time by which the runtime plans and ``acespec plan`` compares.

It corrects the paper's (``speculation.paper_model``) in three points. A round commits the target's own token
too: ``E[L] = (1 - alpha^(gamma+1)) / (1 - alpha)``. A miss costs a redraft and no further round trip. And the
hit rate is the probability of the one outcome that happens: ended at depth k with probability
``alpha^k (1 - alpha)``, or fully accepted with ``alpha^gamma``, times the share of the candidates there that
have a branch with at least one token ready when the verdict comes.

Assumed, as in the paper: each token is accepted with the same probability, whatever came before it, and
shares follow ``R(F) = 1 - (1 - R(1)) F^-beta``. Texts have easy and hard stretches, so that for the same mean
acceptance chains live a little longer than this says. Pure functions; times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acespec.edge_runtime.budget import StepPlan, bucket_for

GAMMAS = (*range(1, 13), 14, 16, 20, 24, 32)
"""Chain lengths that are considered."""
FIRST_SHARE = 0.4
"""R(1) after a rejection, where nothing is known of it."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class OutcomeOdds:
    """What rounds are believed to end in."""

    alpha: float
    """Probability that a drafted token is accepted."""
    beta: float
    """Exponent of the candidates' tail."""
    first_rejected: float = FIRST_SHARE
    """R(1) after a rejection: the share of the best other candidate."""
    first_accepted: float | None = None
    """R(1) after full acceptance; None: alpha, for there the draft's own first choice still stands."""


@dataclass(frozen=True)
class RoundSetting:
    """What a round's time follows from, besides its plan."""

    window_ms: float
    """RTT + T_verify, with the time the messages of a round without a chain take on the link."""
    step_ms: Mapping[int, float]
    """A draft step's time by bucket; the smallest drafts one token."""
    odds: OutcomeOdds
    chain_token_ms: float = 0.0
    """How much longer each chain token makes it: bits on the link."""


@dataclass(frozen=True)
class RoundForecast:
    """What a plan is expected to give, over many rounds."""

    plan: StepPlan
    hit_rate: float
    """Share of rounds whose outcome is in the tree."""
    tokens: float
    """Committed by a round."""
    round_ms: float

    @property
    def ms_per_token(self) -> float:
        return self.round_ms / self.tokens


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens a round of ``gamma`` drafted ones commits: E[L] = (1 - alpha^(gamma+1)) / (1 - alpha)."""
    return float(_expected_tokens(alpha, np.array([gamma]))[0])


def hit_rate(odds: OutcomeOdds, gamma: int, num_branches: int, steps: int) -> float:
    """Probability that a round's outcome is in the tree, ``steps`` lockstep steps having been completed.

    Branches are spread as ``allocate`` does it for ``geometric``, not rounded. A branch behind a rejection
    has its first token after one step, one behind full acceptance after two.
    """
    rejected, full = _hit_rates(odds, np.array([gamma]), num_branches, steps)
    return float(rejected[0] + full[0])


def forecast(setting: RoundSetting, plan: StepPlan) -> RoundForecast:
    """What ``plan`` is expected to give."""
    gammas, redrafts = np.array([plan.gamma]), np.array([plan.redraft])
    return _forecasts(setting, gammas, redrafts, plan.num_branches, plan.bucket).at(0, 0)


def best_forecast(
    setting: RoundSetting,
    gammas: Sequence[int] | None = None,
    budget: int | None = None,
    redrafts: Sequence[int] | None = None,
) -> RoundForecast:
    """The plan that takes the least time for a token: gamma, branches, bucket and redraft chosen together.

    ``budget`` fixes gamma plus the branches; None lets branches fill a bucket. The paper's B*(t) (Eq. 5) is
    the widest tree that is complete in the window; here a narrower chain or a tree that is not complete may
    win. ``gammas`` are the lengths considered (None: `GAMMAS`, or for a budget all up to the last of them),
    ``redrafts`` those after a miss (None: the same).
    """
    buckets = sorted(setting.step_ms)
    if gammas is None:
        gammas = GAMMAS if budget is None else range(1, GAMMAS[-1] + 1)
    lengths = np.array(gammas if redrafts is None else redrafts)
    if budget is None:
        candidates = [_forecasts(setting, np.array(gammas), lengths, b, b).best() for b in buckets]
    else:
        candidates = [
            _forecasts(setting, np.array([gamma]), lengths, budget - gamma, bucket).best()
            for gamma in gammas
            if 0 <= budget - gamma <= buckets[-1]
            for bucket in [bucket_for(max(budget - gamma, 1), buckets)]
        ]
    return min(candidates, key=lambda candidate: candidate.ms_per_token)


@dataclass(frozen=True)
class _Forecasts:
    """Forecasts of one bucket for each gamma (rows) and each length after a miss (columns)."""

    gammas: NDArray[np.int64]
    redrafts: NDArray[np.int64]
    num_branches: int
    bucket: int
    hit_rates: Floats
    tokens: Floats
    round_ms: Floats

    def at(self, row: int, column: int) -> RoundForecast:
        plan = StepPlan(
            int(self.gammas[row]), self.num_branches, self.bucket, redraft=int(self.redrafts[column])
        )
        return RoundForecast(
            plan,
            float(self.hit_rates[row, column]),
            float(self.tokens[row, column]),
            float(self.round_ms[row, column]),
        )

    def best(self) -> RoundForecast:
        usable = self.redrafts[None, :] <= self.gammas[:, None]
        ms_per_token = np.where(usable, self.round_ms / self.tokens, np.inf)
        row, column = np.unravel_index(int(ms_per_token.argmin()), ms_per_token.shape)
        return self.at(int(row), int(column))


def _forecasts(
    setting: RoundSetting,
    gammas: NDArray[np.int64],
    redrafts: NDArray[np.int64],
    num_branches: int,
    bucket: int,
) -> _Forecasts:
    """Rounds begun by a hit have ``gamma`` tokens, those begun by a miss ``redraft``: a Markov chain of two
    states, whose stationary shares weigh their tokens and times."""
    odds, draft_ms = setting.odds, setting.step_ms[min(setting.step_ms)]

    def steps_during(lengths: NDArray[np.int64]) -> Floats:
        windows = setting.window_ms + setting.chain_token_ms * lengths
        steps: Floats = np.floor(windows / setting.step_ms[bucket] + 1e-9)
        return steps

    steps_hit, steps_miss = steps_during(gammas), steps_during(redrafts)
    rejected, full = _hit_rates(odds, gammas, num_branches, steps_hit)
    rejected_miss, full_miss = _hit_rates(odds, redrafts, num_branches, steps_miss)
    after_hit, after_miss = (rejected + full)[:, None], (rejected_miss + full_miss)[None, :]
    hits = after_miss / (1.0 - after_hit + after_miss + 1e-12)  # [gammas, redrafts]: rounds a hit begins

    def unfinished_ms(rejected: Floats, full: Floats, steps: Floats) -> Floats:
        """Time to finish branches the tree had no time for, for a next chain of each gamma."""
        behind = np.maximum(gammas[:, None] - steps, 0.0)
        behind_full = np.maximum(gammas[:, None] - steps + 1.0, 0.0)
        late_ms: Floats = draft_ms * (rejected * behind + full * np.minimum(behind_full, gammas[:, None]))
        return late_ms

    late_ms = hits * unfinished_ms(rejected[:, None], full[:, None], steps_hit[:, None]) + (
        1.0 - hits
    ) * unfinished_ms(rejected_miss[None, :], full_miss[None, :], steps_miss[None, :])
    chain = hits * gammas[:, None] + (1.0 - hits) * redrafts[None, :]
    tokens = (
        hits * _expected_tokens(odds.alpha, gammas)[:, None]
        + (1.0 - hits) * _expected_tokens(odds.alpha, redrafts)[None, :]
    )
    redraft_ms = (1.0 - hits) * redrafts[None, :] * draft_ms
    round_ms = setting.window_ms + setting.chain_token_ms * chain + redraft_ms + late_ms
    return _Forecasts(gammas, redrafts, num_branches, bucket, hits, tokens, round_ms)


def _expected_tokens(alpha: float, gammas: NDArray[np.int64]) -> Floats:
    fed = gammas.astype(np.float64) + 1.0
    return fed if alpha >= 1.0 else (1.0 - np.power(alpha, fed)) / (1.0 - alpha)


def _hit_rates(
    odds: OutcomeOdds, gammas: NDArray[np.int64], num_branches: int, steps: Floats | int
) -> tuple[Floats, Floats]:
    """The probabilities to end behind a rejection, or with full acceptance, in a branch with a token ready.

    ``steps`` is one number or one for each of ``gammas``.
    """
    alpha, exponent = min(max(odds.alpha, 1e-6), 1.0 - 1e-6), 1.0 / (odds.beta + 1.0)
    depths = np.arange(gammas.max(initial=0) + 0.0)[None, :]
    weights = np.where(depths < gammas[:, None], alpha ** (exponent * depths), 0.0)  # Eq. 13
    full_weights = alpha ** (exponent * gammas) * (1.0 - alpha) ** -exponent
    scale = num_branches / (weights.sum(axis=1) + full_weights)
    shares = _shares(weights * scale[:, None], odds.beta, odds.first_rejected)
    rejected = (1.0 - alpha) * (alpha**depths * np.where(weights > 0.0, shares, 0.0)).sum(axis=1)
    first_accepted = alpha if odds.first_accepted is None else odds.first_accepted
    full = alpha**gammas * _shares(full_weights * scale, odds.beta, first_accepted)
    return rejected * (np.asarray(steps) >= 1), full * (np.asarray(steps) >= 2)


def _shares(branches: Floats, beta: float, first: float) -> Floats:
    """R(F) for branches that may be a fraction: so often one is there."""
    tail: Floats = (1.0 - first) * np.power(np.maximum(branches, 1.0), -beta)
    return (1.0 - tail) * np.minimum(branches, 1.0)
