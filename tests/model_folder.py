"""Tiny Hugging Face model folders, written without torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CHAT_TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"


def tiny_tokenizer(extra_tokens: Sequence[str] = ("<end>",)) -> Tokenizer:
    """A byte-level tokenizer without merges: 256 bytes and the extra special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in extra_tokens])
    return tokenizer


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]) -> None:
    """Write float32 tensors one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    encoded = json.dumps(header).encode()
    data = b"".join(tensor.tobytes() for tensor in tensors.values())
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


def write_model_folder(folder: Path, num_layers: int = 4, seed: int = 0) -> Path:
    """A folder that looks like a decoder of ``num_layers`` layers; only its files matter, nothing runs it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "num_hidden_layers": num_layers,
        "eos_token_id": 256,
        "transformers_version": "5.0.0",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": CHAT_TEMPLATE, "eos_token": "<end>"})
    )
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    generator = np.random.default_rng(seed)
    names = ["model.embed_tokens.weight"]
    names += [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(num_layers)]
    tensors = {name: generator.standard_normal((64, 96)).astype(np.float32) for name in names}
    write_safetensors(folder / "model.safetensors", tensors)
    return folder
