"""One target over several processes: rank 0 leads, and the others repeat every call on their own shard.

Each rank holds a slice of every layer, and the slices talk within a forward, so all ranks must make the same
steps in the same order. Rank 0 alone is asked. Its ``open``, ``close`` and ``keep`` are done there at once,
noted, and told with the next step or sign of life, in the order they were made: none of them needs another
rank. Room is given by ``open`` and freed by ``close`` alone, so pools of one size that see both
in the same order have the same room, and what rank 0's pool refuses is never asked of another.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol

from acespec.cloud_verifier.engine import Feed, TargetEngine, TargetInfo, TargetLogits
from acespec.cloud_verifier.tensor_parallel_messages import (
    Close,
    Command,
    Keep,
    Open,
    Step,
    Stop,
    Words,
    decode,
    encode,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Agreement:
    """How a step went, over all ranks."""

    failed_rank: int | None
    """The highest rank it failed on; None: it went well everywhere."""


class Ranks(Protocol):
    """The processes that run one target, seen from one of them.

    None of these calls returns once another rank is lost: the process ends, for the model cannot go on.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def send(self, words: Words) -> None:
        """Tell all other ranks; rank 0 only."""

    def receive(self) -> Words:
        """What rank 0 sends next; every other rank."""

    def step_limit(self) -> AbstractContextManager[None]:
        """Within it a forward runs, which may talk to other ranks and must not take for ever."""

    def agree(self, failed: bool) -> Agreement:
        """Wait until all ranks have ended the step, each telling whether it failed."""

    def answer(self) -> None:
        """Wait until all ranks have done what a message without a step says."""


class StepFailedElsewhereError(RuntimeError):
    """A step went well here and failed on another rank, whose log has the reason."""


class Shard:
    """One rank's part of the target, with steps that all ranks make or none does."""

    def __init__(self, inner: TargetEngine, ranks: Ranks) -> None:
        self._inner = inner
        self._ranks = ranks
        self._lengths: dict[int, int] = {}

    def holds(self, sequence: int) -> bool:
        return sequence in self._lengths

    def open(self, max_tokens: int) -> int:
        sequence = self._inner.open(max_tokens)
        self._lengths[sequence] = 0
        return sequence

    def keep(self, sequence: int, length: int, rows: Sequence[int]) -> None:
        self._inner.keep(sequence, length, rows)
        self._lengths[sequence] = length + len(rows)

    def close(self, sequence: int) -> None:
        self._inner.close(sequence)
        del self._lengths[sequence]

    def step(self, feeds: Sequence[Feed]) -> Sequence[TargetLogits]:
        """``TargetEngine.step``; raises, and leaves every sequence as it was, if it failed on any rank.

        The ranks tell one another after each step, which costs one all-reduce of eight bytes. An error before
        the ranks' first exchange within the forward (a bad feed, say) or after the last one is thus survived.
        One in between leaves the others waiting inside the model, where nothing can reach them:
        ``Ranks.agree`` gives up on them soon, and the group ends.
        """
        error: Exception | None = None
        logits: Sequence[TargetLogits] = []
        try:
            with self._ranks.step_limit():
                logits = self._inner.step(feeds)
        except Exception as caught:  # whatever it was, the other ranks must hear of it
            error = caught
            if self._ranks.rank:
                logger.exception("rank %d: a step failed", self._ranks.rank)
        agreement = self._ranks.agree(failed=error is not None)
        if agreement.failed_rank is None:
            for feed in feeds:
                self._lengths[feed.sequence] += len(feed.tokens)
            return logits
        if error is None:
            for feed in feeds:
                self._inner.keep(feed.sequence, self._lengths[feed.sequence])
            raise StepFailedElsewhereError(f"a step failed on rank {agreement.failed_rank}; its log says why")
        raise error


class LeaderEngine:
    """Rank 0's target engine: has every other rank repeat what is asked of it. A context manager.

    ``step`` and ``keep`` belong to one thread, ``open`` and ``close`` to any. While it is
    entered, a thread gives signs of life, so that both sides notice a lost peer when there is nothing to do.
    Leaving it ends the other ranks' ``follow``.
    """

    def __init__(self, inner: TargetEngine, ranks: Ranks, *, heartbeat_s: float) -> None:
        """``heartbeat_s``: how often to give a sign of life, beside the steps."""
        self._shard = Shard(inner, ranks)
        self._ranks = ranks
        # A token's keys and values are spread over the ranks.
        self._info = replace(inner.info, kv_bytes_per_token=inner.info.kv_bytes_per_token * ranks.size)
        self._heartbeat_s = heartbeat_s
        self._untold: list[Command] = []
        self._books = threading.Lock()
        """Held while the shard's books change and the change is noted: both in one order."""
        self._line = threading.Lock()
        """Held while ranks talk, a forward included: what they say must never interleave."""
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="tensor-parallel-heartbeat", daemon=True)

    @property
    def info(self) -> TargetInfo:
        return self._info

    def open(self, max_tokens: int) -> int:
        with self._books:
            sequence = self._shard.open(max_tokens)
            self._untold.append(Open(sequence, max_tokens))
            return sequence

    def close(self, sequence: int) -> None:
        with self._books:
            self._shard.close(sequence)
            self._untold.append(Close(sequence))

    def keep(self, sequence: int, length: int, rows: Sequence[int] = ()) -> None:
        with self._books:
            self._shard.keep(sequence, length, rows)
            self._untold.append(Keep(sequence, length, tuple(rows)))

    def step(self, feeds: Sequence[Feed]) -> Sequence[TargetLogits]:
        assert all(self._shard.holds(feed.sequence) for feed in feeds), "a sequence that is fed is open"
        with self._line:
            assert not self._ended.is_set(), "the other ranks have been let go"
            self._tell(Step(tuple(feeds)))
            return self._shard.step(feeds)

    def __enter__(self) -> LeaderEngine:
        self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._line:
            self._ended.set()
            self._tell(Stop())
        self._heart.join()

    def _tell(self, *commands: Command) -> None:
        with self._books:
            untold, self._untold = self._untold, []
        self._ranks.send(encode([*untold, *commands]))

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat_s):
            with self._line:
                if not self._ended.is_set():
                    self._tell()
                    self._ranks.answer()


def follow(inner: TargetEngine, ranks: Ranks) -> None:
    """Do on ``inner`` what rank 0's ``LeaderEngine`` does, until it ends."""
    shard = Shard(inner, ranks)
    handles: dict[int, int] = {}  # rank 0's to this rank's
    while True:
        commands = decode(ranks.receive())
        for command in commands:
            match command:
                case Open(sequence, max_tokens):
                    handles[sequence] = shard.open(max_tokens)
                case Keep(sequence, length, rows):
                    shard.keep(handles[sequence], length, rows)
                case Close(sequence):
                    shard.close(handles.pop(sequence))
                case Step(feeds):
                    _follow_step(shard, [replace(feed, sequence=handles[feed.sequence]) for feed in feeds])
                case Stop():
                    return
        if not (commands and isinstance(commands[-1], Step)):
            ranks.answer()


def _follow_step(shard: Shard, feeds: Sequence[Feed]) -> None:
    try:
        shard.step(feeds)
    except Exception:  # rank 0 raises for all
        logger.debug("a step was taken back")
