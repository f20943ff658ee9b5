"""Targets for the engine's tests: every family that can be served, and plain forwards to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from acespec.cloud_verifier.engine import Feed, TargetInfo
from acespec.cloud_verifier.kv_store import PAGE_TOKENS
from acespec.cloud_verifier.transformers_engine import TransformersEngine
from tiny_families import EXPERTS, SUPPORTED, UNSUPPORTED, family
from tiny_target import MAX_CONTEXT, PADDED_VOCAB
from token_trees import path_to

VOCAB = 257
INFO = TargetInfo("tiny", "f" * 64, "a" * 64, VOCAB, MAX_CONTEXT)
ONLY_SERVED: dict[str, Callable[[], PreTrainedModel]] = {
    "gemma 2, softcap": UNSUPPORTED["gemma 2"][0],
    "gemma 3n, layers that share keys": family(
        "Gemma3nText",
        num_hidden_layers=4,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=8,
        vocab_size_per_layer_input=PADDED_VOCAB,
        hidden_size_per_layer_input=8,
    ),
    "granite, sinks": UNSUPPORTED["granite, sinks"][0],
    "gpt oss, experts and sinks": family("GptOss", sliding_window=8, **EXPERTS),
    "mixtral, experts": family("Mixtral", **EXPERTS),
    "qwen 3 moe": family("Qwen3Moe", head_dim=8, **EXPERTS),
}
"""What cannot be exported to a device and can be a target."""
SERVED = SUPPORTED | ONLY_SERVED
FLOAT32_ONLY = {"gpt oss, experts and sinks", "mixtral, experts", "qwen 3 moe"}
"""Their experts' products are not there for float64."""
ROUNDED = {*FLOAT32_ONLY, "gemma 3n, layers that share keys"}
"""What computes in float32, or some of it."""


def fresh_logits(model: PreTrainedModel, tokens: list[int]) -> NDArray[np.float32]:
    """Logits ``[len(tokens), VOCAB]`` of one forward without a cache. ``model`` is no engine's."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0, :, :VOCAB]
    return logits.numpy()


def ids(*tokens: int) -> NDArray[np.int64]:
    return np.array(tokens, dtype=np.int64)


def target(name: str) -> PreTrainedModel:
    """The family's tiny model; at float64 where that can be, so that what differs is wrong, not rounded."""
    model = SERVED[name]()
    model.set_attn_implementation("eager")
    return model if name in FLOAT32_ONLY else model.double()


class TwoForms:
    """An engine of each form of attention, made to do the same, and the model to compare them with."""

    def __init__(self, name: str, max_context: int = MAX_CONTEXT, num_pages: int = 40) -> None:
        self._reference = target(name)
        self._tolerance = 1e-4 if name in ROUNDED else 1e-5
        info = replace(INFO, max_context=max_context)
        page_bytes = PAGE_TOKENS * TransformersEngine(target(name), info).info.kv_bytes_per_token
        self._engines = [
            TransformersEngine(target(name), info, kv_memory_bytes=num_pages * page_bytes, padded=padded)
            for padded in (False, True)
        ]
        self.texts: dict[int, list[int]] = {}
        """The tokens of each open sequence."""

    def open(self, max_tokens: int) -> int:
        first, second = (engine.open(max_tokens) for engine in self._engines)
        assert first == second
        self.texts[first] = []
        return first

    def close(self, sequence: int) -> None:
        for engine in self._engines:
            engine.close(sequence)
        del self.texts[sequence]

    def keep(self, sequence: int, length: int, rows: Sequence[int] = ()) -> None:
        for engine in self._engines:
            engine.keep(sequence, length, rows)
        text = self.texts[sequence]
        text[length:] = [text[row] for row in rows]

    def step(
        self, fed: Mapping[int, tuple[list[int], int]], trees: Mapping[int, list[int]] | None = None
    ) -> None:
        """Feed each sequence its tokens, ask for logits of its last ones, and compare both with the model.

        ``trees`` are the parents of those that are trees: the model is run once for each of their tokens.
        """
        trees = trees or {}
        feeds = [
            Feed(sequence, ids(*tokens), wanted, ids(*trees[sequence]) if sequence in trees else None)
            for sequence, (tokens, wanted) in fed.items()
        ]
        by_form = [engine.step(feeds) for engine in self._engines]
        for i, (sequence, (tokens, wanted)) in enumerate(fed.items()):
            if sequence in trees:
                expected = self._each_branch(self.texts[sequence], tokens, trees[sequence], wanted)
            else:
                expected = fresh_logits(self._reference, self.texts[sequence] + tokens)
            self.texts[sequence] += tokens
            for results in by_form:
                assert results[i].dtype == np.float32
                assert results[i].shape == (wanted, VOCAB)
                last = expected[len(expected) - wanted :]
                np.testing.assert_allclose(results[i], last, atol=self._tolerance, rtol=0)

    def _each_branch(
        self, text: list[int], tokens: list[int], parents: list[int], wanted: int
    ) -> NDArray[np.float32]:
        """Logits of a tree's last ``wanted`` tokens: the last row of a forward for each."""
        paths = [path_to(parents, token) for token in range(len(tokens) - wanted, len(tokens))]
        rows = [fresh_logits(self._reference, text + [tokens[i] for i in path])[-1] for path in paths]
        return np.stack(rows) if rows else np.empty((0, VOCAB), np.float32)
