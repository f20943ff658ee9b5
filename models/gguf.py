"""Turning a GGUF file into a plain Hugging Face folder at float32."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

from acespec.errors import AcespecError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NEEDED = ("torch", "transformers", "gguf")


def require_gguf_support() -> None:
    """Raise ``AcespecError`` naming the extra to install when a GGUF file could not be converted here."""
    missing = next((module for module in NEEDED if importlib.util.find_spec(module) is None), None)
    if missing is not None:
        raise AcespecError(
            f"reading GGUF needs {missing}, which is not installed; install it with: "
            "pip install 'acespec[cloud]'"
        )


def convert_gguf(gguf_file: Path, destination: Path) -> None:
    """Dequantise ``gguf_file`` and save weights, tokenizer and chat template in the folder ``destination``.

    Works offline. Raises ``AcespecError`` for a file that is damaged or of an architecture transformers
    cannot read, and where the libraries are missing.
    """
    require_gguf_support()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    location = {"gguf_file": gguf_file.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, **location)
        _restore_pre_tokenizer(tokenizer, gguf_file)
        model = AutoModelForCausalLM.from_pretrained(
            gguf_file.parent,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            **location,
        )
        model.save_pretrained(destination)
        tokenizer.save_pretrained(destination)
    except Exception as error:  # readers of a damaged file raise whatever its bytes lead them to
        reason = " ".join(str(error).split()) or type(error).__name__
        raise AcespecError(f"{gguf_file.name} could not be converted ({reason})") from error
    _forget_title(destination / "config.json")
    for weights in destination.glob("*.safetensors"):
        weights.chmod((destination / "config.json").stat().st_mode)  # safetensors closes it to others


def _restore_pre_tokenizer(tokenizer: PreTrainedTokenizerBase, gguf_file: Path) -> None:
    """Split digits where the model was trained that way.

    GGUF names the pre-tokenizer instead of describing it, and transformers falls back to GPT-2's for the name
    ``smollm``. Without this a blank run before a number is tokenised unlike in training.
    """
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    field = GGUFReader(gguf_file).get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )


def _forget_title(config_path: Path) -> None:
    """Drop the GGUF's free-text title, which transformers files under the path the model was loaded from."""
    config = json.loads(config_path.read_text())
    config.pop("_model_name_or_path", None)
    config_path.write_text(json.dumps(config, indent=2) + "\n")
