"""Which waiting work goes into the target's next forward, and when it is due: decisions alone.

Work is taken by deadline, ties first come. The rules that keep anything from waiting for ever:

- The most urgent check is in every batch. If urgent prefills leave no room for it, which they can only where
  it needs more than half of the budget, it is in the next.
- Prefills together take at most half of the budget while checks wait, the rest only if checks leave it. As
  soon as a prefill's deadline comes before that of every check that waits, it has that half in every batch,
  in every second one where the line above gives a check its turn.
- Work that does not fit is passed over for what is behind it, which thereby never takes the place of what is
  ahead.
- Spare work comes last, and makes no batch due unless nobody else can join it; after its time it is work like
  any other, of that age.

So a check waits at most as many batches as checks were ahead of it when it came, at most twice that and one
where some check needs more than half of the budget. New work has later deadlines, so what is ahead of a
prefill once its deadline has passed only shrinks.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

MOST_PASSED_OVER = 16
"""Checks without room that are looked past while a batch is filled: bounds the search."""


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens of one sequence that wait to go through the target. Times are in seconds, of any clock."""

    sequence: int
    num_tokens: int
    arrival: float
    deadline: float
    """How urgent the work is. Nothing is dropped when it passes."""
    divisible: bool = False
    """Whether it may be spread over several batches, as a prefill; a check goes as a whole."""
    spare_until: float | None = None
    """Until then it only fills what room others leave, or a target that nobody else can need."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one sequence has in a batch: all of its work, or the next tokens of a prefill."""

    sequence: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The parts of one forward, each of another sequence."""

    parts: tuple[Part, ...]
    num_tokens: int


class Scheduler:
    """Waiting work, at most one piece a sequence, and the batches it goes in."""

    def __init__(self, token_budget: int, wait_s: float) -> None:
        """A batch has at most ``token_budget`` tokens, and work waits ``wait_s`` for others to join it."""
        assert token_budget >= 1
        self._budget = token_budget
        self._wait_s = wait_s
        self._waiting: dict[int, _Waiting] = {}  # by sequence, oldest first
        self._checks = _Line(self._waiting)
        self._prefills = _Line(self._waiting)
        self._spare: dict[int, _Spare] = {}
        self._num_tokens = 0
        self._order = itertools.count()
        self._latest = -math.inf
        self._check_is_owed = False

    def __len__(self) -> int:
        """How many sequences wait."""
        return len(self._waiting) + len(self._spare)

    def add(self, work: Work) -> None:
        """Let ``work`` wait. It comes in order of arrival, and no other work of its sequence waits."""
        assert work.sequence not in self._waiting
        assert work.sequence not in self._spare
        assert work.num_tokens >= 1
        assert work.divisible or work.num_tokens <= self._budget
        assert work.arrival >= self._latest
        self._latest = work.arrival
        if work.spare_until is not None and work.spare_until > work.arrival:
            assert not work.divisible
            self._spare[work.sequence] = _Spare(work.spare_until, work.num_tokens)
            return
        entry = _Waiting(work.deadline, next(self._order), work.arrival, work.sequence, work.num_tokens)
        self._waiting[work.sequence] = entry
        self._num_tokens += work.num_tokens
        (self._prefills if work.divisible else self._checks).add(entry)

    def press(self, sequence: int, now: float) -> None:
        """From ``now`` on the work of ``sequence``, if it waits, is due like any other."""
        spare = self._spare.pop(sequence, None)
        if spare is not None:
            self.add(Work(sequence, spare.num_tokens, now, now))

    def cancel(self, sequence: int) -> bool:
        """Forget what waits of ``sequence``; whether anything did."""
        entry = self._waiting.pop(sequence, None)
        if entry is None:
            return self._spare.pop(sequence, None) is not None
        self._num_tokens -= entry.num_tokens
        return True

    def next_batch(self, now: float, num_live: int) -> Batch | None:
        """Take out the next batch, or None if none is due; ``wake_at`` says when one will be.

        It is due if the budget is full, if the oldest work has waited long enough, or if nobody else can
        join: ``num_live`` counts the sequences that may bring work, with those that wait.
        """
        for sequence in [sequence for sequence, spare in self._spare.items() if spare.until <= now]:
            self.press(sequence, now)
        if not len(self):
            return None
        if now < self._due_at() and self._num_tokens < self._budget and len(self) < num_live:
            return None
        return self._fill()

    def wake_at(self) -> float | None:
        """When to look for a batch even if nothing else comes; None if nothing waits."""
        pressed = min((spare.until for spare in self._spare.values()), default=math.inf)
        wake_at = min(self._due_at(), pressed)
        return None if wake_at == math.inf else wake_at

    def _due_at(self) -> float:
        """When the oldest work has waited long enough."""
        oldest = next(iter(self._waiting.values()), None)
        return math.inf if oldest is None else oldest.arrival + self._wait_s

    def _fill(self) -> Batch:
        urgent, reserved = self._urgent_prefills()
        parts = self._take_checks(self._budget - reserved)
        room = self._budget - sum(part.num_tokens for part in parts)
        prefills = itertools.chain(urgent, iter(self._prefills.pop, None))
        while room and (prefill := next(prefills, None)):
            parts.append(self._take(prefill, min(room, prefill.num_tokens)))
            room -= parts[-1].num_tokens
        for sequence, spare in list(self._spare.items()):
            if spare.num_tokens <= room:
                del self._spare[sequence]
                parts.append(Part(sequence, spare.num_tokens))
                room -= spare.num_tokens
        return Batch(tuple(parts), self._budget - room)

    def _urgent_prefills(self) -> tuple[list[_Waiting], int]:
        """Prefills that come before every check, and the tokens set aside for them: one each at least."""
        urgent: list[_Waiting] = []
        num_tokens = 0
        share = max(1, self._budget // 2)
        check = self._checks.first()
        if check is None or self._check_is_owed:
            return urgent, num_tokens
        while num_tokens < share and (prefill := self._prefills.first()) and prefill < check:
            self._prefills.pop()
            urgent.append(prefill)
            num_tokens += prefill.num_tokens
        return urgent, min(num_tokens, share)

    def _take_checks(self, room: int) -> list[Part]:
        """The most urgent checks that fit into ``room`` tokens."""
        parts: list[Part] = []
        passed_over: list[_Waiting] = []
        first = self._checks.first()
        while room and len(passed_over) < MOST_PASSED_OVER and (check := self._checks.pop()):
            if check.num_tokens <= room:
                parts.append(self._take(check, check.num_tokens))
                room -= check.num_tokens
            else:
                passed_over.append(check)
        self._check_is_owed = first is not None and first.sequence in self._waiting
        for check in passed_over:
            self._checks.add(check)
        return parts

    def _take(self, entry: _Waiting, num_tokens: int) -> Part:
        """Take ``num_tokens`` of ``entry``, which is in no line; the rest waits on, as old as before."""
        left = entry.num_tokens - num_tokens
        if left:
            rest = entry._replace(num_tokens=left)
            self._waiting[entry.sequence] = rest
            self._prefills.add(rest)
        else:
            del self._waiting[entry.sequence]
        self._num_tokens -= num_tokens
        return Part(entry.sequence, num_tokens)


class _Waiting(NamedTuple):
    """Work that waits, in the order it is taken in."""

    deadline: float
    order: int
    arrival: float
    sequence: int
    num_tokens: int


class _Spare(NamedTuple):
    """A check that waits for room that others leave."""

    until: float
    num_tokens: int


class _Line:
    """Work of one kind, most urgent first. Work that is cancelled stays until it comes to the front."""

    def __init__(self, waiting: Mapping[int, _Waiting]) -> None:
        """``waiting`` says which entry of a sequence stands."""
        self._waiting = waiting
        self._heap: list[_Waiting] = []

    def add(self, entry: _Waiting) -> None:
        heapq.heappush(self._heap, entry)

    def first(self) -> _Waiting | None:
        """The most urgent entry, which stays."""
        while self._heap and self._waiting.get(self._heap[0].sequence) is not self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop(self) -> _Waiting | None:
        """Take the most urgent entry out."""
        first = self.first()
        if first is not None:
            heapq.heappop(self._heap)
        return first
