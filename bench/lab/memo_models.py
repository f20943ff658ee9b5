"""What the pair's models say, remembered: rows come from memory, from the store, or from the real model once.

A run whose rows are all stored loads no model, and what it gives does not depend on where it runs.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from acespec.bench.lab.lab_pair import IDENTITY_FILE, LabPair, PairIdentity, recorded_pair
from acespec.bench.lab.row_codec import (
    ANY_SAMPLING,
    cut_draft_row,
    decode_draft_row,
    decode_target_row,
    encode_draft_row,
    encode_target_row,
    sampling_key,
)
from acespec.bench.lab.row_file import DEFAULT_MAX_BYTES, RowFile
from acespec.bench.lab.row_sources import DraftSource, TargetSource
from acespec.bench.lab.token_path import TokenPath
from acespec.errors import AcespecError
from acespec.models import cache_folder
from acespec.private_files import PUBLIC, write_whole
from acespec.speculation import LogitsRow, SamplingParams, candidate_depth

DRAFT_CACHE_BYTES = 256 << 20
TARGET_CACHE_BYTES = 128 << 20
K = TypeVar("K")
T = TypeVar("T")


class MissingRowError(AcespecError):
    """A row is not in the store and there is no model to compute it."""


@dataclass(frozen=True)
class StoreReport:
    """How much is stored, and what this process had to compute."""

    draft_rows: int
    draft_bytes: int
    target_rows: int
    target_bytes: int
    draft_rows_computed: int
    target_rows_computed: int


class MemoModels:
    """The models of a pair, over a store of rows. Not for use by several threads."""

    def __init__(self, pair: LabPair, folder: Path | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """``folder`` holds the store, by default one in the cache that belongs to this very pair.

        ``max_bytes`` bounds each of its two files. Raises ``AcespecError`` if another pair's rows are in it.
        """
        self.identity = pair.identity
        self.folder = default_store(pair.identity) if folder is None else folder
        _claim(self.folder, pair.identity)
        self._pair = pair
        self._draft_file = RowFile(self.folder / "draft.sqlite", max_bytes)
        self._target_file = RowFile(self.folder / "target.sqlite", max_bytes)
        self._draft_source: DraftSource | None = None
        self._target_source: TargetSource | None = None
        self._drafts: _Cache[tuple[bytes, float], LogitsRow] = _Cache(DRAFT_CACHE_BYTES)
        self._targets: _Cache[bytes, NDArray[np.float32]] = _Cache(TARGET_CACHE_BYTES)
        self.draft_rows_computed = 0
        self.target_rows_computed = 0

    def draft(self, path: TokenPath, sampling: SamplingParams) -> LogitsRow:
        """The draft's logits for what follows ``path``: at least those ``candidate_row`` looks at."""
        depth = candidate_depth(sampling)
        row = self._drafts.get((path.key, depth))
        if row is None:
            row = self._stored_draft(path, depth)
            assert row.ids is not None
            self._drafts.put((path.key, depth), row, row.values.nbytes + row.ids.nbytes)
        return row

    def target(self, path: TokenPath, sampling: SamplingParams) -> NDArray[np.float32]:
        """The target's logits for what follows ``path``, as far as ``sampling`` can tell."""
        wanted = sampling_key(sampling)
        row = self._targets.get(path.key + wanted)
        if row is None:
            row = self._stored_target(path, sampling, wanted)
            self._targets.put(path.key + wanted, row, row.nbytes)
        return row

    def flush(self) -> None:
        """Put on disk what was computed."""
        self._draft_file.flush()
        self._target_file.flush()

    def close(self) -> None:
        """Put on disk what was computed, and let go of the files."""
        self._draft_file.close()
        self._target_file.close()

    def report(self) -> StoreReport:
        """What is on disk by now."""
        self.flush()
        return StoreReport(
            self._draft_file.num_rows,
            self._draft_file.num_bytes,
            self._target_file.num_rows,
            self._target_file.num_bytes,
            self.draft_rows_computed,
            self.target_rows_computed,
        )

    def _stored_draft(self, path: TokenPath, depth: float) -> LogitsRow:
        data = self._draft_file.get(path.key)
        if data is not None and (stored := decode_draft_row(data)).depth >= depth:
            return stored.logits
        if self._draft_source is None:
            if self._pair.open_draft is None:
                raise self._missing("draft", path)
            self._draft_source = self._pair.open_draft()
        cut = cut_draft_row(self._draft_source.row(path), depth)
        self._draft_file.put(path.key, encode_draft_row(cut))
        self.draft_rows_computed += 1
        return cut.logits

    def _stored_target(self, path: TokenPath, sampling: SamplingParams, wanted: bytes) -> NDArray[np.float32]:
        for key in (wanted, ANY_SAMPLING):
            data = self._target_file.get(path.key + key)
            if data is not None:
                return decode_target_row(data)
        if self._target_source is None:
            if self._pair.open_target is None:
                raise self._missing("target", path)
            self._target_source = self._pair.open_target()
        data, key = encode_target_row(self._target_source.row(path), sampling)
        self._target_file.put(path.key + key, data)
        self.target_rows_computed += 1
        return decode_target_row(data)

    def _missing(self, model: str, path: TokenPath) -> MissingRowError:
        return MissingRowError(
            f"{self.folder} lacks a {model} row {path.length - len(path.prompt)} tokens behind a prompt: "
            "record these prompts and settings where the models are"
        )


class SampledModels:
    """``Models`` for one run's sampling."""

    def __init__(self, models: MemoModels, sampling: SamplingParams) -> None:
        self.missing: MissingRowError | None = None
        """The row that was not there: a verifier tells its edge only that it failed."""
        self._models = models
        self._sampling = sampling

    @property
    def vocab_size(self) -> int:
        return self._models.identity.vocab_size

    def draft(self, path: TokenPath) -> LogitsRow:
        with self._noting():
            return self._models.draft(path, self._sampling)

    def target(self, path: TokenPath) -> NDArray[np.float32]:
        with self._noting():
            return self._models.target(path, self._sampling)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except MissingRowError as error:
            self.missing = error
            raise


def default_store(identity: PairIdentity) -> Path:
    """Where a pair's rows are kept unless said otherwise."""
    return cache_folder() / "laboratory" / f"{identity.name}-{identity.key}"


def _claim(folder: Path, identity: PairIdentity) -> None:
    """Make ``folder`` the pair's. Raises ``AcespecError`` if it is another's."""
    path = folder / IDENTITY_FILE
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, identity.model_dump_json(indent=2).encode(), PUBLIC, replace=True)
        return
    held = recorded_pair(folder).identity
    if held != identity:
        fields = PairIdentity.model_fields
        different = [name for name in fields if getattr(held, name) != getattr(identity, name)]
        raise AcespecError(
            f"{folder} holds the rows of another pair ({', '.join(different)} differ); name another folder"
        )


class _Cache(Generic[K, T]):
    """What was used last, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._items: OrderedDict[K, tuple[T, int]] = OrderedDict()

    def get(self, key: K) -> T | None:
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: K, value: T, num_bytes: int) -> None:
        self._items[key] = (value, num_bytes)
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= self._items.popitem(last=False)[1][1]
