"""A GGUF file becomes the model it was made from."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from acespec.models import load_chat_template, load_tokenizer
from acespec.models.gguf import convert_gguf
from model_folder import CHAT_TEMPLATE, tiny_tokenizer

HEADS, KEY_HEADS, WIDTH, INNER, LAYERS = 4, 2, 32, 48, 2
TOKENS = [*sorted(tiny_tokenizer(()).get_vocab()), "ĠĠ", "<end>"]
END = len(TOKENS) - 1
TENSOR_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def tiny_llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=64,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END,
    )
    return LlamaForCausalLM(config).eval()


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows as GGUF orders those of queries and keys: the two halves of a rotary pair side by side."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: Any) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_name("A title, not a path")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.NORMAL] * END + [TokenType.CONTROL])
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_eos_token_id(END)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = interleaved(weight, HEADS if "q_proj" in name else KEY_HEADS)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(weight.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    outside = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in outside:
        return outside[name]
    _, _, layer, *middle, last = name.split(".")
    return f"blk.{layer}.{TENSOR_NAMES['.'.join(middle)]}.{last}"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a local file was asked for on the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_converted_model_equals_the_original(tmp_path: Path, no_network: None) -> None:
    model = tiny_llama()
    write_gguf(tmp_path / "tiny.gguf", model)
    folder = tmp_path / "converted"
    folder.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", folder)

    converted = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    assert {weight.dtype for weight in converted.parameters()} == {torch.float32}
    tokens = torch.arange(20)[None] * 11 % END
    with torch.inference_mode():
        torch.testing.assert_close(converted(tokens).logits, model(tokens).logits, atol=1e-5, rtol=0)
    config = json.loads((folder / "config.json").read_text())
    assert "A title" not in json.dumps(config)
    assert config["eos_token_id"] == END
    assert load_chat_template(folder).render("hi") == "<user>hi"
    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode


def test_digits_are_split_as_the_model_was_trained(tmp_path: Path, no_network: None) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    folder = tmp_path / "converted"
    folder.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", folder)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    assert tokenizer.pre_tokenizer is not None
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("a  12")]
    assert pieces == ["a", "ĠĠ", "1", "2"]
