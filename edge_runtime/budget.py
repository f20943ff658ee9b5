"""The network-aware budget B*(t): how much tree fits into the time a verdict takes (paper Eq. 5).

Pure functions of their inputs. A budget counts tree nodes a step: gamma plus the number of branches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StepPlan:
    """What the controller chose for one round."""

    gamma: int
    """Tokens of the chain that follows a hit: the branches' length."""
    num_branches: int
    bucket: int
    redraft: int = 0
    """Tokens of the chain that is drafted after a miss; given as 0 it is ``gamma``."""

    def __post_init__(self) -> None:
        if self.redraft == 0:
            object.__setattr__(self, "redraft", self.gamma)

    @property
    def budget(self) -> int:
        return self.gamma + self.num_branches


def bucket_for(width: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds ``width`` tokens; ``buckets`` ascend. ``ValueError`` if none does."""
    index = bisect_left(buckets, width)
    if index == len(buckets):
        raise ValueError(f"a step of {width} tokens is wider than the largest bucket ({buckets[-1]})")
    return buckets[index]


def growth_steps(gamma: int) -> int:
    """Lockstep steps that complete every branch.

    A branch needs one step for its root and one for each of its next chain's first ``gamma - 1`` tokens; the
    branches of full acceptance begin one step later, after the row of the chain's last token.
    """
    return gamma + 1


def tree_time_ms(budget: int, gamma: int, step_ms: Mapping[int, float]) -> float:
    """T_tree(B) = steps x t(bucket(B - gamma)), milliseconds; ``step_ms`` maps buckets to step times."""
    return growth_steps(gamma) * step_ms[bucket_for(max(budget - gamma, 1), sorted(step_ms))]


def plan_budget(
    window_ms: float, gamma: int, step_ms: Mapping[int, float], max_budget: int | None = None
) -> StepPlan:
    """B*(t) = min(B_max, T_tree^-1(window)), with the bucket it runs on.

    ``window_ms`` is RTT + T_verify. T_tree is constant between buckets, so its inverse is a whole bucket.
    When not even the smallest fits, that one is kept: growth stops the moment the verdict arrives, so it
    costs nothing. ``max_budget`` None means the largest bucket.
    """
    buckets = sorted(step_ms)
    fitting = [b for b in buckets if tree_time_ms(gamma + b, gamma, step_ms) <= window_ms]
    num_branches = max(fitting, default=buckets[0])
    if max_budget is not None:
        num_branches = min(num_branches, max(max_budget - gamma, 0))
    return StepPlan(gamma, num_branches, bucket_for(max(num_branches, 1), buckets))


def fixed_budget(budget: int, gamma: int, buckets: Sequence[int]) -> StepPlan:
    """The plan for a budget the user fixed. ``ValueError`` if no bucket is wide enough."""
    num_branches = budget - gamma
    if num_branches > buckets[-1]:
        raise ValueError(
            f"budget {budget} needs {num_branches} branches a step, but the widest bucket of this bundle is "
            f"{buckets[-1]}: use a budget of at most {gamma + buckets[-1]}, or export with a wider bucket"
        )
    return StepPlan(gamma, num_branches, bucket_for(max(num_branches, 1), buckets))


def worth_a_step(now_ms: float, step_ms: float, verdict_ms: float, spread_ms: float) -> bool:
    """Whether a growth step begun now is expected to end by the time the verdict arrives.

    A step under way cannot be stopped, so one begun just before the verdict would delay the next chain.
    ``verdict_ms`` is when the verdict is expected, ``spread_ms`` how uncertain that is.
    """
    return now_ms + step_ms <= verdict_ms + spread_ms
