"""What the verifier needs of a target model, whatever runs underneath."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from acespec.errors import AcespecError

UNBOUNDED_TOKENS = 2**62
"""Room for tokens of an engine that has no bound."""


@dataclass(frozen=True)
class TargetInfo:
    """What a target model says about itself; compared with every ``Open``."""

    name: str
    fingerprint: str
    vocabulary_hash: str
    vocab_size: int
    """Tokenizer's size; logits are cut to it."""
    max_context: int
    kv_bytes_per_token: int = 0
    """Bytes of keys and values one token takes, over all layers."""
    kv_tokens: int = UNBOUNDED_TOKENS
    """Tokens whose keys and values the engine has room for, over all sequences."""


@dataclass(frozen=True)
class Feed:
    """One sequence's part of a step."""

    sequence: int
    tokens: NDArray[np.int64]  # [n], n >= 1
    """Tokens that follow what the sequence holds."""
    num_logits: int
    """For how many of the last tokens logits are wanted, 0..n: none for a prefill, all to check a chain."""
    parents: NDArray[np.int64] | None = None  # [n]
    """Index in the feed of the token each one follows, an earlier one; -1: what the sequence holds.

    None: each follows the one before. A token attends to what the sequence holds and to its ancestors in the
    feed, and its position is the sequence's length plus the number of its ancestors.
    """


class KvPoolFullError(AcespecError):
    """There is no room for the keys and values of another sequence of that length."""


class TargetLogits(Protocol):
    """Logits of some of a feed's tokens: an array ``[n, vocab_size]``, or whatever reads like one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> NDArray[np.float32]: ...


class TargetEngine(Protocol):
    """A target model holding the keys and values of many sequences.

    A sequence holds the tokens fed to it so far; ``keep`` cuts it back, and chooses a branch of what was fed
    as a tree. ``step`` and ``keep`` are synchronous and made one at a time, from one thread. ``open`` and
    ``close`` only keep books: they may be called from another thread while a step of other sequences runs.
    """

    @property
    def info(self) -> TargetInfo: ...

    def open(self, max_tokens: int) -> int:
        """Begin an empty sequence that will hold at most ``max_tokens`` tokens, and return its handle.

        All tokens of a tree count, if only until ``keep``. No token's position may reach the context's end.

        Room for all of them is set aside, so that a step never fails for want of it. Raises
        ``KvPoolFullError`` if there is none; handles are never used again.
        """

    def step(self, feeds: Sequence[Feed]) -> Sequence[TargetLogits]:
        """Feed several sequences, each at most once, in one forward of the model.

        Returns for each feed logits ``[num_logits, vocab_size]``: a token's row predicts what follows it.
        It depends on its own sequence alone, whatever else is in the step, up to rounding. If ``step``
        raises, every sequence holds what it held before. A sequence that was fed branches is fed again only
        after ``keep`` has made a text of it.
        """

    def keep(self, sequence: int, length: int, rows: Sequence[int] = ()) -> None:
        """Keep the first ``length`` tokens of the sequence, and behind them those at ``rows``; drop the rest.

        0 <= ``length`` <= what it holds. ``rows`` are ascending indexes of held tokens, none below
        ``length``; what is kept must be a text, each token following the one before it. Nothing is computed
        again.
        """

    def close(self, sequence: int) -> None:
        """Free the sequence and the room set aside for it."""
