"""``Ranks`` as threads of one process, and an engine whose steps fail where they are told to."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import NDArray

from acespec.cloud_verifier.engine import Feed, KvPoolFullError, TargetInfo
from acespec.cloud_verifier.tensor_parallel_engine import Agreement
from acespec.cloud_verifier.tensor_parallel_messages import Words

WAIT_S = 60.0
"""A rank that waits longer for another has found a bug."""


class ThreadGroup:
    """What ``size`` ranks share."""

    def __init__(self, size: int) -> None:
        self.lines: list[queue.Queue[Words]] = [queue.Queue() for _ in range(size)]
        self.failed = [False] * size
        self.barrier = threading.Barrier(size, timeout=WAIT_S)


class ThreadRanks:
    def __init__(self, rank: int, group: ThreadGroup) -> None:
        self.rank = rank
        self.size = len(group.lines)
        self._group = group

    def send(self, words: Words) -> None:
        assert self.rank == 0
        for line in self._group.lines[1:]:
            line.put(words.copy())

    def receive(self) -> Words:
        return self._group.lines[self.rank].get(timeout=WAIT_S)

    def step_limit(self) -> AbstractContextManager[None]:
        return nullcontext()

    def agree(self, failed: bool) -> Agreement:
        self._group.failed[self.rank] = failed
        self._group.barrier.wait()
        ranks = [rank for rank, failed in enumerate(self._group.failed) if failed]
        self._group.barrier.wait()  # nobody overwrites before all have read
        return Agreement(failed_rank=max(ranks, default=None))

    def answer(self) -> None:
        self._group.barrier.wait()


class BookEngine:
    """A target that only keeps its books: which tokens each sequence holds, in which slot of a pool.

    A row of logits tells the length it stands at. Handles begin at ``first_handle``, and a refused ``open``
    uses one up: no rank's are another's. A step raises before or after it feeds as ``failing`` says, and
    leaves the sequences as they were.
    """

    def __init__(self, slots: int, first_handle: int = 0) -> None:
        self.info = TargetInfo("books", "", "", vocab_size=2, max_context=64, kv_bytes_per_token=8)
        self.failing = False
        self.sequences: dict[int, list[int]] = {}
        self.slots: dict[int, int] = {}
        self.history: list[str] = []
        self._free = list(range(slots))
        self._next = first_handle

    def open(self, max_tokens: int) -> int:
        self._next += 1
        if not self._free:
            raise KvPoolFullError("no room")
        self.sequences[self._next] = []
        self.slots[self._next] = self._free.pop(0)
        self.history.append(f"open {max_tokens} in slot {self.slots[self._next]}")
        return self._next

    def close(self, sequence: int) -> None:
        slot = self.slots.pop(sequence)
        self._free.append(slot)
        self.history.append(f"close slot {slot} with {self.sequences.pop(sequence)}")

    def keep(self, sequence: int, length: int, rows: Sequence[int] = ()) -> None:
        held = self.sequences[sequence]
        assert 0 <= length <= len(held)
        held[length:] = [held[row] for row in rows]

    def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
        if self.failing:
            raise ArithmeticError("told to fail")
        logits = []
        for feed in feeds:
            held = self.sequences[feed.sequence]
            held += feed.tokens.tolist()
            lengths = range(len(held) - feed.num_logits + 1, len(held) + 1)
            logits.append(np.array([[n, n] for n in lengths], np.float32).reshape(-1, 2))
        return logits

    def by_slot(self) -> dict[int, list[int]]:
        return {self.slots[sequence]: tokens for sequence, tokens in self.sequences.items()}
