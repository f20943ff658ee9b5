"""The exact joint distribution of three consecutive tokens of a table model, and the test against it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

WINDOW = 3


def expected_joint(
    probs: NDArray[np.float64], prompt: Sequence[int], end_tokens: Sequence[int], skip: int
) -> NDArray[np.float64]:
    """Return the joint ``[V + 1] * 3`` of the generated tokens ``skip .. skip + 2``.

    Index V stands for "ended before".     ``probs[a, b]`` ``[V]`` is the distribution after a, b. A prompt's
    end tokens end nothing.
    """
    vocab = probs.shape[-1]
    padded = np.zeros((vocab + 1,) * 3)
    padded[:vocab, :vocab, :vocab] = probs
    follow = padded.copy()
    over = [*end_tokens, vocab]
    follow[:, over, :] = 0.0
    follow[:, over, vocab] = 1.0
    state = np.zeros((vocab + 1, vocab + 1))
    state[prompt[-2], prompt[-1]] = 1.0
    step = padded  # the first generated token follows the prompt
    for _ in range(skip):
        state = np.einsum("ab,abc->bc", state, step)
        step = follow
    joint: NDArray[np.float64] = np.einsum("ab,abx,bxy,xyz->xyz", state, step, follow, follow)
    return joint


def joint_p_value(tokens: NDArray[np.int64], joint: NDArray[np.float64]) -> float:
    """Return the chi-square p-value of ``tokens`` ``[n, 3]``, -1 after an end.

    0 if an impossible cell is hit. Cells that expect fewer than five are merged into one, and that into
    the smallest of the others if it still does.
    """
    size = joint.shape[0]
    symbols = np.where(tokens < 0, size - 1, tokens)
    cells = np.ravel_multi_index(tuple(symbols.T), joint.shape)
    observed = np.bincount(cells, minlength=joint.size)
    expected = joint.ravel() * len(tokens)
    if observed[expected == 0.0].any():
        return 0.0
    small = expected < 5.0
    groups = np.append(expected[~small], expected[small].sum())
    counts = np.append(observed[~small], observed[small].sum())
    if groups[-1] < 5.0 and len(groups) > 1:
        smallest = int(groups[:-1].argmin())
        groups[smallest] += groups[-1]
        counts[smallest] += counts[-1]
        groups, counts = groups[:-1], counts[:-1]
    if len(groups) == 1:
        return 1.0
    return float(stats.chisquare(counts, groups * (counts.sum() / groups.sum())).pvalue)
