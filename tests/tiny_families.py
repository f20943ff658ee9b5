"""Tiny random decoders of many configuration classes, each with what sets its family apart switched on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from tiny_target import SHAPE

CONTEXT = 48
WINDOW = 8
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
LLAMA3_ROTARY = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONG_ROTARY = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.0, 4.0, 9.0, 16.0],
    "original_max_position_embeddings": CONTEXT,
}
TWO_ROTARIES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
YARN_ROTARY = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 12,
    "llama_4_scaling_beta": 0.3,
}


def family(name: str, **changes: Any) -> Callable[[], PreTrainedModel]:
    """Builds the decoder of ``<name>Config``, tiny but for ``changes``, with the same weights each time."""

    def build() -> PreTrainedModel:
        torch.manual_seed(7)
        config = getattr(transformers, f"{name}Config")(**SHAPE | {"pad_token_id": 0} | changes)
        model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():  # norms and biases begin as ones and zeros, which hide mistakes
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter += 0.3 * torch.randn_like(parameter)
        return model

    return build


NAMED = {
    "llama 3, scaled rotary": family("Llama", rope_parameters=LLAMA3_ROTARY, head_dim=16),
    "smollm 2, tied head": family("Llama", tie_word_embeddings=True, hidden_size=48, num_attention_heads=6),
    "smollm 3, a layer without rotary": family("SmolLM3", no_rope_layers=[1, 0], tie_word_embeddings=True),
    "qwen 2.5, biases": family("Qwen2", tie_word_embeddings=True),
    "qwen 2, mixed windows": family("Qwen2", use_sliding_window=True, **MIXED),
    "qwen 3": family("Qwen3", head_dim=16, tie_word_embeddings=True),
    "mistral": family("Mistral", sliding_window=WINDOW),
    "phi 3": family("Phi3", sliding_window=WINDOW),
    "phi 4 mini, longrope": family(
        "Phi3", rope_parameters=LONG_ROTARY, original_max_position_embeddings=CONTEXT, num_attention_heads=2
    ),
    "gemma 3": family(
        "Gemma3Text", rope_parameters=TWO_ROTARIES, query_pre_attn_scalar=24, head_dim=8, **MIXED
    ),
    "olmo 2": family("Olmo2"),
}
"""The families that the documentation names."""

ALSO_SUPPORTED = {
    "cohere": family("Cohere", logit_scale=0.5, use_qk_norm=True),
    "cohere 2": family("Cohere2", **MIXED),
    "exaone 4": family("Exaone4", **MIXED),
    "gemma": family("Gemma", head_dim=16),
    "glm 4": family("Glm4", head_dim=16, partial_rotary_factor=0.5),
    "gpt 2, learned positions": family("GPT2"),
    "gpt neox": family("GPTNeoX", rotary_pct=0.5),
    "granite, multipliers": family(
        "Granite",
        embedding_multiplier=12.0,
        residual_multiplier=0.3,
        attention_multiplier=0.2,
        logits_scaling=2.0,
    ),
    "ministral 3, scores scaled by position": family("Ministral3", rope_parameters=YARN_ROTARY, head_dim=8),
    "nemotron": family("Nemotron"),
    "olmo 3": family("Olmo3", **MIXED),
    "phi": family("Phi", partial_rotary_factor=0.5),
    "starcoder 2": family("Starcoder2", sliding_window=WINDOW),
}
"""Others that the one path carries."""

SUPPORTED = NAMED | ALSO_SUPPORTED

EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}

UNSUPPORTED: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "bloom": (family("Bloom"), "Bloom.*attention interface"),
    "deepseek v3": (
        family("DeepseekV3", n_routed_experts=4, **LATENT),
        "DeepseekV3.*multi-head latent attention",
    ),
    "dynamic ntk": (
        family("Llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        "Llama.*dynamic.*length of the text",
    ),
    "falcon, alibi": (family("Falcon", alibi=True), "Falcon.*attention interface"),
    "gemma 2": (family("Gemma2", head_dim=8), "Gemma2.*softcap"),
    "gemma 3n": (
        family(
            "Gemma3nText", num_hidden_layers=4, num_kv_shared_layers=2, layer_types=["full_attention"] * 4
        ),
        "Gemma3n.*keys of others",
    ),
    "gpt oss": (family("GptOss", **EXPERTS), "GptOss.*mixture of experts"),
    "granite, sinks": (family("GraniteSWA"), "GraniteSWA.*attention sinks"),
    "lfm 2": (family("Lfm2", layer_types=["conv", "full_attention"]), "Lfm2.*recurrent state"),
    "llama 4": (family("Llama4Text", head_dim=8, **EXPERTS), "Llama4.*"),
    "mamba": (family("Mamba", state_size=4), "Mamba.*recurrent state"),
    "mixtral": (family("Mixtral", **EXPERTS), "Mixtral.*mixture of experts"),
    "qwen 3 moe": (family("Qwen3Moe", head_dim=8, **EXPERTS), "Qwen3Moe.*mixture of experts"),
    "qwen 3 next": (
        family("Qwen3Next", head_dim=8, layer_types=["linear_attention", "full_attention"], **EXPERTS),
        "Qwen3Next.*recurrent state",
    ),
    "roberta, positions of its own": (
        family("Roberta", is_decoder=True),
        "Roberta.*something else tells it where tokens stand",
    ),
    "whisper": (
        family("Whisper", d_model=32, decoder_attention_heads=4, encoder_attention_heads=4),
        "Whisper.*attention interface",
    ),
}
