"""A name for a model's weights that costs milliseconds, not the hours a full hash of 140 GB would."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple
from pathlib import Path

from acespec.errors import AcespecError
from acespec.models.files import StoredTensor, read_json_object, read_tensors, weight_files
from acespec.models.manifest import Bundle

BLOCK_BYTES = 4096
VOLATILE_CONFIG_KEYS = frozenset(
    {
        "_commit_hash",
        "_model_name_or_path",
        "_name_or_path",
        "architectures",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Config entries that say who wrote the file, not what the model computes; dtypes stand with the tensors."""


def model_fingerprint(model_folder: Path) -> str:
    """Identify a Hugging Face model folder: 64 hexadecimal digits.

    The sha256 of, in this order:

    1. ``config.json`` without ``VOLATILE_CONFIG_KEYS``, with sorted keys and no spaces;
    2. for each safetensors file in order of name: every tensor's name, dtype, shape and place, then the
       first, middle and last 4 KiB of every tensor's data.

    Every tensor is looked at, so another checkpoint, a merged adapter or another quantisation differs. This
    tells models apart; it is no defence against someone who forges weights between the sampled blocks. How
    the same weights are split into files matters. Raises ``AcespecError`` naming a missing or broken file.
    """
    config = read_json_object(model_folder / "config.json")
    stable = {key: value for key, value in config.items() if key not in VOLATILE_CONFIG_KEYS}
    digest = hashlib.sha256(_canonical(stable))
    for path in weight_files(model_folder):
        tensors = read_tensors(path)
        digest.update(_canonical([astuple(tensor) for tensor in tensors]))
        with path.open("rb") as file:
            for tensor in tensors:
                for offset in _sampled_offsets(tensor):
                    file.seek(offset)
                    digest.update(file.read(min(BLOCK_BYTES, tensor.end - offset)))
    return digest.hexdigest()


def check_source(bundle: Bundle, model_folder: Path) -> None:
    """Raise ``AcespecError`` unless ``bundle`` was exported from the model in ``model_folder``."""
    if model_fingerprint(model_folder) != bundle.manifest.source_fingerprint:
        raise AcespecError(
            f"{bundle.folder} was not exported from {model_folder}: its fingerprint is another; "
            f"name the folder of {bundle.manifest.model_name}"
        )


def _sampled_offsets(tensor: StoredTensor) -> list[int]:
    """Where the blocks read of a tensor begin: its start, its middle, and one block before its end."""
    last = max(tensor.begin, tensor.end - BLOCK_BYTES)
    return sorted({tensor.begin, (tensor.begin + last) // 2, last})


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
