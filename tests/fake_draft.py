"""A draft engine whose logits are a pure function of the tokens each row may attend to.

Its arithmetic does not depend on a step's width, so trees and sequences can be compared exactly; and it
checks what a real model could not tell: that every mask shows each token one gapless path of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from acespec.speculation import DraftLogits

Table = Callable[[tuple[int, ...]], NDArray[np.float32]]
"""Logits ``[vocab]`` for what follows a path of tokens."""


def hashed_table(vocab_size: int, salt: int, sharpness: float = 2.0) -> Table:
    """A table that depends on the whole path: normal logits of standard deviation ``sharpness``."""

    def logits(path: tuple[int, ...]) -> NDArray[np.float32]:
        generator = np.random.default_rng([salt, *path])
        return (sharpness * generator.standard_normal(vocab_size)).astype(np.float32)

    return logits


def mixed(first: Table, second: Table, weight: float) -> Table:
    """Logits between two tables: how close a draft is to its target."""
    return lambda path: ((1.0 - weight) * first(path) + weight * second(path)).astype(np.float32)


class TableDraftEngine:
    """``DraftEngine`` over a table."""

    def __init__(
        self,
        table: Table,
        vocab_size: int,
        buckets: Sequence[int] = (1, 8, 16, 32),
        max_context: int = 512,
        tree_rows: int = 512,
        prefill_width: int | None = None,
        top_k: int | None = None,
    ) -> None:
        """``top_k``: return only so many of a row's logits, the largest first, and its log-sum-exp."""
        self.buckets = tuple(buckets)
        self.prefill_width = prefill_width or self.buckets[-1]
        self.max_context = max_context
        self.max_rows = max_context + tree_rows
        self.vocab_size = vocab_size
        self.rows: list[tuple[int, int]] = []
        """(position, token) of every row in use."""
        self.widths: list[int] = []
        """Width of every step so far."""
        self._table = table
        self._top_k = top_k

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def forward(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        mask: NDArray[np.bool_],
        last_only: bool = False,
    ) -> DraftLogits:
        assert 1 <= len(tokens) <= (self.prefill_width if last_only else self.buckets[-1])
        assert mask.shape == (len(tokens), len(self.rows) + len(tokens))
        assert len(self.rows) + len(tokens) <= self.max_rows
        assert positions.max() < self.max_context
        self.rows += zip(positions.tolist(), tokens.tolist(), strict=True)
        self.widths.append(len(tokens))
        wanted = mask[-1:] if last_only else mask
        logits = np.stack([self._table(self._path(row)) for row in wanted])
        if self._top_k is None:
            return DraftLogits(logits)
        ids = np.argsort(-logits, axis=1, kind="stable")[:, : self._top_k]
        log_sum_exp = np.log(np.exp(logits.astype(np.float64)).sum(axis=1)).astype(np.float32)
        return DraftLogits(np.take_along_axis(logits, ids, axis=1), ids, log_sum_exp)

    def _path(self, attends: NDArray[np.bool_]) -> tuple[int, ...]:
        seen = sorted(self.rows[row] for row in np.flatnonzero(attends))
        assert [position for position, _ in seen] == list(range(len(seen))), "one token at each position"
        return tuple(token for _, token in seen)

    def compact(self, prefix: int, rows: Sequence[int]) -> None:
        assert all(a < b for a, b in pairwise(rows))
        assert all(prefix <= row < len(self.rows) for row in rows)
        self.rows = self.rows[:prefix] + [self.rows[row] for row in rows]

    def truncate(self, num_rows: int) -> None:
        assert num_rows <= len(self.rows)
        del self.rows[num_rows:]
