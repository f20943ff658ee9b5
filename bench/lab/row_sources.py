"""The real models, asked for one row at a time in a way that depends on nothing but the row's path.

How a model's kernels add depends on how many tokens a step has and where their keys lie, so the same path
gives other last bits in another step; rounded activations make that a difference of up to one logit
(docs/export.md). Here a path is always fed alike: the prompt in steps as wide as they come, then a token at a
time. So a row is a function of its path, whichever experiment asks for it first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from acespec.bench.lab.strategy import PREFILL_CHUNK
from acespec.bench.lab.token_path import TokenPath
from acespec.cloud_verifier.engine import Feed, TargetEngine
from acespec.edge_runtime.engine import DraftEngine
from acespec.speculation import LogitsRow

KEPT_KV_BYTES = 256 << 20
TARGET_ROOM = 2048
"""Tokens behind its prompt that a path of the target may have."""


class DraftSource(Protocol):
    """Computes rows of a draft model."""

    def row(self, path: TokenPath) -> LogitsRow:
        """The logits of what follows ``path``, the caller's to keep."""


class TargetSource(Protocol):
    """Computes rows of a target model."""

    def row(self, path: TokenPath) -> NDArray[np.float32]:
        """The logits ``[vocab_size]`` of what follows ``path``, the caller's to keep."""


@runtime_checkable
class RowCopies(Protocol):
    """A draft engine whose rows can be taken out and put back, to go back and forth between branches."""

    def copy_row(self, row: int) -> NDArray[Any]:
        """Keys and values of one row."""

    def paste_row(self, kept: NDArray[Any]) -> None:
        """Append a row taken out before, which stood at the position that comes next."""


class EngineDraftSource:
    """Rows of any draft engine; one whose rows can be copied feeds no token of a branch twice."""

    def __init__(self, engine: DraftEngine) -> None:
        self._engine = engine
        self._copies = engine if isinstance(engine, RowCopies) else None
        self._kept: OrderedDict[bytes, NDArray[Any]] = OrderedDict()
        self._kept_bytes = 0
        self._prompt: tuple[int, ...] | None = None
        self._prompt_row = LogitsRow(np.zeros(0, np.float32))
        self._held: list[bytes] = []
        """Keys of the paths that end in each row behind the prompt."""

    def row(self, path: TokenPath) -> LogitsRow:
        if self._prompt != path.prompt:
            self._prompt_row = self._feed_prompt(path.prompt)
        nodes = nodes_of(path)[1:]
        if not nodes:
            return self._prompt_row
        shared = num_shared(self._held, nodes)
        self._engine.truncate(len(path.prompt) + shared)
        del self._held[shared:]
        for node in nodes[shared:-1]:
            self._append(node)
        return self._feed(nodes[-1])

    def _append(self, node: TokenPath) -> None:
        kept = self._kept.get(node.key)
        if kept is None or self._copies is None:
            self._feed(node)
        else:
            self._kept.move_to_end(node.key)
            self._copies.paste_row(kept)
            self._held.append(node.key)

    def _feed(self, node: TokenPath) -> LogitsRow:
        row = self._step([node.token])
        self._held.append(node.key)
        if self._copies is not None and node.key not in self._kept:
            kept = self._kept[node.key] = self._copies.copy_row(self._engine.num_rows - 1)
            self._kept_bytes += kept.nbytes
            while self._kept_bytes > KEPT_KV_BYTES:
                self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return row

    def _feed_prompt(self, prompt: tuple[int, ...]) -> LogitsRow:
        self._engine.truncate(0)
        self._held.clear()
        widest = self._engine.prefill_width
        for start in range(0, len(prompt), widest):
            row = self._step(prompt[start : start + widest])
        self._prompt = prompt
        return row

    def _step(self, tokens: Sequence[int]) -> LogitsRow:
        first = self._engine.num_rows
        mask = np.tri(len(tokens), first + len(tokens), first, dtype=np.bool_)
        positions = np.arange(first, first + len(tokens))
        row = self._engine.forward(np.asarray(tokens, np.int64), positions, mask, last_only=True)[-1]
        return LogitsRow(row.values.copy(), None if row.ids is None else row.ids.copy(), row.log_sum_exp)


class EngineTargetSource:
    """Rows of any target engine: the very steps of a cloud that decodes by itself."""

    def __init__(self, engine: TargetEngine) -> None:
        self._engine = engine
        self._prompt: tuple[int, ...] | None = None
        self._sequence: int | None = None
        self._held: list[bytes] = []
        """Keys of the paths that end in each token from the prompt's last on."""

    def row(self, path: TokenPath) -> NDArray[np.float32]:
        if self._prompt != path.prompt:
            self._begin(path.prompt)
        assert self._sequence is not None
        nodes = nodes_of(path)
        shared = num_shared(self._held, nodes)
        self._engine.keep(self._sequence, len(path.prompt) - 1 + shared)
        del self._held[shared:]
        for node in nodes[shared:]:
            (rows,) = self._engine.step([Feed(self._sequence, np.array([node.token]), num_logits=1)])
            self._held.append(node.key)
        return np.array(rows[0], np.float32)

    def _begin(self, prompt: tuple[int, ...]) -> None:
        if self._sequence is not None:
            self._engine.close(self._sequence)
        self._prompt = None
        room = min(len(prompt) + TARGET_ROOM, self._engine.info.max_context)
        self._sequence = self._engine.open(room)
        self._held.clear()
        for start in range(0, len(prompt) - 1, PREFILL_CHUNK):
            tokens = np.array(prompt[start : min(start + PREFILL_CHUNK, len(prompt) - 1)], np.int64)
            self._engine.step([Feed(self._sequence, tokens, num_logits=0)])
        self._prompt = prompt


def nodes_of(path: TokenPath) -> list[TokenPath]:
    """``path`` and what it extends, the prompt first."""
    nodes = []
    node: TokenPath | None = path
    while node is not None:
        nodes.append(node)
        node = node.parent
    return nodes[::-1]


def num_shared(held: Sequence[bytes], nodes: Sequence[TokenPath]) -> int:
    """How many of ``nodes`` but the last are held already, from the first on."""
    shared = 0
    for key, node in zip(held, nodes[:-1], strict=False):
        if key != node.key:
            break
        shared += 1
    return shared
