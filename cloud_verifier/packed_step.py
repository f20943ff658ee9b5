"""One step of several sequences, their tokens end to end: which rows each reads and writes, and how they are
put together for attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from acespec.cloud_verifier.kv_store import PAGE_TOKENS, pool_rows
from acespec.cloud_verifier.ragged_attention import FOLDED_QUERIES, ScoreRule, attend, folded
from acespec.speculation import tree_mask

SHORTEST_KEYS = 256
"""Sequences of up to this many rows are padded to one another without a second thought."""
KEYS_RATIO = 4
"""Beyond, a group's longest sequence is at most this many times as long as its shortest."""
GROUP_ROWS = 1 << 17
"""Rows a group gathers at most: half a gigabyte for eight heads of 128 at 16 bits, keys and values."""


@dataclass(frozen=True)
class Part:
    """One sequence's part of a step."""

    pages: NDArray[np.int64]
    """The sequence's pages, ascending."""
    start: int
    """Tokens the sequence holds before the step."""
    count: int
    """Tokens it is fed, at least 1."""
    parents: NDArray[np.int64] | None = None  # [count]
    """``Feed.parents``, where they are no chain."""

    @property
    def end(self) -> int:
        return self.start + self.count

    @cached_property
    def lineage(self) -> NDArray[np.bool_]:
        """Which of a tree's tokens each attends to, ``[count, count]``."""
        assert self.parents is not None, "a chain needs no table"
        return tree_mask(self.parents, 0, self.count)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Where the tokens stand, ``[count]``: in a tree several at one place."""
        if self.parents is None:
            return np.arange(self.start, self.end)
        depths: NDArray[np.int64] = self.lineage.sum(axis=1) - 1
        return self.start + depths

    def rows(self, start: int, end: int) -> NDArray[np.int64]:
        """Rows of the pool that hold the sequence's tokens ``start .. end - 1``."""
        return pool_rows(self.pages, np.arange(start, end))

    def in_place(self, start: int, end: int) -> slice | None:
        """The same rows as a slice of the pool, if they follow one another."""
        first, last = start // PAGE_TOKENS, (end - 1) // PAGE_TOKENS
        if self.pages[last] - self.pages[first] != last - first:
            return None
        row = int(self.pages[first]) * PAGE_TOKENS + start % PAGE_TOKENS
        return slice(row, row + end - start)


def grouped(parts: Sequence[Part], *, padded: bool) -> list[list[int]]:
    """Numbers of ``parts``, by groups whose attention is one call.

    Unless ``padded``, each is a group of its own. Else short feeds are put with others over about as many
    rows; long ones stay alone, for padding them, or others to them, would cost more than a call.
    """
    groups: list[list[int]] = []
    by_length: dict[int, list[int]] = {}
    for i, part in enumerate(parts):
        if not padded or part.count > FOLDED_QUERIES:
            groups.append([i])
            continue
        longest = SHORTEST_KEYS
        while longest < part.end:
            longest *= KEYS_RATIO
        group = by_length.get(longest)
        if group is None or (len(group) + 1) * longest > GROUP_ROWS:
            group = by_length[longest] = []
            groups.append(group)
        group.append(i)
    return groups


@dataclass(frozen=True)
class _Window:
    """What of its sequences a group's layers of one window read."""

    first: NDArray[np.int64]  # [B], the first position read of each
    num_keys: int  # over the longest
    in_place: slice | None


def _hidden_in_tree(part: Part, first: int, window: int | None) -> NDArray[np.bool_]:
    """Which of a sequence's tokens from ``first`` on a tree's do not see, ``[count, end - first]``.

    A window counts positions, of which a tree's tokens share some.
    """
    held = np.arange(first, part.start)
    hidden = np.concatenate([np.zeros((part.count, len(held)), np.bool_), ~part.lineage], axis=1)
    if window is not None:
        hidden |= np.concatenate([held, part.positions]) <= part.positions[:, None] - window
    return hidden


