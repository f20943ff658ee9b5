"""The Transformers engine against fresh forwards of whole sequences, without any cache."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import MambaConfig, MambaForCausalLM, PreTrainedModel

from acespec.cloud_verifier.engine import TargetInfo
from acespec.cloud_verifier.transformers_engine import TransformersEngine
from acespec.errors import AcespecError
from acespec.models import model_fingerprint, vocabulary_hash
from model_folder import tiny_tokenizer
from tiny_families import CONTEXT, SUPPORTED
from tiny_target import ARCHITECTURES, MAX_CONTEXT, PADDED_VOCAB, tiny_model, write_target_folder

VOCAB = 257
INFO = TargetInfo("tiny", "f" * 64, "a" * 64, VOCAB, MAX_CONTEXT)
MODELS = {architecture: tiny_model(architecture).double() for architecture in ARCHITECTURES}
"""At float64, so that what differs by more than 1e-5 is wrong and not rounded."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small only wait for their threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fresh_logits(model: PreTrainedModel, tokens: list[int]) -> NDArray[np.float32]:
    """Logits ``[len(tokens), VOCAB]`` of one forward without a cache."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0, :, :VOCAB]
    return logits.numpy()


def ids(tokens: list[int]) -> NDArray[np.int64]:
    return np.array(tokens, dtype=np.int64)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_chain_after_a_rollback_sees_what_a_fresh_forward_sees(architecture: str) -> None:
    model = MODELS[architecture]
    engine = TransformersEngine(model, INFO)
    prompt, rejected, chain = [*range(60, 80)], [1, 2, 3, 4, 5], [9, 8, 7]
    sequence = engine.open(64)
    engine.prefill(sequence, ids(prompt))
    engine.verify(sequence, ids(rejected))
    engine.rollback(sequence, len(prompt) + 2)
    logits = engine.verify(sequence, ids(chain))
    assert logits.shape == (3, VOCAB)
    assert logits.dtype == np.float32
    expected = fresh_logits(model, [*prompt, *rejected[:2], *chain])[-3:]
    np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", SUPPORTED)
def test_every_family_can_be_rolled_back_and_verified(family: str) -> None:
    """Windows of eight positions slide over the rolled-back rows; the head's padding is cut."""
    model = SUPPORTED[family]().double()
    engine = TransformersEngine(model, replace(INFO, max_context=CONTEXT))
    prompt = [(53 * i + 11) % VOCAB for i in range(20)]
    sequence = engine.open(64)
    engine.prefill(sequence, ids(prompt))
    engine.verify(sequence, ids([1, 2, 3, 4, 5]))
    engine.rollback(sequence, len(prompt) + 2)
    logits = engine.verify(sequence, ids([9, 8, 7, 6]))
    expected = fresh_logits(model, [*prompt, 1, 2, 9, 8, 7, 6])[-4:]
    np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=0)


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


Step = tuple[str, int, list[int]]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["prefill", "verify", "rollback"]),
            st.integers(0, 12),
            st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=7),
        ),
        max_size=10,
    )
)
@settings(max_examples=30, deadline=None)
def test_any_steps_leave_the_cache_of_the_tokens_kept(architecture: str, steps: list[Step]) -> None:
    """Two sequences side by side, so that one could disturb the other."""
    model = MODELS[architecture]
    engine = TransformersEngine(model, INFO)
    first, second = engine.open(64), engine.open(64)
    texts: dict[int, list[int]] = {first: [], second: []}
    for i, (kind, count, tokens) in enumerate(steps):
        sequence = (first, second)[i % 2]
        text = texts[sequence]
        if kind == "rollback":
            kept = max(0, len(text) - count)
            engine.rollback(sequence, kept)
            del text[kept:]
            continue
        text += tokens
        if kind == "prefill":
            engine.prefill(sequence, ids(tokens))
        else:
            expected = fresh_logits(model, text)[-len(tokens) :]
            np.testing.assert_allclose(engine.verify(sequence, ids(tokens)), expected, atol=1e-5, rtol=0)
    for sequence, text in texts.items():
        np.testing.assert_allclose(
            engine.verify(sequence, ids([5])), fresh_logits(model, [*text, 5])[-1:], atol=1e-5, rtol=0
        )


