"""Reading the files of a model folder, with errors that name the file."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from acespec.errors import AcespecError

MAX_HEADER_BYTES = 100_000_000
"""Longest safetensors header the format allows."""


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
    """The files holding a model's weights, in order of name; safetensors where there are any, else PyTorch's.

    An index file decides where there is one: some folders carry the same weights again in another layout.
    Raises ``AcespecError`` when a file is missing or there is none at all.
    """
    for stem, pattern in (("model.safetensors", "*.safetensors"), ("pytorch_model.bin", "*.bin")):
        index = model_folder / f"{stem}.index.json"
        if index.is_file():
            weight_map = read_json_object(index).get("weight_map")
            if not isinstance(weight_map, dict) or not weight_map:
                raise AcespecError(f"{index} has no weight_map; fetch the model again")
            files = [model_folder / str(name) for name in sorted(set(weight_map.values()))]
        elif (model_folder / stem).is_file():
            files = [model_folder / stem]
        else:
            files = sorted(model_folder.glob(pattern))
        missing = next((path for path in files if not path.is_file()), None)
        if missing is not None:
            raise AcespecError(f"{missing} is missing; fetch the model again")
        if files:
            return tuple(files)
    raise AcespecError(f"{model_folder} holds no weights (*.safetensors); fetch the model again")


def read_safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file and the offset in bytes at which tensor data begins.

    Layout: the header's length as a little-endian 64-bit integer, the header in JSON (tensor name to dtype,
    shape and ``data_offsets``, plus an optional ``__metadata__``), the data. Raises ``AcespecError`` for
    anything else.
    """
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise ValueError("too short")
            (length,) = struct.unpack("<Q", prefix)
            if length > MAX_HEADER_BYTES:
                raise ValueError("its header is too long")
            header = json.loads(file.read(length))
        if not isinstance(header, dict):
            raise ValueError("its header is not an object")
    except OSError as error:
        raise AcespecError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise AcespecError(f"{path} is not a safetensors file ({error}); fetch the model again") from error
    return header, 8 + length
