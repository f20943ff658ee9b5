"""The reference target engine: any Hugging Face decoder through Transformers and PyTorch."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache

from acespec.cloud_verifier.engine import Feed, TargetInfo
from acespec.cloud_verifier.kv_cache import rollback_cache
from acespec.errors import AcespecError
from acespec.models.architecture import positions_without_switch
from acespec.models.fingerprint import model_fingerprint
from acespec.models.vocabulary import load_tokenizer, vocabulary_hash, vocabulary_size

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class TransformersEngine:
    """A Transformers decoder with one key/value cache per sequence.

    Attention is over every earlier token of the sequence, positions are explicit, and logits are float32
    whatever the model computes in. ``open`` and ``close`` only touch a dictionary.
    """

    def __init__(self, model: PreTrainedModel, info: TargetInfo) -> None:
        """Serve ``model`` as it is, its device and dtype; ``info`` is what sessions are checked against."""
        self._model: Any = model.eval()  # type: ignore[no-untyped-call]
        self._backbone: Any = model.base_model
        self._info = info
        self._device = model.device
        self._caches: dict[int, Cache] = {}
        self._handles = itertools.count()
        check_layers(model)

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        threads: int | None = None,
    ) -> TransformersEngine:
        """Load the Hugging Face folder ``folder``; the target is called by its name.

        ``threads`` sets PyTorch's threads for this process. Raises ``AcespecError`` for a folder that holds
        no decoder or no tokenizer.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        check_device(device)
        if dtype != "float32":
            logger.warning(
                "the target runs at %s: a token whose probability nearly ties with another's may come out "
                "differently at another chain length; float32 is the dtype for which texts are compared",
                dtype,
            )
        tokenizer_json = folder / "tokenizer.json"
        vocab_size = vocabulary_size(load_tokenizer(tokenizer_json))
        fingerprint = model_fingerprint(folder)
        model = load_model(folder, DTYPES[dtype])
        config = model.config.get_text_config(decoder=True)
        if vocab_size > config.vocab_size:
            raise AcespecError(
                f"the tokenizer in {folder} has {vocab_size} tokens but the model knows {config.vocab_size}; "
                "use the tokenizer that belongs to the model"
            )
        info = TargetInfo(
            name=folder.resolve().name,
            fingerprint=fingerprint,
            vocabulary_hash=vocabulary_hash(tokenizer_json),
            vocab_size=vocab_size,
            max_context=_known_positions(config),
        )
        return cls(model.to(device), info)

    @property
    def info(self) -> TargetInfo:
        return self._info

    def open(self, max_tokens: int) -> int:  # noqa: ARG002 - a cache grows as it is filled
        handle = next(self._handles)
        self._caches[handle] = rollback_cache()
        return handle

    def close(self, sequence: int) -> None:
        del self._caches[sequence]

    def rollback(self, sequence: int, length: int) -> None:
        cache = self._caches[sequence]
        excess = cache.get_seq_length() - length
        assert excess >= 0, f"cannot roll back to {length} tokens: the sequence has {length - excess}"
        if excess:
            cache.crop(-excess)

    def step(self, feeds: Sequence[Feed]) -> list[NDArray[np.float32]]:
        logits: list[NDArray[np.float32]] = []
        for feed in feeds:
            if feed.num_logits:
                logits.append(self.verify(feed.sequence, feed.tokens)[-feed.num_logits :])
            else:
                self.prefill(feed.sequence, feed.tokens)
                logits.append(np.empty((0, self._info.vocab_size), np.float32))
        return logits

    @torch.inference_mode()
    def prefill(self, sequence: int, tokens: NDArray[np.int64]) -> None:
        """Feed ``tokens`` ``[n]`` in one forward; the language-model head is not called."""
        if len(tokens):
            self._backbone(**self._inputs(self._caches[sequence], tokens))

    @torch.inference_mode()
    def verify(self, sequence: int, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        output = self._model(**self._inputs(self._caches[sequence], tokens))
        logits: torch.Tensor = output.logits[0, :, : self._info.vocab_size]  # [n, vocab_size]
        array: NDArray[np.float32] = logits.to(device="cpu", dtype=torch.float32).numpy()
        return array

    def _inputs(self, cache: Cache, tokens: NDArray[np.int64]) -> dict[str, Any]:
        start = int(cache.get_seq_length())
        end = start + len(tokens)
        assert len(tokens) > 0, "a step needs a token"
        assert end <= self._info.max_context, f"{end} tokens do not fit {self._info.max_context}"
        return {
            "input_ids": torch.as_tensor(tokens, dtype=torch.int64, device=self._device)[None],
            "position_ids": torch.arange(start, end, device=self._device)[None],
            "cache": cache,
            "use_cache": True,
        }


def load_model(folder: Path, dtype: torch.dtype) -> Any:
    """The decoder in ``folder``. Raises ``AcespecError`` if it cannot be loaded whole."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # each format and architecture has its own
        reason = " ".join(str(error).split())[:300]
        raise AcespecError(
            f"no target can be loaded from {folder} ({reason}); fetch the model again, or name another"
        ) from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:  # Transformers would serve them with random values
        raise AcespecError(
            f"{folder} lacks {len(missing)} of the model's tensors, {missing[0]} first; fetch the model again"
        )
    return model


def _known_positions(config: PretrainedConfig) -> int:
    """Positions a session may use: those the model knows, as long as its cached rows stay valid."""
    known = int(config.max_position_embeddings)
    limit = positions_without_switch(config)
    if limit is None or limit >= known:
        return known
    logger.warning(
        "contexts are cut to %d tokens: beyond, LongRoPE changes its frequencies and cached rows with them",
        limit,
    )
    return limit


def check_device(device: str) -> None:
    """Raise ``AcespecError`` if PyTorch has no such device here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise AcespecError(
            f"PyTorch cannot use the device {device!r} ({reason}); try --device cpu"
        ) from error


def check_layers(model: PreTrainedModel) -> None:
    """Raise ``AcespecError`` if some layer keeps a state that cannot be rolled back token by token."""
    config = model.config.get_text_config(decoder=True)
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    unsupported = layer_types - {"full_attention", "sliding_attention"}
    if unsupported:
        raise AcespecError(
            f"layers of type {', '.join(sorted(unsupported))} cannot be rolled back; "
            "serve a decoder with full or sliding-window attention"
        )
