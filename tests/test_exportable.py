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
    Qwen3Config,
    Qwen3ForCausalLM,
)

from acespec.models.exportable import ExportableDecoder, UnsupportedModelError
from tiny_target import SHAPE, tiny_model

VOCAB = 257


@functools.cache
def decoder(architecture: str) -> ExportableDecoder:
    return ExportableDecoder(tiny_model(architecture), VOCAB)


@functools.cache
def reference(architecture: str) -> PreTrainedModel:
    model = tiny_model(architecture)
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("cuts", [(20,), (1, 19), (12, 1, 1, 6)])
@torch.no_grad()
def test_steps_over_split_rows_equal_one_forward_under_any_mask(
    architecture: str, cuts: tuple[int, ...]
) -> None:
    model, total = decoder(architecture), sum(cuts)
    generator = torch.Generator().manual_seed(total * len(cuts))
    tokens = torch.randint(0, VOCAB, (1, total), generator=generator)
    positions = torch.randint(0, 96, (1, total), generator=generator)
    allowed = torch.rand(total, total, generator=generator).lt(0.6).tril() | torch.eye(
        total, dtype=torch.bool
    )
    mask = torch.where(allowed, 0.0, -1e4)[None, None]
    expected = reference(architecture)(
        input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False
    ).logits[..., :VOCAB]

    row = (0, model.shape.num_kv_heads, model.shape.head_dim)
    past = [torch.zeros(row) for _ in range(2 * model.shape.num_layers)]
    first, logits = 0, []
    for cut in cuts:
        end = first + cut
        step = (tokens[:, first:end], positions[:, first:end], mask[:, :, first:end, :end])
        step_logits, *new = model(*step, past)
        assert all(rows.shape == (cut, *row[1:]) for rows in new)
        past = [torch.cat(pair) for pair in zip(past, new, strict=True)]
        logits.append(step_logits)
        first = end
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, rtol=0, atol=1e-4)


def test_the_shape_is_read_off_the_rows_themselves() -> None:
    shape = decoder("qwen3").shape
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim) == (2, 2, 16)


def llama(**changes: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**(SHAPE | changes)))


REFUSED = {
    "MistralForCausalLM .*sliding_window": lambda: tiny_model("mistral"),
    "MambaForCausalLM .*recurrent state": lambda: MambaForCausalLM(
        MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=1)
    ),
    "BloomForCausalLM .*attention interface": lambda: BloomForCausalLM(
        BloomConfig(vocab_size=300, hidden_size=32, n_head=2)
    ),
    "Gemma2ForCausalLM .*sliding_attention": lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8)),
    "Gemma2ForCausalLM .*softcap": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SHAPE, head_dim=8, layer_types=["full_attention"] * 2)
    ),
    "Qwen3ForCausalLM .*sliding_attention": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SHAPE, layer_types=["full_attention", "sliding_attention"])
    ),
    "LlamaForCausalLM .*dynamic.*length of the text": lambda: llama(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    ),
    "LlamaForCausalLM .*257 tokens, its head only 200": lambda: llama(vocab_size=200),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_exported_is_refused_by_name_with_the_reason(message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        ExportableDecoder(REFUSED[message]().eval(), VOCAB)
    assert "\n" not in str(caught.value)
