"""The paper's model of time, Eq. 1 to 6 and 14, as it stands there, and what is off in it.

Nothing here decides anything: ``edge_runtime.time_model`` has the corrected model that the runtime and
``acespec plan`` use. Times are milliseconds; ``alpha`` is the probability that a drafted token is accepted,
``gamma`` the length of a chain.

What is off:

* E[L] (section III-A, used by Eq. 1 and 2) leaves out the token the target adds to every round: it is the
  expected length of a chain's accepted part plus that token, cut off at ``gamma``.
* The bubble of Eq. 1, 3 and 4 charges a miss a second round trip. The rejection has arrived by then and the
  next chain's own round trip is in ``T_ideal`` already: a miss costs the redraft alone.
* Eq. 6 is no hit rate. It multiplies the depths' chances as if every depth had to be survived *and* looked
  up; a round ends at one depth only, and full acceptance, often the likeliest end, is not in it.
* Eq. 14 therefore gives full acceptance no branch (``allocation.allocate`` reserves it one).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


def expected_length(alpha: float, gamma: int) -> float:
    """E[L] = (1 - alpha^gamma) / (1 - alpha), section III-A: without the bonus token."""
    return gamma if alpha == 1.0 else (1.0 - alpha**gamma) / (1.0 - alpha)


def naive_cycle_ms(draft_ms: float, round_trip_ms: float, verify_ms: float) -> float:
    """T_naive = T_draft(gamma) + RTT + T_verify, section III-A: stop and wait."""
    return draft_ms + round_trip_ms + verify_ms


def ideal_cycle_ms(draft_ms: float, round_trip_ms: float, verify_ms: float) -> float:
    """T_ideal = max(T_draft, RTT + T_verify), sections III-A and IV-A: all drafting hidden."""
    return max(draft_ms, round_trip_ms + verify_ms)


def expected_penalty_ms(alpha: float, gamma: int, round_trip_ms: float, redraft_ms: float) -> float:
    """Eq. 1: (1 - alpha^gamma) (RTT + T_redraft)."""
    return (1.0 - alpha**gamma) * (round_trip_ms + redraft_ms)


def pipelined_throughput(alpha: float, gamma: int, ideal_ms: float, penalty_ms: float) -> float:
    """Eq. 2: E[L] / (T_ideal + E[Penalty]), tokens a millisecond."""
    return expected_length(alpha, gamma) / (ideal_ms + penalty_ms)


def bubble_ms(round_trip_ms: float, redraft_ms: float) -> float:
    """T_bubble = RTT + T_redraft(gamma), section IV-A."""
    return round_trip_ms + redraft_ms


def speedup_bound(naive_ms: float, ideal_ms: float, hit_rate: float, bubble: float) -> float:
    """Eq. 3: T_naive / (T_ideal + (1 - P_hit) T_bubble), of the tree against stop and wait.

    With the rate of hits in place of Eq. 6 it is a lower bound, for the bubble is too long.
    """
    return naive_ms / (ideal_ms + (1.0 - hit_rate) * bubble)


def speedup_bound_by_ratio(ideal_speedup: float, hit_rate: float, penalty_ratio: float) -> float:
    """Eq. 4: S_ideal / (1 + (1 - P_hit) rho), with rho = T_bubble / T_ideal: Eq. 3 in other words."""
    return ideal_speedup / (1.0 + (1.0 - hit_rate) * penalty_ratio)


def network_budget(window_ms: float, tree_ms: Callable[[int], float], max_budget: int) -> int:
    """Eq. 5: B* = min(B_max, floor(T_tree^-1(RTT + T_verify))); 0 if not even one node fits.

    ``tree_ms`` never falls with the budget. ``edge_runtime.budget`` has it for an engine's buckets.
    """
    return next((b for b in range(max_budget, 0, -1) if tree_ms(b) <= window_ms), 0)


def tail_share(branches: float, beta: float, scale: float = 1.0) -> float:
    """R(F) = 1 - c F^-beta, section IV-C, at least 0: the share of the residual in its top ``branches``."""
    return 0.0 if branches <= 0.0 else max(1.0 - scale * branches**-beta, 0.0)


def product_hit_rate(alpha: float, shares: Sequence[float]) -> float:
    """Eq. 6: the product over k < gamma of ``alpha + (1 - alpha) R(F_k)``; ``shares`` are the ``R(F_k)``.

    It is the probability that at each of ``gamma`` independent positions the target's token is the chain's
    or one of the branches'. That is no hit rate: see ``edge_runtime.time_model.hit_rate``.
    """
    return float(np.prod([alpha + (1.0 - alpha) * share for share in shares]))


def geometric_branches(num_branches: float, gamma: int, alpha: float, beta: float) -> NDArray[np.float64]:
    """Eq. 14: ``F_k = B (1 - eta) / (1 - eta^gamma) eta^k`` with ``eta = alpha^(1/(beta+1))``, k < gamma.

    Not rounded, ``[gamma]``.
    """
    decay = np.power(alpha ** (1.0 / (beta + 1.0)), np.arange(float(gamma)))
    branches: NDArray[np.float64] = num_branches * decay / decay.sum()
    return branches
