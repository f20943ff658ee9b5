"""Reading the files of a model folder, with errors that name the file."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acespec.errors import AcespecError

WEIGHT_FILE = "model.safetensors"
WEIGHT_INDEX = "model.safetensors.index.json"
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")
"""What of a model folder is fetched: configuration, weights, tokenizer and chat template."""
MAX_HEADER_BYTES = 100_000_000
"""Longest safetensors header the format allows."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file. ``begin`` and ``end`` count bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that must hold one object. Raises ``AcespecError`` naming the file."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise AcespecError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise AcespecError(f"{path} is not JSON ({error}); fetch the model again") from error
    if not isinstance(content, dict):
        raise AcespecError(f"{path} does not hold a JSON object; fetch the model again")
    return content


def sha256_of(path: Path) -> str:
    """The sha256 of a whole file, in hexadecimal."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def weight_files(model_folder: Path) -> tuple[Path, ...]:
    """The safetensors files holding a model's weights, in order of name.

    An index file decides where there is one: some folders carry the same weights again in another layout.
    Raises ``AcespecError`` when a file is missing or there is none at all.
    """
    index = model_folder / WEIGHT_INDEX
    if index.is_file():
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise AcespecError(f"{index} has no weight_map; fetch the model again")
        files = [model_folder / str(name) for name in sorted(set(weight_map.values()))]
    elif (model_folder / WEIGHT_FILE).is_file():
        files = [model_folder / WEIGHT_FILE]
    else:
        files = sorted(model_folder.glob("*.safetensors"))
    missing = next((path for path in files if not path.is_file()), None)
    if missing is not None:
        raise AcespecError(f"{missing} is missing; fetch the model again")
    if not files:
        raise AcespecError(
            f"{model_folder} holds no *.safetensors weights; other formats must be saved again "
            "with transformers"
        )
    return tuple(files)


def read_tensors(path: Path) -> tuple[StoredTensor, ...]:
    """What a safetensors file holds, in order of place, without reading any weights.

    Layout: the header's length as a little-endian 64-bit integer, the header in JSON (tensor name to dtype,
    shape and ``data_offsets``, plus an optional ``__metadata__``), the data. Raises ``AcespecError`` for a
    file that is anything else, or cut short.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise ValueError("its header is too long")
            header = json.loads(file.read(length))
        tensors = []
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = (8 + length + int(offset) for offset in entry["data_offsets"])
                shape = tuple(int(size) for size in entry["shape"])
                tensors.append(StoredTensor(name, str(entry["dtype"]), shape, begin, end))
        if any(not 8 + length <= tensor.begin <= tensor.end <= path.stat().st_size for tensor in tensors):
            raise ValueError("it is cut short")
    except OSError as error:
        raise AcespecError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise AcespecError(
            f"{path} is not a whole safetensors file ({error}); fetch the model again"
        ) from error
    return tuple(sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end, tensor.name)))
