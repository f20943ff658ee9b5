"""The controller: what the edge learned of the link, the models and itself, and the plan it makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from acespec.edge_runtime.budget import StepPlan, fixed_budget, worth_a_step
from acespec.edge_runtime.estimators import MeanTime, SmoothedTime, StepTimes
from acespec.edge_runtime.outcome_estimates import OutcomeEstimates
from acespec.edge_runtime.race_forecast import best_race
from acespec.edge_runtime.request import DraftSettings
from acespec.edge_runtime.steady_plan import SteadyPlan
from acespec.edge_runtime.time_model import RoundForecast, RoundSetting, best_forecast
from acespec.wire import ServerTimes

ProfileAt = Callable[[int], Mapping[int, float]]
"""Milliseconds a step takes by bucket, at a context length."""

UNKNOWN_WINDOW_MS = 200.0
"""What a round trip and its check are taken for before the first, where gamma is to be chosen."""


class Controller:
    """Keeps the estimates and chooses gamma, the number of branches, the bucket and the branches' depths.

    In residual mode gamma shapes rounds, so what it is chosen from matters (docs/exactness.md). Acceptance
    and tails are learned from what verdicts made final; the rest is time: of the link, of the server, and of
    an engine step at a width, none of which depends on which tokens were drawn.
    """

    def __init__(self, settings: DraftSettings, profile_at: ProfileAt) -> None:
        self.settings = settings
        self.step_times = StepTimes(profile_at(0))
        self.outcomes = OutcomeEstimates(settings.allocation, settings.initial_alpha, settings.initial_beta)
        self.round_trip = SmoothedTime()
        self._trip_is_opening = False
        """Whether all that is known of it is how long the answer to ``Open`` took."""
        self.verify = SmoothedTime()
        """Of a round, as the server tells it."""
        self._decode_intervals = MeanTime()
        """From token to token, as they arrive while the cloud decodes by itself."""
        self._decode_compute = SmoothedTime()
        self._race_intervals = MeanTime()
        """From token to token in a race, as they arrive."""
        self._steady = SteadyPlan(settings.budget)
        self._profile_at = profile_at
        settings.check_buckets(sorted(self.step_times.current()))

    @property
    def verify_ms(self) -> float:
        """T_verify: of rounds, or before the first as long as the cloud takes for a token of its own."""
        return self.verify.mean_ms if self.verify.known else self._decode_compute.mean_ms

    @property
    def cloud_ms(self) -> float:
        """What a token takes if the cloud decodes by itself.

        What the server says it computes, or until it has decoded what checking a chain takes, and more and
        more what passes from one token to the next: of few of them a jittery link makes anything.
        """
        compute = self._decode_compute
        return self._decode_intervals.mean_ms(compute.mean_ms if compute.known else self.verify_ms)

    @property
    def window_ms(self) -> float:
        """RTT + T_verify: what the edge may spend on the tree."""
        return self.round_trip.mean_ms + self.verify_ms

    @property
    def spread_ms(self) -> float:
        """How uncertain the window is."""
        return self.round_trip.spread_ms + self.verify.spread_ms

    def plan(self, context: int) -> StepPlan:
        """The tree of a round sent with ``context`` committed tokens, and the length of the chain after it.

        Unknown round trips count as long. In residual mode that length may not be chosen later, when tokens
        of the chain are drawn.
        """
        settings = self.settings
        if settings.gamma is None:
            return self._steady.choose(self.setting(context)).plan
        step_ms = self._step_ms(context)
        if settings.budget is not None:
            return fixed_budget(settings.budget, settings.gamma, sorted(step_ms))
        window_ms = self.window_ms if self.round_trip.known else float("inf")
        return self._steady.choose_branches(window_ms, self.spread_ms, settings.gamma, step_ms)

    def setting(self, context: int, errors: float = 0.0) -> RoundSetting:
        """What the model of time needs, with alpha ``errors`` standard errors above its estimate."""
        window_ms = self.window_ms if self.round_trip.known else UNKNOWN_WINDOW_MS
        return RoundSetting(window_ms, self._step_ms(context), self.outcomes.odds(errors))

    def forecast(self, context: int, errors: float) -> RoundForecast:
        """What rounds would give at their best; ``errors`` as for ``setting``."""
        settings, setting = self.settings, self.setting(context, errors)
        if settings.gamma is None:
            return best_forecast(setting, budget=settings.budget)
        lengths = (settings.gamma,)
        return best_forecast(setting, lengths, settings.budget, redrafts=lengths)

    def race_ms(self, context: int) -> float:
        """What a token takes in a race: what is expected of it, and more and more what passes."""
        expected = best_race(
            self.cloud_ms, self.round_trip.mean_ms, self._step_ms(context), self.outcomes.odds()
        )
        return self._race_intervals.mean_ms(expected.ms_per_token)

    def _step_ms(self, context: int) -> Mapping[int, float]:
        self.step_times.update_profile(self._profile_at(context))
        return self.step_times.current()

    def worth_a_step(self, now_ms: float, sent_ms: float, bucket: int) -> bool:
        """Whether to begin a growth step now, for a round sent at ``sent_ms``."""
        if not self.round_trip.known:
            return True
        step_ms = self.step_times.step_ms(bucket)
        return worth_a_step(now_ms, step_ms, sent_ms + self.window_ms, self.spread_ms)

    def overdue_ms(self, now_ms: float, sent_ms: float) -> float:
        """How long from now until the verdict counts as late."""
        return max(sent_ms + self.window_ms + 4.0 * self.spread_ms - now_ms, 1.0)

    def observe_round(self, round_ms: float, times: ServerTimes) -> float:
        """A round took ``round_ms``, of which the server says it spent ``times``. Returns the round trip."""
        verify_ms = times.queue_ms + times.compute_ms
        round_trip_ms = max(round_ms - verify_ms, 0.0)
        if self._trip_is_opening:
            self.round_trip, self._trip_is_opening = SmoothedTime(), False
        self.round_trip.observe(round_trip_ms)
        self.verify.observe(verify_ms)
        return round_trip_ms

    def observe_opening(self, answer_ms: float) -> None:
        """The answer to ``Open``, sent before anything is computed, took so long.

        It is a round trip, and the time the prompt took on the link: of use until a round is measured.
        """
        if not self.round_trip.known:
            self.round_trip.observe(answer_ms)
            self._trip_is_opening = True

    def observe_commit(self, since_last_ms: float | None, num_tokens: int, compute_ms: float) -> None:
        """The cloud's own ``num_tokens`` arrived ``since_last_ms`` after those before; None for the first."""
        self._decode_compute.observe(compute_ms)
        if since_last_ms is not None:
            self._decode_intervals.observe(since_last_ms / num_tokens)

    def observe_race(
        self, since_last_ms: float | None, num_tokens: int, compute_ms: float, *, waits: bool = False
    ) -> None:
        """A forward's ``num_tokens`` arrived ``since_last_ms`` after those of the one before.

        ``waits``: the server computes once drafts have come, so that this says nothing of its own decoding.
        """
        self.observe_commit(None if waits else since_last_ms, 1, compute_ms)
        if since_last_ms is not None:
            self._race_intervals.observe(since_last_ms, num_tokens)
