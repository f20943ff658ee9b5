"""How many branches each outcome depth gets: F_k, k = 0..gamma, where depth gamma is full acceptance."""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import NDArray

_ALPHA_RANGE = (1e-6, 1.0 - 1e-6)
_BETA_RANGE = (1e-3, 1e3)


class Allocation(str, Enum):
    """The strategy that spreads the branches over depths."""

    SINGLE = "single"
    """One branch, below full acceptance: the chain drafted on."""
    UNIFORM = "uniform"
    GEOMETRIC = "geometric"
    """The paper's closed form (section IV-C), with full acceptance reserved first (docs/architecture.md)."""
    ADAPTIVE = "adaptive"
    """The likeliest outcomes of this very chain: ``allocate_adaptive``."""


def allocate(
    strategy: Allocation | str, num_branches: int, gamma: int, alpha: float, beta: float
) -> NDArray[np.int64]:
    """Return the branches per depth: int64 ``[gamma + 1]``.

    They sum to ``num_branches``, for ``single`` to at most 1.
    ``alpha`` is the probability that a drafted token is accepted, ``beta`` the power-law exponent of the
    residual (paper Eq. 11); only ``geometric`` reads them, and moves values at or beyond their limits (0 and
    1; 0) just inside. Raises ``ValueError`` for a strategy that does not exist, for ``adaptive`` (which needs
    to know the chain), or for a negative ``num_branches`` or ``gamma``.
    """
    strategy = Allocation(strategy)
    if strategy is Allocation.ADAPTIVE:
        raise ValueError("adaptive allocation looks at the chain: call allocate_adaptive")
    if num_branches < 0 or gamma < 0:
        raise ValueError(f"num_branches and gamma must not be negative: {num_branches}, {gamma}")
    if strategy is Allocation.SINGLE:
        branches = np.zeros(gamma + 1, dtype=np.int64)
        branches[gamma] = min(1, num_branches)
        return branches
    if strategy is Allocation.UNIFORM:
        return _apportion(np.ones(gamma + 1), num_branches)
    return _geometric(num_branches, gamma, alpha, beta)


def _geometric(num_branches: int, gamma: int, alpha: float, beta: float) -> NDArray[np.int64]:
    """Eq. 14 with ``eta = alpha^(1/(beta+1))`` over k < gamma, on what full acceptance leaves.

    Depth k < gamma is reached and ended there with probability ``alpha^k (1 - alpha)``, full acceptance with
    ``alpha^gamma``. The optimality condition (Eq. 12) takes each to the power ``1/(beta+1)``: relative to Eq.
    13's ``eta^k`` full acceptance weighs ``eta^gamma (1 - alpha)^(-1/(beta+1))``.
    """
    alpha = float(np.clip(alpha, *_ALPHA_RANGE))
    beta = float(np.clip(beta, *_BETA_RANGE))
    exponent = 1.0 / (beta + 1.0)
    shares: NDArray[np.float64] = np.power(alpha, exponent * np.arange(gamma + 1.0))
    shares[gamma] *= (1.0 - alpha) ** -exponent
    reserved = round(num_branches * float(shares[gamma] / shares.sum()))
    rejected = _apportion(shares[:gamma], num_branches - reserved) if gamma else np.zeros(0, dtype=np.int64)
    return np.append(rejected, reserved)


def _apportion(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Split ``total`` in proportion to ``shares`` ``[n]`` by largest remainder, ties to the lower index."""
    exact = total * shares / shares.sum()
    parts: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    order = np.argsort(parts - exact, kind="stable")
    parts[order[: total - int(parts.sum())]] += 1
    return parts


def allocate_adaptive(
    num_branches: int,
    accept_probs: NDArray[np.float64],
    beta: float,
    first_share_rejected: float,
    first_share_accepted: float,
) -> NDArray[np.int64]:
    """Return the branches per depth for this very chain: int64 ``[gamma + 1]``, summing to ``num_branches``.

    ``accept_probs`` ``[gamma]`` estimates each drafted token's acceptance, given that of those before it; how
    sure the draft was of a token says much about it. Branches go to the likeliest outcomes: the F-th at depth
    k has the probability to reach and end at k times the share of the F-th candidate there. Shares follow the
    paper's power law ``R(F) = 1 - c F^-beta`` with ``c = 1 - R(1)``: ``first_share_rejected`` is R(1) where a
    token was rejected, ``first_share_accepted`` after full acceptance, where the draft's own first choice
    still stands.
    """
    reached = np.append(1.0, np.cumprod(accept_probs))
    ended = reached * np.append(1.0 - accept_probs, 1.0)
    shares = np.tile(_rank_shares(first_share_rejected, beta, num_branches), (len(ended), 1))
    shares[-1] = _rank_shares(first_share_accepted, beta, num_branches)
    likeliest = np.argsort(-(ended[:, None] * shares), axis=None, kind="stable")[:num_branches]
    depths, _ = np.unravel_index(likeliest, shares.shape)
    return np.bincount(depths, minlength=len(ended))


def _rank_shares(first: float, beta: float, count: int) -> NDArray[np.float64]:
    """Probability that the outcome is the F-th candidate, F = 1..count; never rising with F."""
    ranks = np.arange(1.0, count + 1.0)
    within = 1.0 - (1.0 - first) * ranks ** -float(np.clip(beta, *_BETA_RANGE))
    return np.minimum.accumulate(np.diff(within, prepend=0.0))
