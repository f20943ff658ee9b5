"""What rank 0 tells the other ranks of a tensor-parallel target, as plain int64 words.

A message is a list of commands, one after the other: its code, then its fields. A step is ``STEP, feeds`` and
for each feed ``sequence, num_logits, n``, its n tokens, ``m``, and its m parents: none, or n. Handles are
those of rank 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from acespec.cloud_verifier.engine import Feed

Words: TypeAlias = NDArray[np.int64]  # [n]


@dataclass(frozen=True)
class Open:
    sequence: int
    max_tokens: int


@dataclass(frozen=True)
class Keep:
    sequence: int
    length: int
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Close:
    sequence: int


@dataclass(frozen=True)
class Step:
    feeds: tuple[Feed, ...]


@dataclass(frozen=True)
class Stop:
    """Nothing follows: rank 0 has ended in good order."""


Command: TypeAlias = Open | Keep | Close | Step | Stop

OPEN, KEEP, CLOSE, STEP, STOP = range(5)


def encode(commands: Sequence[Command]) -> Words:
    """The words of a message; no command at all is a sign of life."""
    parts: list[Words] = []
    for command in commands:
        match command:
            case Open(sequence, max_tokens):
                parts.append(_words(OPEN, sequence, max_tokens))
            case Keep(sequence, length, rows):
                parts.append(_words(KEEP, sequence, length, len(rows), *rows))
            case Close(sequence):
                parts.append(_words(CLOSE, sequence))
            case Step(feeds):
                parts.append(_words(STEP, len(feeds)))
                for feed in feeds:
                    parents = _words() if feed.parents is None else feed.parents
                    parts += (_words(feed.sequence, feed.num_logits, len(feed.tokens)), feed.tokens)
                    parts += (_words(len(parents)), parents)
            case Stop():
                parts.append(_words(STOP))
    return np.concatenate([_words(), *parts])


def decode(words: Words) -> list[Command]:
    """The commands of a message that ``encode`` made."""
    reader = _Reader(words)
    commands: list[Command] = []
    while not reader.at_end:
        code = reader.take()
        if code == OPEN:
            commands.append(Open(reader.take(), reader.take()))
        elif code == KEEP:
            commands.append(Keep(reader.take(), reader.take(), tuple(reader.array().tolist())))
        elif code == CLOSE:
            commands.append(Close(reader.take()))
        elif code == STEP:
            commands.append(Step(tuple(reader.feed() for _ in range(reader.take()))))
        else:
            assert code == STOP, f"rank 0 sent the command {code}"
            commands.append(Stop())
    return commands


class _Reader:
    """Takes words off the front of a message."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._place = 0

    @property
    def at_end(self) -> bool:
        return self._place == len(self._words)

    def take(self) -> int:
        word = int(self._words[self._place])
        self._place += 1
        return word

    def feed(self) -> Feed:
        sequence, num_logits, tokens, parents = self.take(), self.take(), self.array(), self.array()
        return Feed(sequence, tokens, num_logits, parents if len(parents) else None)

    def array(self) -> Words:
        """As many words as the next one says."""
        count = self.take()
        start, self._place = self._place, self._place + count
        return self._words[start : self._place]


def _words(*values: int) -> Words:
    return np.array(values, dtype=np.int64)
