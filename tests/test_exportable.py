"""The exportable decoder against the model's own eager attention, and what it refuses."""

from __future__ import annotations

import functools

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
)

from acespec.models.architecture import UnsupportedModelError
from acespec.models.exportable import ExportableDecoder
from tiny_target import SHAPE, tiny_model

VOCAB = 257


@functools.cache
def decoder(architecture: str) -> ExportableDecoder:
    return ExportableDecoder(tiny_model(architecture), VOCAB, 96)


@functools.cache
def reference(architecture: str) -> PreTrainedModel:
    model = tiny_model(architecture)
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral"])
@torch.no_grad()
def test_a_step_equals_the_model_under_any_mask(architecture: str) -> None:
    model, total = decoder(architecture), 20
    generator = torch.Generator().manual_seed(total)
    tokens = torch.randint(0, VOCAB, (1, total), generator=generator)
    positions = torch.randint(0, 96, (1, total), generator=generator)
    allowed = torch.rand(total, total, generator=generator).lt(0.6).tril() | torch.eye(
        total, dtype=torch.bool
    )
    mask = torch.where(allowed, 0.0, -1e4)[None, None]
    expected = reference(architecture)(
        input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False
    ).logits[..., :VOCAB]
    chosen = torch.tensor([19, 0, 7])
    (logits,) = model(tokens, positions, chosen, [mask])
    torch.testing.assert_close(logits, expected[:, chosen], rtol=0, atol=1e-4)


def test_the_shape_is_read_off_the_rows_themselves() -> None:
    shape = decoder("qwen3").shape
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim) == (2, 2, 16)


def llama(**changes: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**(SHAPE | changes)))


REFUSED = {
    "MambaForCausalLM .*recurrent state": lambda: MambaForCausalLM(
        MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1)
    ),
    "BloomForCausalLM .*attention interface": lambda: BloomForCausalLM(
        BloomConfig(vocab_size=300, hidden_size=32, n_head=2)
    ),
    "Gemma2ForCausalLM .*softcap": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SHAPE, head_dim=8, layer_types=["full_attention"] * 2)
    ),
    "LlamaForCausalLM .*dynamic.*length of the text": lambda: llama(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    ),
    "LlamaForCausalLM .*257 tokens, its head only 200": lambda: llama(vocab_size=200),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_exported_is_refused_by_name_with_the_reason(message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        ExportableDecoder(REFUSED[message]().eval(), VOCAB, 96)
    assert "\n" not in str(caught.value)
