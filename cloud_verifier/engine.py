"""What the verifier needs of a target model, whatever runs underneath."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TargetInfo:
    """What a target model says about itself; compared with every ``Open``."""

    name: str
    fingerprint: str
    vocabulary_hash: str
    vocab_size: int
    """Tokenizer's size; logits are cut to it."""
    max_context: int


class TargetEngine(Protocol):
    """A target model holding one key/value cache per sequence.

    A sequence's cache holds the tokens fed to it so far; ``rollback`` shortens it. Calls are synchronous and
    made one at a time, but for ``open`` and ``close``: these only keep books, and may be called from another
    thread while a step of another sequence runs.
    """

    @property
    def info(self) -> TargetInfo: ...

    def open(self) -> int:
        """Begin an empty sequence and return its handle."""

    def prefill(self, sequence: int, tokens: NDArray[np.int64]) -> None:
        """Feed ``tokens`` ``[n]`` (n may be 0) without asking for logits."""

    def verify(self, sequence: int, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Feed ``tokens`` ``[n]``, n >= 1; returns logits ``[n, vocab_size]``.

        Row i predicts what follows token i. Decoding one token is ``verify`` of one token.
        """

    def rollback(self, sequence: int, length: int) -> None:
        """Keep the first ``length`` tokens of the sequence."""

    def close(self, sequence: int) -> None:
        """Free the sequence."""
