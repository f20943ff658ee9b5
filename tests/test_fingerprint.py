"""What changes a model's fingerprint, and what does not."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acespec.errors import AcespecError
from acespec.models import model_fingerprint
from model_folder import write_model_folder, write_safetensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model_folder(tmp_path / "model")


def edit_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config, indent=3))


def test_equals_the_documented_layout(tmp_path: Path) -> None:
    values = np.arange(4000, dtype=np.float32)
    write_safetensors(tmp_path / "model.safetensors", {"long": values, "short": values[:2]})
    (tmp_path / "config.json").write_text('{"b": 1, "transformers_version": "5", "a": [true]}')
    begin = (tmp_path / "model.safetensors").stat().st_size - 16008
    layout: list[Any] = [
        ["long", "F32", [4000], begin, begin + 16000],
        ["short", "F32", [2], begin + 16000, begin + 16008],
    ]
    data = values.tobytes()
    middle = (16000 - 4096) // 2
    expected = hashlib.sha256(b'{"a":[true],"b":1}' + json.dumps(layout, separators=(",", ":")).encode())
    for block in (data[:4096], data[middle : middle + 4096], data[-4096:], data[:8]):
        expected.update(block)
    assert model_fingerprint(tmp_path) == expected.hexdigest()


def test_a_copy_has_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    before = model_fingerprint(folder)
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    edit_config(copy, transformers_version="6.1", _name_or_path="somewhere", torch_dtype="float32")
    (copy / "tokenizer_config.json").unlink()
    (copy / "README.md").write_text("words")
    assert model_fingerprint(copy) == before


def test_configuration_counts(folder: Path) -> None:
    before = model_fingerprint(folder)
    edit_config(folder, rope_theta=10_000)
    assert model_fingerprint(folder) != before


@pytest.mark.parametrize("layer", range(4))
@pytest.mark.parametrize("place", [0, 64 * 96 // 2, 64 * 96 - 1])
def test_every_tensor_counts(folder: Path, layer: int, place: int) -> None:
    before = model_fingerprint(folder)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    tensor_bytes = 64 * 96 * 4
    start = len(content) - (4 - layer) * tensor_bytes + place * 4
    content[start] ^= 1
    path.write_bytes(content)
    assert model_fingerprint(folder) != before


def test_names_count(folder: Path) -> None:
    before = model_fingerprint(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"layers.1.mlp.up_proj", b"layers.1.mlp.uq_proj"))
    assert model_fingerprint(folder) != before


def test_another_model_beside_the_indexed_one_is_ignored(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.rename(folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"model.embed_tokens.weight": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    before = model_fingerprint(folder)
    write_safetensors(folder / "consolidated.safetensors", {"w": np.zeros(3, np.float32)})
    assert model_fingerprint(folder) == before


def test_a_missing_shard_is_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(AcespecError, match=r"model-00001-of-00002\.safetensors is missing"):
        model_fingerprint(folder)


@pytest.mark.parametrize("keep", [0, 7, 40, -1])
def test_weights_cut_short_are_named(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(AcespecError, match=r"model\.safetensors is not a whole safetensors file"):
        model_fingerprint(folder)


def test_a_folder_without_weights_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(AcespecError, match=r"holds no \*\.safetensors weights"):
        model_fingerprint(folder)


def test_a_broken_config_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("[]")
    with pytest.raises(AcespecError, match=r"config\.json does not hold a JSON object"):
        model_fingerprint(folder)
