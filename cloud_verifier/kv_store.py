"""The keys and values of all sequences: rows in one pool a layer, set aside by the page."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from acespec.cloud_verifier.engine import KvPoolFullError
from acespec.cloud_verifier.page_pool import PagePool, Pages
from acespec.cloud_verifier.token_tree import is_path
from acespec.errors import AcespecError

PAGE_TOKENS = 64
"""Tokens a page holds. A sequence wastes half a page on average; a run of pages is read in place."""


@dataclass(frozen=True)
class LayerRows:
    """What one layer keeps for a token."""

    key_shape: tuple[int, int]
    """Heads and width of a key."""
    value_shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    """Where the layer's attention is computed."""

    @property
    def bytes_per_token(self) -> int:
        return (math.prod(self.key_shape) + math.prod(self.value_shape)) * self.dtype.itemsize


@dataclass
class HeldSequence:
    """A sequence's place in the pool, and how much of it is in use."""

    runs: Pages
    pages: NDArray[np.int64]  # [num_pages], ascending
    max_tokens: int
    length: int = 0
    """Tokens held; rows beyond are left over from a rollback or from other sequences, and mean nothing."""
    parents: NDArray[np.int64] | None = None
    """``Feed.parents`` of the last feed, where it was no chain and none of its branches is chosen yet."""
    astray: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Places of the last tokens, ascending, that were kept and still stand further back than they should."""

    def feed(self, count: int, parents: NDArray[np.int64] | None) -> None:
        """Hold ``count`` tokens more, whose rows have been written behind the others."""
        assert not len(self.astray), "rows are written behind others that are in place"
        self.length += count
        self.parents = parents

    def keep(self, length: int, rows: Sequence[int]) -> None:
        """``TargetEngine.keep``: notes where the kept tokens stand, and moves none."""
        assert 0 <= length <= self.length, f"cannot keep {length} tokens: it holds {self.length}"
        while rows and rows[0] == length:
            length, rows = length + 1, rows[1:]
        if self.parents is not None:
            before = self.length - len(self.parents)
            chosen = [row - before for row in (*range(before, length), *rows)]
            assert length >= before or not rows, f"what follows {before} tokens cannot follow {length}"
            assert is_path(self.parents, chosen), f"{chosen} of the tokens fed last are no branch of them"
            self.astray = np.array(rows, np.int64)
            self.parents = None
        else:
            assert not rows, f"{list(rows)} do not follow the first {length} tokens"
            self.astray = self.astray[: max(0, length - (self.length - len(self.astray)))]
        self.length = length + len(rows)


class KvStore:
    """Rows of keys and values, the same rows in every layer, and the sequences they are lent to.

    ``open`` and ``close`` may be called from any thread; the rest from the one that runs the model.
    """

    def __init__(self, layers: Mapping[int, LayerRows], num_pages: int) -> None:
        """Take memory for ``num_pages`` pages in every layer of ``layers``, which stand by their numbers.

        On a CPU it costs nothing until it is written to. Raises ``AcespecError`` if there is not so much.
        """
        self.num_tokens = num_pages * PAGE_TOKENS
        try:
            self.keys = {n: self._empty(layer, layer.key_shape) for n, layer in layers.items()}
            self.values = {n: self._empty(layer, layer.value_shape) for n, layer in layers.items()}
        except (MemoryError, RuntimeError) as error:  # torch's own are RuntimeErrors
            needed = self.num_tokens * sum(layer.bytes_per_token for layer in layers.values())
            raise AcespecError(
                f"there are no {needed} bytes for keys and values ({str(error).splitlines()[0]}); "
                "give the target less memory for them"
            ) from error
        self._pool = PagePool(num_pages)
        self._sequences: dict[int, HeldSequence] = {}
        self._handles = itertools.count()
        self._books = threading.Lock()

    def __getitem__(self, handle: int) -> HeldSequence:
        return self._sequences[handle]

    def open(self, max_tokens: int) -> int:
        """Set room aside for ``max_tokens`` tokens, rounded up to pages. Raises ``KvPoolFullError``."""
        assert max_tokens > 0, "a sequence holds a token"
        count = math.ceil(max_tokens / PAGE_TOKENS)
        with self._books:
            if count > self._pool.num_free:
                raise KvPoolFullError(
                    f"no room for the keys and values of {max_tokens} tokens: "
                    f"{self._pool.num_free * PAGE_TOKENS} of {self.num_tokens} are free; close other "
                    "sequences, or give the target more memory for keys and values"
                )
            runs = self._pool.allocate(count)
            handle = next(self._handles)
            pages = np.concatenate([np.arange(run.start, run.stop) for run in runs])
            self._sequences[handle] = HeldSequence(runs, pages, max_tokens)
            return handle

    def close(self, handle: int) -> None:
        with self._books:
            self._pool.free(self._sequences.pop(handle).runs)

    def keep(self, handle: int, length: int, rows: Sequence[int]) -> None:
        """``TargetEngine.keep``; ``settle`` brings together what is kept."""
        self._sequences[handle].keep(length, rows)

    def settle(self, handles: Iterable[int]) -> None:
        """Bring together what the sequences hold: kept tokens right behind those before them.

        Once for all sequences of a step, for it takes two copies a layer.
        """
        moved = [held for held in map(self._sequences.__getitem__, handles) if len(held.astray)]
        if not moved:
            return
        sources = np.concatenate([pool_rows(held.pages, held.astray) for held in moved])
        targets = np.concatenate(
            [pool_rows(held.pages, np.arange(held.length - len(held.astray), held.length)) for held in moved]
        )
        pools = [*self.keys.values(), *self.values.values()]
        on_device = {
            device: (torch.from_numpy(sources).to(device), torch.from_numpy(targets).to(device))
            for device in {pool.device for pool in pools}
        }
        # All is read before anything is written: what fails leaves the pool as it is.
        rows = [pool.index_select(0, on_device[pool.device][0]) for pool in pools]
        for pool, kept in zip(pools, rows, strict=True):
            pool.index_copy_(0, on_device[pool.device][1], kept)
        for held in moved:
            held.astray = held.astray[:0]

    def _empty(self, layer: LayerRows, shape: tuple[int, int]) -> torch.Tensor:
        """Uninitialised memory ``[rows, heads, width]``: whoever reads a row has written it before."""
        return torch.empty((self.num_tokens, *shape), dtype=layer.dtype, device=layer.device)


def pool_rows(pages: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of a pool that are the ``places`` of a sequence on ``pages``."""
    return pages[places // PAGE_TOKENS] * PAGE_TOKENS + places % PAGE_TOKENS
