"""The edge's and the verifier's engines over remembered rows: the real loops run on them and cannot tell."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acespec.bench.lab.lab_pair import PairIdentity
from acespec.bench.lab.strategy import Models
from acespec.bench.lab.token_path import TokenPath
from acespec.cloud_verifier.engine import Feed, TargetInfo
from acespec.edge_runtime.budget import bucket_for
from acespec.edge_runtime.engine import check_step
from acespec.speculation import LogitsRow

TREE_ROWS = 8192
"""Rows beyond the context. On a device they cost memory; here a budget is never cut short by them."""


@dataclass(frozen=True)
class RememberedRows:
    """A draft step's rows, each with as many entries as are remembered (``LogitsRows``)."""

    rows: tuple[LogitsRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int, /) -> LogitsRow:
        return self.rows[index]


class MemoDraftEngine:
    """``DraftEngine`` whose rows are paths of tokens: it computes nothing."""

    def __init__(
        self, models: Models, identity: PairIdentity, prompt: Sequence[int], buckets: Sequence[int]
    ) -> None:
        """For generations of ``prompt`` alone, on a device with engines of these ``buckets``."""
        self._models = models
        self._start = TokenPath.of(prompt)
        self._buckets = tuple(sorted(buckets))
        self._context = identity.draft_context
        self._prefill_width = max(identity.draft_prefill_width, self._buckets[-1])
        self._rows: list[TokenPath | None] = []
        """The path that ends in each row; None for those of the prompt but the last."""
        self.step_width = 0
        """Tokens the last step computed: those of its bucket, or of a wider step its own."""

    @property
    def buckets(self) -> tuple[int, ...]:
        return self._buckets

    @property
    def prefill_width(self) -> int:
        return self._prefill_width

    @property
    def max_context(self) -> int:
        return self._context

    @property
    def max_rows(self) -> int:
        return self._context + TREE_ROWS

    @property
    def vocab_size(self) -> int:
        return self._models.vocab_size

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def forward(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        mask: NDArray[np.bool_],
        last_only: bool = False,
    ) -> RememberedRows:
        """Look one step's rows up; see ``DraftEngine.forward``."""
        count = len(tokens)
        assert count <= (self._prefill_width if last_only else self._buckets[-1]), count
        check_step(self, tokens, positions, mask)
        self.step_width = bucket_for(count, self._buckets) if count <= self._buckets[-1] else count
        for index in range(count):
            self._rows.append(self._path(int(tokens[index]), int(positions[index]), mask[index]))
        wanted = self._rows[-1:] if last_only else self._rows[-count:]
        return RememberedRows(tuple(self._row(path) for path in wanted))

    def compact(self, prefix: int, rows: Sequence[int]) -> None:
        """See ``DraftEngine.compact``."""
        self._rows = self._rows[:prefix] + [self._rows[row] for row in rows]

    def truncate(self, num_rows: int) -> None:
        """See ``DraftEngine.truncate``."""
        assert 0 <= num_rows <= len(self._rows), (num_rows, len(self._rows))
        del self._rows[num_rows:]

    def _row(self, path: TokenPath | None) -> LogitsRow:
        if path is None:  # a piece of the prompt, whose logits nobody looks at
            return LogitsRow(np.zeros(1, np.float32), np.zeros(1, np.int64))
        return self._models.draft(path)

    def _path(self, token: int, position: int, attends: NDArray[np.bool_]) -> TokenPath | None:
        """The path of the row that is appended next."""
        prompt = self._start.prompt
        if position < len(prompt):
            assert token == prompt[position], "another prompt"
            return self._start if position == len(prompt) - 1 else None
        ancestors = np.flatnonzero(attends[: len(self._rows)])
        assert len(ancestors) == position, "a token attends to one token at each position before it"
        parent = self._rows[int(ancestors[-1])]
        assert parent is not None
        assert parent.length == position
        return parent.then(token)


class MemoTargetEngine:
    """``TargetEngine`` whose sequences are paths of tokens: it computes nothing.

    A row is looked up when the verifier reads it, and it reads none behind the first that ends a check: rows
    of rejected tokens are never needed.
    """

    def __init__(self, models: Models, identity: PairIdentity, prompt: Sequence[int]) -> None:
        """For generations of ``prompt`` alone."""
        self._models = models
        self._info = identity.target_info
        self._start = TokenPath.of(prompt)
        self._handles = itertools.count()
        self._held: dict[int, list[TokenPath | None]] = {}
        """The path that ends in each token of a sequence; None for those of the prompt but the last."""

    @property
    def info(self) -> TargetInfo:
        return self._info

    def open(self, max_tokens: int) -> int:  # noqa: ARG002 - there is room for all
        handle = next(self._handles)
        self._held[handle] = []
        return handle

    def step(self, feeds: Sequence[Feed]) -> list[LookedUpRows]:
        """See ``TargetEngine.step``."""
        return [self._feed(feed) for feed in feeds]

    def keep(self, sequence: int, length: int, rows: Sequence[int] = ()) -> None:
        """See ``TargetEngine.keep``."""
        held = self._held[sequence]
        assert 0 <= length <= len(held), (length, len(held))
        kept = [held[row] for row in rows]
        held[length:] = kept
        for place, path in enumerate(kept, length):
            assert path is not None, "a prompt has no branches"
            assert path.length == place + 1, "what is kept is a text"
            assert path.parent is held[place - 1], "what is kept is a text"

    def close(self, sequence: int) -> None:
        """See ``TargetEngine.close``."""
        del self._held[sequence]

    def _feed(self, feed: Feed) -> LookedUpRows:
        held = self._held[feed.sequence]
        num_held = len(held)
        tokens = feed.tokens.tolist()
        parents = range(-1, len(tokens) - 1) if feed.parents is None else feed.parents.tolist()
        for token, parent in zip(tokens, parents, strict=True):
            held.append(self._path(token, num_held + parent, held))
        wanted = [path for path in held[len(held) - feed.num_logits :] if path is not None]
        assert len(wanted) == feed.num_logits, "nobody looks at a prompt's logits but the last"
        return LookedUpRows(self._models, tuple(wanted))

    def _path(self, token: int, before: int, held: Sequence[TokenPath | None]) -> TokenPath | None:
        """The path of a token that follows the one at the index ``before`` of ``held``."""
        path = held[before] if before >= 0 else None
        if path is not None:
            return path.then(token)
        prompt, position = self._start.prompt, before + 1
        assert token == prompt[position], "another prompt"
        return self._start if position == len(prompt) - 1 else None


@dataclass(frozen=True)
class LookedUpRows:
    """A feed's rows, looked up one by one as they are read (``TargetLogits``)."""

    models: Models
    paths: tuple[TokenPath, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int, /) -> NDArray[np.float32]:
        return self.models.target(self.paths[index])
