"""A name for a model's weights that costs milliseconds, not the hours a full hash of 140 GB would."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from acespec.errors import AcespecError
from acespec.models.files import read_json_object, read_safetensors_header, weight_files

BLOCK_BYTES = 4096
BLOCKS_PER_UNKNOWN_FILE = 256
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
    2. for each weights file in order of name: its size; for safetensors every tensor's name, dtype, shape and
       place, then the first, middle and last 4 KiB of every tensor's data; for other formats 256 blocks of
       4 KiB spread evenly from the first byte to the last.

    Every tensor is looked at, so another checkpoint, a merged adapter or another quantisation differs. This
    tells models apart; it is no defence against someone who forges weights between the sampled blocks. How
    the same weights are split into files matters. Raises ``AcespecError`` naming a missing or broken file.
    """
    config = read_json_object(model_folder / "config.json")
    stable = {key: value for key, value in config.items() if key not in VOLATILE_CONFIG_KEYS}
    digest = hashlib.sha256(_canonical(stable))
    for path in weight_files(model_folder):
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        if path.suffix == ".safetensors":
            layout, offsets = _safetensors_blocks(path)
            digest.update(_canonical(layout))
        else:
            offsets = _even_blocks(size)
        with path.open("rb") as file:
            for offset in offsets:
                file.seek(offset)
                digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()


def _safetensors_blocks(path: Path) -> tuple[list[list[object]], list[int]]:
    """Every tensor's description in order of place, and the offsets of the blocks to read, ascending."""
    header, data_start = read_safetensors_header(path)
    layout: list[list[object]] = []
    offsets: set[int] = set()
    try:
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            layout.append([begin, end, name, tensor["dtype"], tensor["shape"]])
            last = max(begin, end - BLOCK_BYTES)
            offsets.update(data_start + offset for offset in (begin, (begin + last) // 2, last))
    except (KeyError, TypeError, ValueError) as error:
        raise AcespecError(f"{path} has a broken safetensors header; fetch the model again") from error
    return sorted(layout, key=lambda entry: json.dumps(entry)), sorted(offsets)


def _even_blocks(size: int) -> list[int]:
    last = max(0, size - BLOCK_BYTES)
    steps = BLOCKS_PER_UNKNOWN_FILE - 1
    return sorted({last * index // steps for index in range(BLOCKS_PER_UNKNOWN_FILE)})


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
