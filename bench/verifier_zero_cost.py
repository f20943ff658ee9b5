"""A target that costs nothing, to measure what the verifier costs around it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from acespec.bench.verifier_script import ROUND_TOKENS, Script, write_script
from acespec.cloud_verifier.engine import Feed, TargetInfo
from acespec.wire import MAX_CHAIN

VOCAB_SIZE = 32_000
VOCABULARY_HASH = "0" * 64
MAX_CONTEXT = 2**16
ROWS = MAX_CHAIN + 1


def zero_cost_answer(length: int) -> list[int]:
    """The tokens the target picks after any committed text, ``length`` of them, at most 64."""
    assert length <= ROWS
    return [(13 + 997 * row) % VOCAB_SIZE for row in range(length)]


def zero_cost_script(prompt_length: int, num_rounds: int) -> Script:
    """A session with the target that costs nothing."""
    prompt = range(1000, 1000 + prompt_length)
    return write_script(VOCABULARY_HASH, VOCAB_SIZE, prompt, zero_cost_answer(ROUND_TOKENS) * num_rounds)


class ZeroCostEngine:
    """A ``TargetEngine`` that answers every check with the same rows, prepared beforehand.

    Row i of a check picks the i-th token of ``zero_cost_answer``, whatever was fed. No keys and values are
    kept and no logits written; picking tokens from the rows is left to the verifier, at its full width.
    """

    def __init__(self) -> None:
        self._handles = itertools.count()
        noise = np.random.default_rng(0).standard_normal((ROWS, VOCAB_SIZE))
        self._rows: NDArray[np.float32] = noise.astype(np.float32)  # [64, V]
        self._rows[np.arange(ROWS), zero_cost_answer(ROWS)] = 10.0  # far above normal noise

    @property
    def info(self) -> TargetInfo:
        return TargetInfo(
            name="zero-cost",
            fingerprint="0" * 64,
            vocabulary_hash=VOCABULARY_HASH,
            vocab_size=VOCAB_SIZE,
            max_context=MAX_CONTEXT,
        )

    def open(self, max_tokens: int) -> int:  # noqa: ARG002 - no room is needed
        return next(self._handles)

    def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
        return [self._rows[: feed.num_logits] for feed in feeds]

    def keep(self, sequence: int, length: int, rows: Sequence[int] = ()) -> None:
        """Nothing is held."""

    def close(self, sequence: int) -> None:
        """Nothing is held."""
