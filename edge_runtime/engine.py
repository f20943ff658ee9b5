"""What the drafter needs of an engine, whatever runs underneath (ONNX Runtime, TensorRT, a test's table)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from acespec.speculation import LogitsRows


class DraftEngine(Protocol):
    """A draft model with one key/value buffer of rows.

    A row holds the keys and values of one token. Committed rows are contiguous from 0; chain rows and tree
    rows follow in the order they were computed. The engine neither knows nor cares which rows are which: the
    mask says what each token may attend to.
    """

    @property
    def buckets(self) -> tuple[int, ...]:
        """Widths a step can run at, ascending; a step of n tokens runs on the smallest bucket >= n."""

    @property
    def prefill_width(self) -> int:
        """Most tokens a step with ``last_only`` may have; at least ``buckets[-1]``."""

    @property
    def max_context(self) -> int:
        """Positions the model knows: every position fed must be below it."""

    @property
    def max_rows(self) -> int:
        """Rows the buffer holds; at least ``max_context``, the rest is room for the tree."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits (the tokenizer's size)."""

    @property
    def num_rows(self) -> int:
        """Rows in use."""

    def forward(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        mask: NDArray[np.bool_],
        last_only: bool = False,
    ) -> LogitsRows:
        """Run one step and append its rows.

        ``tokens`` and ``positions`` are ``[n]`` with ``1 <= n <= buckets[-1]``; ``mask`` is
        ``[n, num_rows + n]``, True where the token may attend (its own row included). Returns the logits of
        the n tokens, valid until the next call; with ``last_only``, of the last alone, and n may be up to
        ``prefill_width``. The new rows are the last n.
        """

    def compact(self, prefix: int, rows: Sequence[int]) -> None:
        """Keep the first ``prefix`` rows and then ``rows``, in this order (ascending, all >= prefix)."""

    def truncate(self, num_rows: int) -> None:
        """Forget every row from ``num_rows`` on. O(1)."""


def check_step(
    engine: DraftEngine, tokens: NDArray[np.int64], positions: NDArray[np.int64], mask: NDArray[np.bool_]
) -> None:
    """Assert that the arguments of `DraftEngine.forward` fit each other and the rows left."""
    count, past = len(tokens), engine.num_rows
    assert 1 <= count <= engine.max_rows - past, (count, past)
    assert positions.shape == (count,), positions.shape
    assert mask.shape == (count, past + count), mask.shape
    # Read as unsigned, negative ones are the largest of all: one pass instead of two.
    assert positions.view(np.uint64).max() < engine.max_context, positions
