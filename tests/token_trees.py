"""Trees of tokens for tests: of any shape, and what leads to a token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st


@st.composite
def trees(draw: st.DrawFn, max_size: int) -> list[int]:
    """Parents of 1 to ``max_size`` tokens: -1 or an earlier one."""
    size = draw(st.integers(1, max_size))
    return random_parents(np.random.default_rng(draw(st.integers(0, 2**32 - 1))), size)


def random_parents(random: np.random.Generator, size: int) -> list[int]:
    """Parents of ``size`` tokens, deep or broad as it comes."""
    reach = int(random.integers(1, size + 1))
    return [int(random.integers(max(-1, token - reach), token)) for token in range(size)]


def path_to(parents: Sequence[int], token: int) -> list[int]:
    """The tokens that lead to ``token``, and it."""
    path = [token]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]
