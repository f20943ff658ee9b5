"""Which models can be served exactly, and how the others are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acespec.cloud_verifier.packed_decoder import UnsupportedTargetError
from acespec.cloud_verifier.transformers_engine import TransformersEngine
from served_target import INFO
from tiny_families import UNSUPPORTED
from tiny_target import tiny_model

REFUSED = {
    "bloom": "Bloom.*attention interface",
    "deepseek v3": "DeepseekV3.*multi-head latent attention",
    "falcon, alibi": "Falcon.*attention interface",
    "lfm 2": "Lfm2.*conv cannot be rolled back",
    "llama 4": "Llama4.*chunked_attention",
    "mamba": "Mamba.*cannot be rolled back",
    "qwen 3 next": "Qwen3Next.*linear_attention cannot be rolled back",
    "roberta, positions of its own": "Roberta.*something else tells it where tokens stand",
    "whisper": "Whisper.*attention interface",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_exactly_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedTargetError, match=REFUSED[name]) as caught:
        TransformersEngine(UNSUPPORTED[name][0](), INFO)
    assert "\n" not in str(caught.value)


def test_logits_that_are_no_numbers_are_refused() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight[0] = torch.inf
    with pytest.raises(UnsupportedTargetError, match=r"at torch.float32 its logits are no numbers; try"):
        TransformersEngine(model, INFO)


def test_an_argument_of_attention_that_is_not_known_is_refused() -> None:
    model = tiny_model()
    attention = model.model.layers[1].self_attn
    plain = attention.forward
    attention.forward = lambda *args, **kwargs: plain(*args, position_bias=torch.zeros(1), **kwargs)
    with pytest.raises(UnsupportedTargetError, match=r"Llama.*adds a learned bias"):
        TransformersEngine(model, INFO)


def test_code_that_looks_into_kept_keys_is_refused() -> None:
    model = tiny_model()
    attention = model.model.layers[1].self_attn
    plain = attention.forward

    class Looking:
        """A cache whose user takes the kept keys' shape."""

        def __init__(self, cache: Any) -> None:
            self._cache = cache

        def update(self, *args: Any, **kwargs: Any) -> Any:
            keys, values = self._cache.update(*args, **kwargs)
            assert keys.shape[0]
            return keys, values

    def forward(*args: Any, cache: Any = None, **kwargs: Any) -> Any:
        return plain(*args, cache=None if cache is None else Looking(cache), **kwargs)

    attention.forward = forward
    with pytest.raises(UnsupportedTargetError, match=r"Llama.*shape of keys and values after"):
        TransformersEngine(model, INFO)
