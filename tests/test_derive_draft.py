"""A derived draft is exactly the target without the layers left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from acespec.errors import AcespecError
from acespec.models import layer_choice, model_fingerprint, vocabulary_hash
from acespec.models.derive import derive_draft
from acespec.models.files import weight_files
from acespec.models.layer_choice import (
    Continuation,
    choose_layers,
    choose_layers_of,
    nucleus,
    skipping,
)
from acespec.models.record import read_record
from model_folder import write_model_folder

SIZES: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "eos_token_id": 256,
    "bos_token_id": None,
    "pad_token_id": None,
}
TOKENS = torch.arange(40)[None] * 7 % 257


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads only get in each other's way on models this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def llama(tie: bool = True) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tie)).eval()


def gemma3() -> Any:
    """Layers of two kinds by turns: which is which is one list entry a layer."""
    torch.manual_seed(0)
    kinds = ["sliding_attention", "full_attention"] * 3
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, layer_types=kinds, sliding_window=5)).eval()


def qwen3() -> Any:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES)).eval()


def save(model: Any, folder: Path, shard_size: str = "1GB") -> Path:
    write_model_folder(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    return model(TOKENS, use_cache=False).logits


@torch.inference_mode()
def logits_without(model: Any, skipped: tuple[int, ...]) -> torch.Tensor:
    """The reference: take the layers out of the live model."""
    with skipping(model.model.layers, frozenset(skipped)):
        return logits(model)


@pytest.mark.parametrize(
    ("model", "shard_size"),
    [(llama(), "1GB"), (llama(tie=False), "30KB"), (gemma3(), "1GB"), (qwen3(), "30KB")],
    ids=["tied", "untied, many files", "two kinds of layer", "qwen3, many files"],
)
@pytest.mark.parametrize("skipped", [(0,), (5,), (1, 2, 4)])
def test_equals_the_target_with_layers_taken_out(
    tmp_path: Path, model: Any, shard_size: str, skipped: tuple[int, ...]
) -> None:
    target = save(model, tmp_path / "target", shard_size)
    assert (len(weight_files(target)) > 1) == (shard_size != "1GB")
    derive_draft(target, tmp_path / "draft", skipped, origin="target")
    draft = load(tmp_path / "draft")
    assert len(draft.model.layers) == 6 - len(skipped)
    assert torch.equal(logits(draft), logits_without(model, skipped))
    assert not torch.equal(logits(draft), logits(model))


def test_lists_with_an_entry_a_layer_follow(tmp_path: Path) -> None:
    target = save(gemma3(), tmp_path / "target")
    derive_draft(target, tmp_path / "draft", (0, 3), origin="target")
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert config["layer_types"] == [
        "full_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
    ]


def test_vocabulary_and_record(tmp_path: Path) -> None:
    target = write_model_folder(tmp_path / "target")
    (target / "acespec.json").write_text("{}")
    record = derive_draft(target, tmp_path / "draft", {2, 1}, origin="the-target")
    assert read_record(tmp_path / "draft") == record
    assert record.skipped_layers == (1, 2)
    assert (record.source, record.origin, record.name) == ("derived", "the-target", "draft")
    assert record.target_fingerprint == model_fingerprint(target)
    assert record.fingerprint == model_fingerprint(tmp_path / "draft")
    names = ("draft", "target")
    hashes = {vocabulary_hash(tmp_path / name / "tokenizer.json") for name in names}
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("skipped", "reason"),
    [
        ((), "at least one layer and at most 3"),
        ((0, 1, 2, 3), "at least one layer and at most 3"),
        ((4,), "layers 0 to 3; it has no layer 4"),
        ((-1,), "no layer -1"),
    ],
)
def test_layers_that_cannot_be_skipped(tmp_path: Path, skipped: tuple[int, ...], reason: str) -> None:
    target = write_model_folder(tmp_path / "target")
    with pytest.raises(AcespecError, match=reason):
        derive_draft(target, tmp_path / "draft", skipped, origin="target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target"]


def test_layers_numbered_by_a_period_are_refused(tmp_path: Path) -> None:
    target = write_model_folder(tmp_path / "target")
    config = json.loads((target / "config.json").read_text()) | {"sliding_window_pattern": 2}
    (target / "config.json").write_text(json.dumps(config))
    with pytest.raises(AcespecError, match="sliding_window_pattern"):
        derive_draft(target, tmp_path / "draft", (1,), origin="target")


def test_an_existing_folder_is_never_overwritten(tmp_path: Path) -> None:
    target = write_model_folder(tmp_path / "target")
    (tmp_path / "draft").mkdir()
    with pytest.raises(AcespecError, match="exists already"):
        derive_draft(target, tmp_path / "draft", (1,), origin="target")


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    target = write_model_folder(tmp_path / "target")
    (target / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(AcespecError, match="not a whole safetensors file"):
        derive_draft(target, tmp_path / "draft", (1,), origin="target")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target"]


# --- which layers -------------------------------------------------------------------------------------------


def silence(model: Any, layer: int) -> None:
    """Make a layer add nothing to the hidden state."""
    with torch.no_grad():
        model.model.layers[layer].self_attn.o_proj.weight.zero_()
        model.model.layers[layer].mlp.down_proj.weight.zero_()


def test_layers_that_do_nothing_are_chosen_first() -> None:
    model = llama()
    silence(model, 2)
    silence(model, 5)
    texts = [Continuation(TOKENS[0], 8), Continuation(TOKENS[0, 5:20], 3)]
    choice = choose_layers(model, texts, 2)
    assert choice.skipped_layers == (2, 5)
    assert choice.acceptance == pytest.approx(1.0, abs=1e-6)
    assert choose_layers(model, texts, 3).acceptance < 0.999


def test_choosing_leaves_the_model_as_it_was() -> None:
    model = llama()
    before = logits(model)
    choose_layers(model, [Continuation(TOKENS[0], 8)], 2)
    assert torch.equal(logits(model), before)


def test_choosing_from_a_folder_is_repeatable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_choice, "CALIBRATION_PROMPTS", layer_choice.CALIBRATION_PROMPTS[:2])
    monkeypatch.setattr(layer_choice, "CONTINUATION_TOKENS", 8)
    model = llama()
    silence(model, 4)
    target = save(model, tmp_path / "target")
    first, second = (choose_layers_of(target, 1) for _ in range(2))
    assert first == second
    assert first.skipped_layers == (4,)
    with pytest.raises(AcespecError, match="skip 1 to 5"):
        choose_layers_of(target, 6)


def test_nucleus_equals_the_definition() -> None:
    torch.manual_seed(1)
    rows = torch.randn(50, 12) * 3
    for row, result in zip(rows, nucleus(rows, 0.9), strict=True):
        probs = torch.softmax(row, -1).tolist()
        kept: list[int] = []
        for token in sorted(range(12), key=lambda token: -probs[token]):
            if sum(probs[other] for other in kept) >= 0.9:
                break
            kept.append(token)
        total = sum(probs[token] for token in kept)
        expected = [probs[token] / total if token in kept else 0.0 for token in range(12)]
        assert result.tolist() == pytest.approx(expected, abs=1e-6)
