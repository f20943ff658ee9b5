"""What a draft engine returns of a step: whole rows of logits, or each row's largest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LogitsRow:
    """Logits of one row."""

    values: NDArray[np.float32]
    """[n]; the whole vocabulary when ``ids`` is None."""
    ids: NDArray[np.int64] | None = None
    """Tokens the values belong to, ascending, [n]."""
    log_sum_exp: float | None = None
    """Logarithm of the sum of the exponentials of the whole row, where the engine gives it."""


class LogitsRows(Protocol):
    """Logits of a step's rows, valid until the engine's next step."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> LogitsRow: ...


@dataclass(frozen=True)
class DraftLogits:
    """``LogitsRows`` in as many numbers for each row.

    Whole rows, or each row's largest.
    """

    values: NDArray[np.float32]
    """[rows, vocab_size], or the largest K of each row, [rows, K]."""
    ids: NDArray[np.int64] | None = None
    """Tokens the values belong to, in any order, [rows, K]; None when ``values`` is the whole vocabulary."""
    log_sum_exp: NDArray[np.float32] | None = None
    """[rows]; given with ``ids``."""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> LogitsRow:
        if self.ids is None:
            return LogitsRow(self.values[index])
        order = np.argsort(self.ids[index])
        log_sum_exp = None if self.log_sum_exp is None else float(self.log_sum_exp[index])
        return LogitsRow(self.values[index][order], self.ids[index][order], log_sum_exp)
