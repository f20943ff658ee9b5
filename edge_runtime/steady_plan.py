"""Hysteresis: a plan stays until another is clearly better, so that buckets do not flap with every sample.

A bucket is an engine of its own on some devices, and a chain's length shapes the next round; changing either
for a gain that is within the noise of the estimates buys nothing. Pure: what was chosen last is the only
state.
"""

from __future__ import annotations

from collections.abc import Mapping

from acespec.edge_runtime.budget import StepPlan, plan_budget
from acespec.edge_runtime.time_model import RoundForecast, RoundSetting, best_forecast, forecast

LEAST_GAIN = 0.03
"""Share of the time of a token that a new plan must save."""


class SteadyPlan:
    """The plan in force."""

    def __init__(self, budget: int | None = None) -> None:
        """``budget`` fixes gamma plus the branches; None leaves it to the model."""
        self._budget = budget
        self._plan: StepPlan | None = None

    def choose(self, setting: RoundSetting) -> RoundForecast:
        """The plan for rounds in ``setting``, gamma, budget and redraft chosen together by the model of time.

        The last one stays unless another saves `LEAST_GAIN` of the time of a token.
        """
        best = best_forecast(setting, budget=self._budget)
        if self._plan is not None and self._plan.bucket in setting.step_ms:
            current = forecast(setting, self._plan)
            if best.ms_per_token >= (1.0 - LEAST_GAIN) * current.ms_per_token:
                return current
        self._plan = best.plan
        return best

    def choose_branches(
        self, window_ms: float, spread_ms: float, gamma: int, step_ms: Mapping[int, float]
    ) -> StepPlan:
        """For a fixed ``gamma`` the widest complete tree, as Eq. 5 has it.

        The last one stays as long as it is right for some window within ``spread_ms`` of ``window_ms``.
        """
        if self._plan is not None and self._plan.bucket in step_ms:
            narrow = plan_budget(window_ms - spread_ms, gamma, step_ms)
            wide = plan_budget(window_ms + spread_ms, gamma, step_ms)
            if narrow.num_branches <= self._plan.num_branches <= wide.num_branches:
                return self._plan
        self._plan = plan_budget(window_ms, gamma, step_ms)
        return self._plan
