"""Online estimates the controller decides from: times, acceptance and the tail of the candidates.

In residual mode estimates must not look at draws they help to decide about (docs/exactness.md): every
estimator here is fed only with what a verdict made final, up to and including the first rejection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


class SmoothedTime:
    """A smoothed duration and its spread, as TCP keeps them (RFC 6298: gains 1/8 and 1/4)."""

    def __init__(self) -> None:
        self._mean_ms: float | None = None
        self._spread_ms = 0.0

    def observe(self, sample_ms: float) -> None:
        if self._mean_ms is None:
            self._mean_ms, self._spread_ms = sample_ms, sample_ms / 2
            return
        self._spread_ms += (abs(sample_ms - self._mean_ms) - self._spread_ms) / 4
        self._mean_ms += (sample_ms - self._mean_ms) / 8

    @property
    def known(self) -> bool:
        return self._mean_ms is not None

    @property
    def mean_ms(self) -> float:
        """0 before the first sample."""
        return self._mean_ms or 0.0

    @property
    def spread_ms(self) -> float:
        """Smoothed mean deviation."""
        return self._spread_ms


class MeanTime:
    """The mean of the last durations, forgetting slowly, beside what they are expected to be.

    ``memory`` is the number of samples it rests on; the expectation weighs ``prior_samples`` of them.
    """

    def __init__(self, prior_samples: float = 8.0, memory: float = 64.0) -> None:
        self._prior_samples = prior_samples
        self._keep = 1.0 - 1.0 / memory
        self._sum_ms = self._samples = 0.0

    def observe(self, total_ms: float, count: int = 1) -> None:
        """``count`` samples took ``total_ms`` together."""
        keep = self._keep**count
        self._sum_ms = keep * self._sum_ms + total_ms
        self._samples = keep * self._samples + count

    def mean_ms(self, expected_ms: float) -> float:
        """The mean, where ``expected_ms`` was expected before the first sample."""
        samples = self._prior_samples + self._samples
        return (self._prior_samples * expected_ms + self._sum_ms) / samples


class AcceptanceRate:
    """Share of checked chain tokens that were accepted (alpha), forgetting slowly.

    ``memory`` is the number of recent tests the estimate rests on; the prior weighs ``prior_tests`` of them.
    """

    def __init__(self, prior: float, prior_tests: float = 8.0, memory: float = 256.0) -> None:
        if not 0.0 < prior < 1.0:
            raise ValueError(f"the prior acceptance must be between 0 and 1, not {prior}")
        self._accepted = prior * prior_tests
        self._tests = prior_tests
        self._keep = 1.0 - 1.0 / memory

    def observe(self, accepted: int, rejected: bool) -> None:
        """One round: ``accepted`` tokens passed; ``rejected`` says whether one more was tested and failed."""
        tests = accepted + int(rejected)
        keep = self._keep**tests
        self._accepted = self._accepted * keep + accepted
        self._tests = self._tests * keep + tests

    def observe_chance(self, chance: float) -> None:
        """One token that would have been accepted with probability ``chance``."""
        self._accepted = self._accepted * self._keep + chance
        self._tests = self._tests * self._keep + 1.0

    @property
    def value(self) -> float:
        """Strictly between 0 and 1."""
        return min(max(self._accepted / self._tests, 1e-3), 1.0 - 1e-3)

    @property
    def error(self) -> float:
        """Standard error of ``value``, the prior counted among the tests."""
        return math.sqrt(self.value * (1.0 - self.value) / self._tests)


class AcceptanceByConfidence:
    """How often a drafted token is accepted, given the probability the draft gave it.

    One rate for each of ``num_bins`` equal bins of probability. Before anything was seen a bin's rate lies
    between the overall prior and its own probability: a draft that is sure is more often right.
    """

    def __init__(self, prior: float, num_bins: int = 8) -> None:
        middles = [(index + 0.5) / num_bins for index in range(num_bins)]
        self._bins = [AcceptanceRate((prior + middle) / 2.0) for middle in middles]

    def observe(self, draft_prob: float, accepted: bool) -> None:
        """One tested token."""
        self._bin(draft_prob).observe(int(accepted), rejected=not accepted)

    def value(self, draft_prob: float) -> float:
        """The estimated acceptance of a token the draft gave ``draft_prob``."""
        return self._bin(draft_prob).value

    def _bin(self, draft_prob: float) -> AcceptanceRate:
        return self._bins[min(int(draft_prob * len(self._bins)), len(self._bins) - 1)]


class TailExponent:
    """The exponent beta of the candidate tail: P(rank > F | rejection) ~ F**-beta (paper, IV-C).

    Maximum likelihood of a Pareto tail over ranks beyond the first, ranks past ``horizon`` censored (Hill
    1975, with censoring): beta = uncensored / sum(ln rank). The prior weighs as ``prior_count`` observations.
    """

    def __init__(self, prior: float, horizon: int = 64, prior_count: float = 8.0) -> None:
        if prior <= 0.0:
            raise ValueError(f"the prior exponent must be positive, not {prior}")
        self.horizon = horizon
        self._count = prior_count
        self._log_sum = prior_count / prior

    def observe(self, rank: int) -> None:
        """The target's token had ``rank`` (1 is the best) among the candidates, or one past the horizon."""
        if rank > self.horizon:
            self._log_sum += math.log(self.horizon)
        elif rank > 1:
            self._count += 1.0
            self._log_sum += math.log(rank - 0.5)  # the middle of (rank - 1, rank]

    @property
    def value(self) -> float:
        return self._count / self._log_sum


class StepTimes:
    """Profiled step times, corrected by what this run sees.

    One smoothed factor per bucket: the machine may be busier, hotter or faster than when it was profiled. A
    bucket not used yet takes the factor of all steps so far.
    """

    def __init__(self, profile_ms: Mapping[int, float], gain: float = 0.2) -> None:
        if not profile_ms:
            raise ValueError("the profile has no bucket")
        self._profile_ms = dict(profile_ms)
        self._factors: dict[int, float] = {}
        self._common_factor: float | None = None
        self._gain = gain

    def update_profile(self, profile_ms: Mapping[int, float]) -> None:
        """Take the profile's values for another context length; the factors stay."""
        self._profile_ms.update(profile_ms)

    def observe(self, bucket: int, step_ms: float) -> None:
        if bucket not in self._profile_ms:
            return  # a prefill's wide step: nothing is planned by it
        factor = step_ms / self._profile_ms[bucket]
        self._factors[bucket] = self._blend(self._factors.get(bucket, self._common_factor), factor)
        self._common_factor = self._blend(self._common_factor, factor)

    def current(self) -> dict[int, float]:
        """Expected milliseconds of one step, by bucket."""
        return {bucket: self.step_ms(bucket) for bucket in self._profile_ms}

    def step_ms(self, bucket: int) -> float:
        """Expected milliseconds of one step on ``bucket``; a wider one than profiled costs in proportion."""
        widest = max(self._profile_ms)
        if bucket > widest:
            return self.step_ms(widest) * bucket / widest
        common = 1.0 if self._common_factor is None else self._common_factor
        return self._profile_ms[bucket] * self._factors.get(bucket, common)

    def _blend(self, old: float | None, new: float) -> float:
        return new if old is None else old + self._gain * (new - old)
