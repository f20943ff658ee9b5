"""The keys and values of all sequences: rows in one pool a layer, set aside by the page."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from acespec.cloud_verifier.engine import KvPoolFullError
from acespec.cloud_verifier.page_pool import PagePool, Pages
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

    def rollback(self, handle: int, length: int) -> None:
        held = self._sequences[handle]
        assert 0 <= length <= held.length, f"cannot roll back to {length} tokens: it holds {held.length}"
        held.length = length

    def _empty(self, layer: LayerRows, shape: tuple[int, int]) -> torch.Tensor:
        """Uninitialised memory ``[rows, heads, width]``: whoever reads a row has written it before."""
        return torch.empty((self.num_tokens, *shape), dtype=layer.dtype, device=layer.device)
