"""Tiny decoders with random weights, one of each kind of attention."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from model_folder import tiny_tokenizer

PADDED_VOCAB = 272
"""Logits of the tiny models: more than the tokenizer's 257, as in models padded for speed."""
MAX_CONTEXT = 96

SHAPE = {
    "vocab_size": PADDED_VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_CONTEXT,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 256,
}


def tiny_model(architecture: str = "llama") -> PreTrainedModel:
    """The same weights every time. ``mistral`` attends to its last eight tokens only."""
    torch.manual_seed(7)
    if architecture == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    if architecture == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True)).eval()
    return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8)).eval()


def write_target_folder(folder: Path) -> Path:
    """A tiny Llama and its tokenizer as a Hugging Face folder."""
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
