"""The controller: what the edge learned of the link, the models and itself, and the plan it makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from acespec.edge_runtime.budget import StepPlan, fixed_budget, plan_budget, worth_a_step
from acespec.edge_runtime.estimators import SmoothedTime, StepTimes
from acespec.edge_runtime.outcome_estimates import OutcomeEstimates
from acespec.edge_runtime.request import DraftSettings
from acespec.wire import ServerTimes

ProfileAt = Callable[[int], Mapping[int, float]]
"""Milliseconds a step takes by bucket, at a context length."""


class Controller:
    """Keeps the estimates and chooses gamma, the number of branches, the bucket and the branches' depths."""

    def __init__(self, settings: DraftSettings, profile_at: ProfileAt) -> None:
        self.settings = settings
        self.step_times = StepTimes(profile_at(0))
        self.outcomes = OutcomeEstimates(settings.allocation, settings.initial_alpha, settings.initial_beta)
        self.round_trip = SmoothedTime()
        self.verify = SmoothedTime()
        self._profile_at = profile_at
        settings.check_buckets(sorted(self.step_times.current()))

    @property
    def window_ms(self) -> float:
        """RTT + T_verify: what the edge may spend on the tree."""
        return self.round_trip.mean_ms + self.verify.mean_ms

    @property
    def spread_ms(self) -> float:
        """How uncertain the window is."""
        return self.round_trip.spread_ms + self.verify.spread_ms

    def plan(self, context: int) -> StepPlan:
        """The plan for a round sent with ``context`` committed tokens. Unknown round trips count as long."""
        self.step_times.update_profile(self._profile_at(context))
        step_ms = self.step_times.current()
        gamma = self.settings.gamma
        if self.settings.budget is not None:
            return fixed_budget(self.settings.budget, gamma, sorted(step_ms))
        window_ms = self.window_ms if self.round_trip.known else float("inf")
        return plan_budget(window_ms, gamma, step_ms)

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
        self.round_trip.observe(round_trip_ms)
        self.verify.observe(verify_ms)
        return round_trip_ms
