"""Residual mode: acceptance and resampling on integer weights (Leviathan et al. 2023, Chen et al. 2023).

Draft weights are out of ``2**DRAFT_BITS``, target weights out of ``2**target_bits``; compared, each is
brought to the product of both. That fits int64, float64 holds it exactly, and times a draw of ``uniform``
it stays below itself. Functions of arrays broadcast over leading dimensions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from acespec.speculation.randomness import Purpose, uniform
from acespec.speculation.weights import DRAFT_BITS, Weighted, draw


def accepts(
    u: NDArray[np.float64],
    draft_weight: NDArray[np.int64] | int,
    target_weight: NDArray[np.int64] | int,
    target_bits: NDArray[np.int64] | int,
) -> NDArray[np.bool_]:
    """Return whether drafted tokens stand: bool ``[...]`` of the broadcast arguments.

    With probability ``min(1, target / draft)``: ``u * draft_weight / 2^16 < target_weight / 2^target_bits``.
    """
    target = np.left_shift(target_weight, DRAFT_BITS, dtype=np.int64)
    draft = np.left_shift(draft_weight, target_bits, dtype=np.int64)
    return np.asarray(u * draft < target)


def residual_weights(
    target_weights: NDArray[np.int64],
    target_bits: NDArray[np.int64] | int,
    draft_weights: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return ``max(0, target - draft)`` as weights ``[..., n]`` over one support, which need no normalizing.

    ``target_weights`` and ``draft_weights`` are ``[..., n]``; ``target_bits`` broadcasts against them.
    """
    target = np.left_shift(target_weights, DRAFT_BITS, dtype=np.int64)
    draft = np.left_shift(draft_weights, target_bits, dtype=np.int64)
    residual: NDArray[np.int64] = np.maximum(target - draft, 0)
    return residual


def resample_sparse(target: Weighted, draft: Weighted, seed: int, position: int) -> int:
    """Return the token that replaces a rejected one at ``position``, drawn from the normalized residual."""
    residual = residual_weights(target.weights, target.bits, draft.weights_of(target.ids))
    return int(target.ids[draw(residual, uniform(seed, Purpose.RESIDUAL, position))])


def propose(target: Weighted, seed: int, position: int, first_index: int, count: int) -> NDArray[np.int64]:
    """Return proposals from ``target``, those of index ``first_index`` on: int64 ids ``[count]``."""
    indexes = np.arange(first_index, first_index + count)
    return target.pick(uniform(seed, Purpose.PROPOSAL, position, indexes))


def thin_passes(
    u: NDArray[np.float64],
    target_weight: NDArray[np.int64] | int,
    target_bits: NDArray[np.int64] | int,
    draft_weight: NDArray[np.int64] | int,
) -> NDArray[np.bool_]:
    """Return whether proposals pass into the residual: bool ``[...]`` of the broadcast arguments.

    With probability ``max(0, 1 - draft / target)``; the first of a row of proposals to pass is a draw from
    the normalized residual (rejection sampling).
    """
    target = np.left_shift(target_weight, DRAFT_BITS, dtype=np.int64)
    draft = np.left_shift(draft_weight, target_bits, dtype=np.int64)
    return np.asarray(u * target < target - draft)


def resample_draws(
    ids: NDArray[np.int64],
    weights: NDArray[np.int64],
    target_bits: int,
    draft: Weighted,
    seed: int,
    position: int,
    first_index: int,
) -> int | None:
    """Return the first of the proposals ``ids`` ``[m]`` to pass into the residual; None if none does.

    ``weights`` ``[m]`` are their target weights, out of ``2**target_bits``; proposal j has index
    ``first_index + j``.
    """
    u = uniform(seed, Purpose.THIN, position, np.arange(first_index, first_index + len(ids)))
    passed = np.flatnonzero(thin_passes(u, weights, target_bits, draft.weights_of(ids)))
    return int(ids[passed[0]]) if len(passed) else None