def test_a_sequence_grows_past_its_first_buffer() -> None:
    """A prompt longer than the spare rows, fed bit by bit and rolled back across the buffer's growth."""
    config_room = 1200
    model = tiny_model()
    model.config.max_position_embeddings = config_room
    engine = TransformersEngine(model, TargetInfo("tiny", "", "", VOCAB, config_room))
    text = [(7 * i) % VOCAB for i in range(900)]
    sequence = engine.open(64)
    engine.prefill(sequence, ids(text[:3]))
    engine.prefill(sequence, ids(text[3:500]))
    engine.rollback(sequence, 100)
    engine.prefill(sequence, ids(text[100:600]))
    engine.prefill(sequence, ids(text[600:899]))
    logits = engine.verify(sequence, ids(text[899:]))
    np.testing.assert_allclose(logits, fresh_logits(model, text)[-1:], atol=1e-4, rtol=0)


def test_a_step_copies_its_own_rows_and_not_the_context() -> None:
    engine = TransformersEngine(MODELS["llama"], INFO)
    sequence = engine.open(64)
    engine.prefill(sequence, ids([1, 2, 3]))
    layer = engine._caches[sequence].layers[0]
    place = layer.keys.data_ptr()
    engine.verify(sequence, ids([4, 5]))
    engine.rollback(sequence, 4)
    engine.verify(sequence, ids([6]))
    assert layer.keys.data_ptr() == place
    assert layer.keys.shape[-2] == 5


def test_an_empty_prefill_is_nothing() -> None:
    engine = TransformersEngine(MODELS["llama"], INFO)
    sequence = engine.open(64)
    engine.prefill(sequence, ids([]))
    np.testing.assert_allclose(
        engine.verify(sequence, ids([3])), fresh_logits(MODELS["llama"], [3]), atol=1e-5, rtol=0
    )


def test_prefill_computes_no_logits() -> None:
    model = tiny_model()
    calls: list[int] = []
    model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    engine = TransformersEngine(model, INFO)
    sequence = engine.open(64)
    engine.prefill(sequence, ids([1, 2, 3]))
    assert calls == []
    engine.verify(sequence, ids([4]))
    assert calls == [1]


def test_a_closed_sequence_is_gone() -> None:
    engine = TransformersEngine(MODELS["llama"], INFO)
    sequence = engine.open(64)
    engine.close(sequence)
    with pytest.raises(KeyError):
        engine.verify(sequence, ids([1]))
    assert engine.open(64) != sequence


# --- loading --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target_folder(tmp_path_factory.mktemp("models") / "tiny-llama")


def test_a_loaded_folder_says_what_it_is(folder: Path) -> None:
    engine = TransformersEngine.load(folder)
    assert engine.info == TargetInfo(
        name="tiny-llama",
        fingerprint=model_fingerprint(folder),
        vocabulary_hash=vocabulary_hash(folder / "tokenizer.json"),
        vocab_size=VOCAB,
        max_context=MAX_CONTEXT,
    )
    sequence = engine.open(64)
    logits = engine.verify(sequence, ids([1, 2]))
    np.testing.assert_allclose(logits, fresh_logits(MODELS["llama"], [1, 2]), atol=1e-5, rtol=0)


def test_lower_precision_is_allowed_with_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        engine = TransformersEngine.load(folder, dtype="bf16")
    assert "nearly ties" in caplog.text
    sequence = engine.open(64)
    logits = engine.verify(sequence, ids([1, 2]))
    assert logits.dtype == np.float32
    difference = np.abs(logits - fresh_logits(MODELS["llama"], [1, 2])).max()
    assert 1e-4 < difference < 0.5


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


def test_a_state_that_cannot_be_rolled_back_is_refused() -> None:
    model = MambaForCausalLM(
        MambaConfig(vocab_size=PADDED_VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4)
    )
    with pytest.raises(AcespecError, match="cannot be rolled back"):
        TransformersEngine(model, INFO)