class AttentionGroup:
    """Sequences whose attention is one call, right-padded to one another.

    Everything that depends on the step alone is made once and shared by all layers of a kind and device.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.num_tokens = sum(part.count for part in parts)
        self._longest = max(part.count for part in parts)
        self._counts = np.array([part.count for part in parts])
        self._starts = np.array([part.start for part in parts])
        self._windows: dict[int | None, _Window] = {}
        self._gathers: dict[tuple[int | None, torch.device], torch.Tensor] = {}
        self._masks: dict[tuple[int | None, int, torch.dtype, torch.device], torch.Tensor] = {}
        self._paddings: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        window: int | None,
        rule: ScoreRule,
    ) -> torch.Tensor:
        """Attention ``[num_tokens, H, V]`` of the group's tokens ``query`` ``[num_tokens, H, D]``.

        ``keys`` ``[rows, KVH, D]`` and ``values`` ``[rows, KVH, V]`` are a layer's pool, in which the tokens'
        own rows are written. A token sees the ``window`` last positions up to its own; None: all.
        """
        groups = query.shape[1] // keys.shape[1] if rule.folds(self._longest) else 1
        result = attend(
            self._padded(query),
            self._read(keys, window),
            self._read(values, window),
            self._mask(window, groups, query),
            rule,
        )
        return self._unpadded(result)

    def _read(self, pool: torch.Tensor, window: int | None) -> torch.Tensor:
        """What the sequences read of ``pool``: ``[B, L, KVH, D]``, a view of it if that can be.

        Shorter sequences repeat their last row: nothing of others is read, not even to be masked, for a
        masked infinity would still spoil the sums.
        """
        read = self._window(window)
        if read.in_place is not None:
            return pool[read.in_place][None]
        index = self._gathers.get((window, pool.device))
        if index is None:
            rows = np.empty((len(self.parts), read.num_keys), np.int64)
            for i, part in enumerate(self.parts):
                own = part.rows(int(read.first[i]), part.end)
                rows[i, : len(own)] = own
                rows[i, len(own) :] = own[-1]
            index = self._gathers[window, pool.device] = torch.from_numpy(rows.ravel()).to(pool.device)
        return pool.index_select(0, index).view(len(self.parts), read.num_keys, *pool.shape[1:])

    def _window(self, window: int | None) -> _Window:
        if window not in self._windows:
            first = np.zeros_like(self._starts)
            if window is not None:
                first = np.maximum(first, self._starts - window + 1)
            num_keys = int((self._starts + self._counts - first).max())
            alone = self.parts[0] if len(self.parts) == 1 else None
            in_place = None if alone is None else alone.in_place(int(first[0]), alone.end)
            self._windows[window] = _Window(first, num_keys, in_place)
        return self._windows[window]

    def _mask(self, window: int | None, groups: int, query: torch.Tensor) -> torch.Tensor | None:
        """What is added to scores: ``[B, N * groups, L]`` zeros and minus infinities; None: only zeros."""
        if len(self.parts) == 1 and self._longest == 1:
            return None
        key = (window, groups, query.dtype, query.device)
        mask = self._masks.get(key)
        if mask is None:
            read = self._window(window)
            step = np.minimum(np.arange(self._longest), self._counts[:, None] - 1)  # padding: the last token
            position = (self._starts[:, None] + step)[:, :, None]  # [B, N, 1]
            seen = (read.first[:, None] + np.arange(read.num_keys))[:, None, :]  # [B, 1, L]
            hidden = seen > position
            if window is not None:
                hidden |= seen <= position - window
            for part, first, own_step, own in zip(self.parts, read.first.tolist(), step, hidden, strict=True):
                if part.parents is not None:
                    own[:, : part.end - first] = _hidden_in_tree(part, first, window)[own_step]
            zeros = torch.zeros(hidden.shape, dtype=query.dtype)
            additive = zeros.masked_fill_(torch.from_numpy(hidden), -torch.inf)
            mask = self._masks[key] = folded(additive.to(query.device), groups)
        return mask

    @cached_property
    def _even(self) -> bool:
        return self.num_tokens == self._longest * len(self.parts)

    def _padded(self, query: torch.Tensor) -> torch.Tensor:
        """``[num_tokens, H, D]`` to ``[B, N, H, D]``; padding repeats a sequence's last token."""
        if not self._even:
            query = query.index_select(0, self._padding(query.device)[0])
        return query.reshape(len(self.parts), self._longest, *query.shape[1:])

    def _unpadded(self, result: torch.Tensor) -> torch.Tensor:
        """``[B, N, H, V]`` to ``[num_tokens, H, V]``."""
        flat = result.flatten(0, 1)
        return flat if self._even else flat.index_select(0, self._padding(flat.device)[1])

    def _padding(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Which token each padded place takes, and the places of the tokens."""
        if device not in self._paddings:
            step = np.arange(self._longest)
            offsets = np.cumsum(self._counts) - self._counts
            tokens = offsets[:, None] + np.minimum(step, self._counts[:, None] - 1)
            places = np.flatnonzero(step < self._counts[:, None])
            self._paddings[device] = (
                torch.from_numpy(tokens.ravel()).to(device),
                torch.from_numpy(places).to(device),
            )
        return self._paddings[device]


class PackedStep:
    """A step's tokens, group by group, each group's sequences one after the other."""

    def __init__(self, parts: Sequence[Part], *, padded: bool) -> None:
        """``padded``: attention over several sequences in one call, as a GPU wants it."""
        numbers = grouped(parts, padded=padded)
        self.order = [i for group in numbers for i in group]
        """Numbers of ``parts`` in the order in which their tokens stand."""
        self._groups = [AttentionGroup([parts[i] for i in group]) for group in numbers]
        ordered = [parts[i] for i in self.order]
        self.positions = np.concatenate([part.positions for part in ordered])  # [T]
        self._rows = torch.from_numpy(np.concatenate([part.rows(part.start, part.end) for part in ordered]))
        self._rows_on: dict[torch.device, torch.Tensor] = {}

    def write(self, pool: torch.Tensor, new: torch.Tensor) -> None:
        """Put the tokens' rows ``new`` ``[T, KVH, D]`` in their places in ``pool``."""
        rows = self._rows_on.get(pool.device)
        if rows is None:
            rows = self._rows_on[pool.device] = self._rows.to(pool.device)
        pool.index_copy_(0, rows, new)

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        window: int | None,
        rule: ScoreRule,
    ) -> torch.Tensor:
        """``AttentionGroup.attend`` over all tokens: ``[T, H, V]`` of ``query`` ``[T, H, D]``."""
        queries = torch.split(query, [group.num_tokens for group in self._groups])
        results = [
            group.attend(part, keys, values, window, rule)
            for group, part in zip(self._groups, queries, strict=True)
        ]
        return results[0] if len(results) == 1 else torch.cat(results)
