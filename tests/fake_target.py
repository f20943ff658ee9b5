"""A target engine whose logits are a pure function of the tokens before: exact, and strict about its use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from acespec.cloud_verifier.engine import Feed, KvPoolFullError, TargetInfo

KV_BYTES_PER_TOKEN = 1024
Table = Callable[[tuple[int, ...]], NDArray[np.float32]]
"""Logits ``[vocab]`` for what follows a path of tokens."""


def target_info(vocab_size: int, max_context: int = 4096, kv_tokens: int = 2**62) -> TargetInfo:
    """What the fake says about itself."""
    return TargetInfo(
        name="table",
        fingerprint="f" * 64,
        vocabulary_hash="a" * 64,
        vocab_size=vocab_size,
        max_context=max_context,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        kv_tokens=kv_tokens,
    )


class TableTargetEngine:
    """``TargetEngine`` over a table.

    Fails where a real engine would go wrong silently: a step of a sequence that is not open, tokens outside
    the vocabulary, past the context or past what was set aside, more kept than is held, what is kept no text,
    branches fed again, two steps at a time, a sequence twice in a step.
    """

    def __init__(
        self, table: Table, vocab_size: int, max_context: int = 4096, kv_tokens: int = 2**62
    ) -> None:
        self._info = target_info(vocab_size, max_context, kv_tokens)
        self._table = table
        self._busy = threading.Lock()
        self._room: dict[int, int] = {}
        self.sequences: dict[int, list[int]] = {}
        """The tokens fed to each open sequence."""
        self._paths: dict[int, list[tuple[int, ...]]] = {}
        """Of a sequence that was fed branches: the tokens up to each of those of the feed."""
        self.num_opened = 0
        self.num_forwards = 0
        """Steps that were asked for logits."""
        self.batches: list[list[int]] = []
        """The tokens of each feed, step by step."""
        self.longest = 0
        """Most tokens any sequence ever held."""

    @property
    def info(self) -> TargetInfo:
        return self._info

    @property
    def kv_tokens_used(self) -> int:
        """Tokens that room is set aside for."""
        return sum(self._room.values())

    def open(self, max_tokens: int) -> int:
        if self.kv_tokens_used + max_tokens > self._info.kv_tokens:
            raise KvPoolFullError("no room")
        self.num_opened += 1
        self.sequences[self.num_opened] = []
        self._room[self.num_opened] = max_tokens
        return self.num_opened

    def close(self, sequence: int) -> None:
        del self.sequences[sequence], self._room[sequence]
        self._paths.pop(sequence, None)

    def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
        assert len({feed.sequence for feed in feeds}) == len(feeds) >= 1
        assert self._busy.acquire(blocking=False), "two steps at a time"
        try:
            self.num_forwards += any(feed.num_logits for feed in feeds)
            self.batches.append([len(feed.tokens) for feed in feeds])
            return [self._feed(feed) for feed in feeds]
        finally:
            self._busy.release()

    def keep(self, sequence: int, length: int, rows: Sequence[int] = ()) -> None:
        fed = self.sequences[sequence]
        assert 0 <= length <= len(fed)
        assert all(length <= row < len(fed) for row in rows)
        assert list(rows) == sorted(set(rows))
        kept = [*fed[:length], *(fed[row] for row in rows)]
        paths = self._paths.pop(sequence, [])
        texts = [*paths, tuple(fed[: len(fed) - len(paths)])]
        assert any(text[: len(kept)] == tuple(kept) for text in texts), "what is kept is a text"
        fed[:] = kept

    def _feed(self, feed: Feed) -> NDArray[np.float32]:
        assert 0 <= feed.num_logits <= len(feed.tokens) >= 1
        assert all(0 <= token < self._info.vocab_size for token in feed.tokens.tolist())
        assert feed.sequence not in self._paths, "a branch is chosen before more is fed"
        fed = self.sequences[feed.sequence]
        paths: Sequence[tuple[int, ...]]
        if feed.parents is None:
            fed += feed.tokens.tolist()
            paths = [tuple(fed[: len(fed) - i]) for i in reversed(range(max(feed.num_logits, 1)))]
        else:
            paths = self._paths[feed.sequence] = _paths(
                tuple(fed), feed.tokens.tolist(), feed.parents.tolist()
            )
            fed += feed.tokens.tolist()
        self.longest = max(self.longest, len(fed))
        assert max(map(len, paths)) <= self._info.max_context, "fed past the context"
        assert len(fed) <= self._room[feed.sequence], "fed past what was set aside"
        rows = [self._table(path) for path in paths[len(paths) - feed.num_logits :]]
        return np.stack(rows) if rows else np.empty((0, self._info.vocab_size), np.float32)


def _paths(held: tuple[int, ...], tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """Of each of a tree's tokens, all up to it."""
    paths: list[tuple[int, ...]] = []
    for index, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
        assert -1 <= parent < index, "a token follows an earlier one"
        paths.append((*(paths[parent] if parent >= 0 else held), token))
    return paths
