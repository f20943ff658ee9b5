"""Loading a folder as a target: what it says of itself, where its layers go, and what is no target."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from acespec.cloud_verifier.engine import Feed, TargetInfo
from acespec.cloud_verifier.kv_store import PAGE_TOKENS
from acespec.cloud_verifier.transformers_engine import TransformersEngine
from acespec.errors import AcespecError
from acespec.models import model_fingerprint, vocabulary_hash
from model_folder import tiny_tokenizer
from served_target import VOCAB, fresh_logits, ids
from tiny_families import CONTEXT, SUPPORTED
from tiny_target import MAX_CONTEXT, PADDED_VOCAB, tiny_model, write_target_folder


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small only wait for their threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target_folder(tmp_path_factory.mktemp("models") / "tiny-llama")


def logits_of(engine: TransformersEngine, *tokens: int) -> NDArray[np.float32]:
    """Of a new sequence."""
    sequence = engine.open(64)
    (logits,) = engine.step([Feed(sequence, ids(*tokens), len(tokens))])
    return logits


def test_a_loaded_folder_says_what_it_is(folder: Path) -> None:
    engine = TransformersEngine.load(folder, kv_memory_bytes=3 * PAGE_TOKENS * 256)
    assert engine.info == TargetInfo(
        name="tiny-llama",
        fingerprint=model_fingerprint(folder),
        vocabulary_hash=vocabulary_hash(folder / "tokenizer.json"),
        vocab_size=VOCAB,
        max_context=MAX_CONTEXT,
        kv_bytes_per_token=256,
        kv_tokens=3 * PAGE_TOKENS,
    )
    np.testing.assert_allclose(logits_of(engine, 1, 2), fresh_logits(tiny_model(), [1, 2]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_lower_precision_is_allowed_with_a_warning(
    dtype: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        engine = TransformersEngine.load(folder, dtype=dtype)
    assert "nearly ties" in caplog.text
    assert engine.info.kv_bytes_per_token == 128
    logits = logits_of(engine, 1, 2)
    assert logits.dtype == np.float32
    difference = np.abs(logits - fresh_logits(tiny_model(), [1, 2])).max()
    assert 1e-4 < difference < 0.5


@pytest.mark.parametrize(
    "device_map",
    [
        "auto",
        {"": "cpu"},
        {
            "model.embed_tokens": "cpu",
            "model.layers.0": "disk",
            "model.layers.1": "cpu",
            "model.norm": "cpu",
            "model.rotary_emb": "cpu",
            "lm_head": "cpu",
        },
    ],
    ids=["auto", "one device", "a layer on disk"],
)
def test_layers_are_spread_as_the_device_map_says(device_map: Any, folder: Path) -> None:
    engine = TransformersEngine.load(folder, device_map=device_map)
    np.testing.assert_allclose(
        logits_of(engine, 1, 2, 3), fresh_logits(tiny_model(), [1, 2, 3]), atol=1e-5, rtol=0
    )


def test_contexts_end_where_longrope_would_change_the_rows_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = SUPPORTED["phi 4 mini, longrope"]()
    assert model.config.max_position_embeddings > CONTEXT
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    with caplog.at_level(logging.WARNING):
        engine = TransformersEngine.load(tmp_path)
    assert engine.info.max_context == CONTEXT
    assert f"cut to {CONTEXT} tokens" in caplog.text


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def with_broken_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no safetensors")


def of_unknown_kind(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "unheard-of"}))


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def with_another_tokenizer(folder: Path) -> None:
    extra = [f"<{i}>" for i in range(PADDED_VOCAB)]
    tiny_tokenizer(extra).save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    "damage",
    [
        without_config,
        without_tokenizer,
        without_weights,
        with_broken_weights,
        of_unknown_kind,
        without_a_tensor,
        with_another_tokenizer,
    ],
)
def test_a_folder_that_is_no_target_is_one_line(damage: Callable[[Path], None], tmp_path: Path) -> None:
    folder = write_target_folder(tmp_path / "damaged")
    damage(folder)
    with pytest.raises(AcespecError) as caught:
        TransformersEngine.load(folder)
    assert "\n" not in str(caught.value)
    assert "damaged" in str(caught.value)


def test_an_unknown_device_is_one_line(folder: Path) -> None:
    with pytest.raises(AcespecError, match="device 'quantum'"):
        TransformersEngine.load(folder, device="quantum")


def test_an_unknown_device_in_a_device_map_is_one_line(folder: Path) -> None:
    with pytest.raises(AcespecError, match="device 'quantum'"):
        TransformersEngine.load(folder, device_map={"": "quantum"})
