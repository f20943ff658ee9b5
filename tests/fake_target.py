"""A target engine whose logits are a pure function of the tokens before: exact, and strict about its use."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from acespec.cloud_verifier.engine import TargetInfo

Table = Callable[[tuple[int, ...]], NDArray[np.float32]]
"""Logits ``[vocab]`` for what follows a path of tokens."""


def target_info(vocab_size: int, max_context: int = 4096) -> TargetInfo:
    """What the fake says about itself."""
    return TargetInfo(
        name="table",
        fingerprint="f" * 64,
        vocabulary_hash="a" * 64,
        vocab_size=vocab_size,
        max_context=max_context,
    )


class TableTargetEngine:
    """``TargetEngine`` over a table.

    Fails where a real engine would go wrong silently: a step of a sequence that is not open, tokens outside
    the vocabulary or past the context, a rollback forward, two steps at a time.
    """

    def __init__(self, table: Table, vocab_size: int, max_context: int = 4096) -> None:
        self._info = target_info(vocab_size, max_context)
        self._table = table
        self._busy = threading.Lock()
        self.sequences: dict[int, list[int]] = {}
        """The tokens fed to each open sequence."""
        self.num_opened = 0
        self.num_forwards = 0
        """Calls of ``verify``."""
        self.longest = 0
        """Most tokens any sequence ever held."""

    @property
    def info(self) -> TargetInfo:
        return self._info

    def open(self) -> int:
        self.num_opened += 1
        self.sequences[self.num_opened] = []
        return self.num_opened

    def close(self, sequence: int) -> None:
        del self.sequences[sequence]

    def prefill(self, sequence: int, tokens: NDArray[np.int64]) -> None:
        self._feed(sequence, tokens)

    def verify(self, sequence: int, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        assert len(tokens) >= 1
        with self._alone():
            self.num_forwards += 1
            start = len(self.sequences[sequence])
            self._feed(sequence, tokens)
            fed = self.sequences[sequence]
            return np.stack([self._table(tuple(fed[: start + i + 1])) for i in range(len(tokens))])

    def rollback(self, sequence: int, length: int) -> None:
        assert 0 <= length <= len(self.sequences[sequence])
        del self.sequences[sequence][length:]

    def _feed(self, sequence: int, tokens: NDArray[np.int64]) -> None:
        assert all(0 <= token < self._info.vocab_size for token in tokens.tolist())
        self.sequences[sequence] += tokens.tolist()
        self.longest = max(self.longest, len(self.sequences[sequence]))
        assert self.longest <= self._info.max_context, "fed past the context"

    def _alone(self) -> threading.Lock:
        assert not self._busy.locked(), "two steps at a time"
        return self._busy
