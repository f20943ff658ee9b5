"""The reference target engine: any Hugging Face decoder through Transformers and PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from acespec.cloud_verifier.engine import Feed, TargetInfo
from acespec.cloud_verifier.kv_memory import pages_by_default, pages_within
from acespec.cloud_verifier.kv_store import KvStore
from acespec.cloud_verifier.packed_decoder import PackedDecoder
from acespec.cloud_verifier.packed_step import PackedStep, Part
from acespec.cloud_verifier.target_model import DeviceMap, load_model, target_info
from acespec.cloud_verifier.token_tree import is_chain, is_tree

logger = logging.getLogger(__name__)


class TransformersEngine:
    """``TargetEngine`` over a Transformers decoder and one pool of keys and values.

    A step is one forward over the tokens of all feeds, end to end, so that no padding goes through the
    model's matrices. Positions are explicit, attention keeps sequences apart, and logits are float32 whatever
    the model computes in.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        info: TargetInfo,
        *,
        kv_memory_bytes: int | None = None,
        padded: bool | None = None,
    ) -> None:
        """Serve ``model``, its device and dtype as they are, and take it over: its attention is replaced.

        ``info`` is what sessions are checked against; what it says of keys and values is found here.
        ``kv_memory_bytes`` is the pool's memory, by default a share of what there is (``kv_memory``); of a
        model in shards it is each shard's. ``padded`` is ``PackedDecoder``'s.

        Raises ``UnsupportedTargetError`` for a model that cannot be served exactly, and ``AcespecError`` if
        the memory holds no page or is not there.
        """
        self._decoder = PackedDecoder(model, info.vocab_size, info.max_context, padded)
        layers = self._decoder.layers.values()
        if kv_memory_bytes is None:
            pages = pages_by_default(layers, info.max_context)
        else:
            pages = pages_within(layers, kv_memory_bytes)
        if (model.tp_size or 1) > 1:
            from acespec.cloud_verifier.tensor_parallel_load import smallest_over_ranks

            pages = smallest_over_ranks(pages, model.device)
        self._store = KvStore(self._decoder.layers, pages)
        self._info = replace(
            info,
            kv_bytes_per_token=sum(layer.bytes_per_token for layer in layers),
            kv_tokens=self._store.num_tokens,
        )
        if self._store.num_tokens < info.max_context:
            logger.warning(
                "there is memory for the keys and values of %d tokens, less than the target's context of %d",
                self._store.num_tokens,
                info.max_context,
            )

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        threads: int | None = None,
        kv_memory_bytes: int | None = None,
        device_map: DeviceMap | None = None,
        tp: bool = False,
    ) -> TransformersEngine:
        """Load the Hugging Face folder ``folder``; the target is called by its name.

        ``threads`` sets PyTorch's threads for this process. ``device_map`` spreads the layers over devices in
        ``device``'s stead. ``tp`` loads this rank's shard, in a process that has joined the others
        (``tensor_parallel``). Raises ``AcespecError`` for a folder that holds no decoder or no tokenizer.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        info = target_info(folder)
        model = load_model(folder, dtype=dtype, device=device, device_map=device_map, tp=tp)
        return cls(model, info, kv_memory_bytes=kv_memory_bytes)

    @property
    def info(self) -> TargetInfo:
        return self._info

    def open(self, max_tokens: int) -> int:
        return self._store.open(max_tokens)

    def close(self, sequence: int) -> None:
        self._store.close(sequence)

    def keep(self, sequence: int, length: int, rows: Sequence[int] = ()) -> None:
        self._store.keep(sequence, length, rows)

    def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
        parts = [self._part(feed) for feed in feeds]
        assert len({feed.sequence for feed in feeds}) == len(feeds) >= 1, "a sequence is fed once a step"
        step = PackedStep(parts, padded=self._decoder.padded)
        ordered = [feeds[i] for i in step.order]
        tokens = np.concatenate([feed.tokens for feed in ordered]).astype(np.int64, copy=False)
        ends = np.cumsum([len(feed.tokens) for feed in ordered])
        wanted = [
            np.arange(end - feed.num_logits, end) for feed, end in zip(ordered, ends.tolist(), strict=True)
        ]
        self._store.settle(feed.sequence for feed in feeds)
        logits = self._decoder.run(self._store, step, tokens, np.concatenate(wanted)).numpy()
        for feed, part in zip(feeds, parts, strict=True):
            self._store[feed.sequence].feed(part.count, part.parents)
        by_order = np.split(logits, np.cumsum([len(rows) for rows in wanted])[:-1])
        return [by_order[place] for place in np.argsort(step.order)]

    def _part(self, feed: Feed) -> Part:
        held, count = self._store[feed.sequence], len(feed.tokens)
        assert count > 0, "a feed has a token"
        assert 0 <= feed.num_logits <= count, f"{feed.num_logits} logits of {count} tokens"
        assert held.length + count <= held.max_tokens, f"{held.length + count} tokens, {held.max_tokens} said"
        assert int(feed.tokens.min()) >= 0, "a token has an id"
        assert int(feed.tokens.max()) < self._info.vocab_size, "a token is in the vocabulary"
        assert held.parents is None, "a branch is chosen before more is fed"
        parents = feed.parents
        if parents is not None:
            assert len(parents) == count, f"{len(parents)} parents of {count} tokens"
            assert is_tree(parents), "a token follows an earlier one"
            if is_chain(parents):
                parents = None
        part = Part(held.pages, held.length, count, parents)
        assert int(part.positions.max()) < self._info.max_context, "a token stands within the context"
        return part
