"""Bundles on disk: what is sealed comes back, what was touched is refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from acespec.errors import AcespecError
from acespec.models.files import sha256_of
from acespec.models.latency import LatencyPoint, LatencyProfile
from acespec.models.manifest import (
    AttentionMask,
    Bundle,
    BundleError,
    BundleManifest,
    GraphStep,
    GraphVariant,
    PrefillGraph,
    TensorSpec,
    load_bundle,
    write_manifest,
)

FILES = {"portable.onnx": b"graph", "portable.onnx.data": b"weights", "tokenizer.json": b"{}"}


TOP_LOGITS = {"name": "top_logits", "dtype": "float", "shape": [1, "M", "K"]}


def write_bundle(folder: Path) -> BundleManifest:
    """A bundle of three small files; nothing runs them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    tokens = TensorSpec(name="input_ids", dtype="int64", shape=(1, "N"))
    logits = TensorSpec(name="logits", dtype="float", shape=(1, "N", 257))
    manifest = BundleManifest(
        model_name="tiny",
        source_fingerprint="ab" * 32,
        vocabulary_hash="cd" * 32,
        vocab_size=257,
        end_token_ids=(256,),
        bos_token=None,
        eos_token="<end>",  # noqa: S106 - a token of text
        tokenizer_file="tokenizer.json",
        chat_template_file=None,
        num_layers=2,
        num_kv_heads=2,
        head_dim=8,
        max_context=96,
        precision="fp32",
        graphs=(
            GraphVariant(
                name="portable",
                opset=21,
                bucket_files={16: "portable.onnx", 1: "portable.onnx"},
                masks=(AttentionMask(name="mask"),),
                inputs=(tokens,),
                outputs=(logits,),
            ),
        ),
        file_sha256={name: sha256_of(folder / name) for name in FILES},
    )
    write_manifest(folder, manifest)
    return manifest


def edited(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest's JSON in place."""
    path = folder / "manifest.json"
    raw = json.loads(path.read_text())
    edit(raw)
    path.write_text(json.dumps(raw))


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path)
    bundle = load_bundle(str(tmp_path))
    assert bundle == Bundle(tmp_path, manifest)
    assert bundle.graph("portable").buckets == (1, 16)
    assert bundle.tokenizer_path == tmp_path / "tokenizer.json"
    assert bundle.chat_template is None


def test_the_hash_is_the_file_s_sha256(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")  # the test vector of FIPS 180-4
    assert sha256_of(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("name", FILES)
def test_a_changed_or_missing_file_is_named_with_the_remedy(tmp_path: Path, name: str) -> None:
    write_bundle(tmp_path)
    (tmp_path / name).write_bytes(FILES[name] + b"!")
    with pytest.raises(BundleError, match=rf"{name} is damaged.*export it again") as caught:
        load_bundle(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / name).unlink()
    with pytest.raises(BundleError, match=rf"{name} cannot be read \(No such file.*export it again"):
        load_bundle(tmp_path)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(BundleError, match=r"tokenizer\.json is not a regular file"):
        load_bundle(tmp_path)


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"is not a bundle: it has no manifest\.json"):
        load_bundle(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda raw: raw.update(format_version=2), "format version 2, this program reads 3"),
        (lambda raw: raw.pop("format_version"), "format version None"),
        (lambda raw: raw.update(colour="red"), "invalid at colour"),
        (lambda raw: raw.pop("head_dim"), "invalid at head_dim"),
        (lambda raw: raw.update(num_layers=0), "invalid at num_layers"),
        (lambda raw: raw.update(max_context=2**24), "invalid at max_context"),
        (lambda raw: raw.update(end_token_ids=[-1]), r"invalid at end_token_ids\.0"),
        (lambda raw: raw["graphs"][0].update(bucket_files={"2000": "portable.onnx"}), "bucket_files.2000"),
        (lambda raw: raw.update(tokenizer_file="../tokenizer.json"), "invalid at tokenizer_file"),
        (lambda raw: raw.update(tokenizer_file="/etc/passwd"), "invalid at tokenizer_file"),
        (lambda raw: raw["file_sha256"].update({"..": "ab" * 32}), r"invalid at file_sha256\.\.\."),
        (lambda raw: raw["file_sha256"].pop("tokenizer.json"), "no hash for tokenizer.json"),
        (lambda raw: raw["graphs"][0].update(bucket_files={}), "invalid at graphs.0.bucket_files"),
        (lambda raw: raw["graphs"][0].update(bucket_files={"0": "portable.onnx"}), "bucket_files.0"),
        (lambda raw: raw["graphs"][0].update(bucket_files={"1": "other.onnx"}), "no hash for other.onnx"),
        (lambda raw: raw["graphs"][0]["masks"][0].update(window=2**63), r"masks\.0\.window"),
        (lambda raw: raw["graphs"][0].update(masks=[{"name": "mask"}] * 2), "two masks share a name"),
        (lambda raw: raw["graphs"][0]["inputs"].append(raw["graphs"][0]["inputs"][0]), "two inputs share"),
        (
            lambda raw: raw["graphs"][0]["outputs"].append(TOP_LOGITS | {"shape": []}),
            "top_logits does not end",
        ),
        (lambda raw: raw["graphs"][0]["outputs"].append(TOP_LOGITS), "top_logits does not end in a number"),
        (lambda raw: raw["graphs"].append(raw["graphs"][0]), "two graphs share a name"),
        (lambda raw: raw["file_sha256"].update({"x" * 200: "ab" * 32}), "at most 120 characters"),
        (lambda raw: raw["file_sha256"].update({"a\nb": "ab" * 32}), r"invalid at file_sha256\.a b"),
        (lambda raw: raw.update(model_name="\ud800"), "text that is not Unicode"),
        (
            lambda raw: raw["file_sha256"].pop("portable.onnx.data"),
            r"portable\.onnx\.data is not the bundle's",
        ),
    ],
)
def test_a_manifest_that_does_not_hold_is_refused_by_field(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    write_bundle(tmp_path)
    edited(tmp_path, edit)
    with pytest.raises(BundleError, match=message) as caught:
        load_bundle(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b"null", b"[" * 100_000])
def test_a_manifest_that_is_no_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    write_bundle(tmp_path)
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"manifest\.json"):
        load_bundle(tmp_path)


def test_an_unknown_graph_is_refused_with_those_there_are(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    with pytest.raises(BundleError, match=r"no 'native' graph \(it has: portable\)"):
        load_bundle(tmp_path).graph("native")


def test_a_graph_s_steps_are_its_buckets_by_width_and_then_the_prompt_s(tmp_path: Path) -> None:
    (variant,) = write_bundle(tmp_path).graphs
    wide = variant.model_copy(update={"prefill": PrefillGraph(width=64, file="wide.onnx")})
    buckets = (GraphStep("portable.onnx", 1, 1), GraphStep("portable.onnx", 16, 16))
    assert variant.steps == buckets
    assert wide.steps == (*buckets, GraphStep("wide.onnx", 64, 1))
    assert wide.files == ("portable.onnx", "wide.onnx")


def test_a_manifest_is_replaced_whole_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write_bundle(tmp_path)
    before = sorted(tmp_path.iterdir())

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    other = manifest.model_copy(update={"model_name": "other"})
    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(AcespecError, match=r"manifest\.json \(No space left"):
        write_manifest(tmp_path, other)
    assert sorted(tmp_path.iterdir()) == before
    monkeypatch.setattr(Path, "write_text", full_disk)
    monkeypatch.setattr(Path, "unlink", full_disk)  # as on a read-only disk
    with pytest.raises(AcespecError, match=r"manifest\.json \(No space left"):
        write_manifest(tmp_path, other)
    assert sorted(tmp_path.iterdir()) == before
    assert load_bundle(tmp_path).manifest == manifest


def profile(*points: tuple[int, int, float]) -> LatencyProfile:
    return LatencyProfile(
        machine="bench",
        threads=1,
        points=tuple(LatencyPoint(bucket=b, context=c, median_ms=ms) for b, c, ms in points),
    )


def test_a_step_s_time_is_linear_between_contexts_and_constant_outside() -> None:
    known = profile((8, 512, 30.0), (8, 64, 10.0), (8, 256, 20.0), (1, 64, 5.0))
    by_hand = {0: 10.0, 64: 10.0, 160: 15.0, 256: 20.0, 320: 22.5, 512: 30.0, 9000: 30.0}
    assert {context: known.step_ms(8, context) for context in by_hand} == by_hand
    assert known.step_ms(1, 400) == 5.0
    assert known.buckets == (1, 8)
    with pytest.raises(KeyError, match="bucket 16"):
        known.step_ms(16, 64)


@given(st.dictionaries(st.integers(0, 4096), st.floats(0.1, 1e3), min_size=1), st.integers(0, 5000))
def test_a_step_s_time_stays_between_its_neighbours(by_context: dict[int, float], at: int) -> None:
    known = profile(*((4, context, ms) for context, ms in by_context.items()))
    below = max((context for context in by_context if context <= at), default=min(by_context))
    above = min((context for context in by_context if context >= at), default=max(by_context))
    low, high = sorted((by_context[below], by_context[above]))
    assert low - 1e-9 <= known.step_ms(4, at) <= high + 1e-9


@pytest.mark.parametrize(
    "points", [(), ((1, 64, 5.0), (1, 64, 6.0)), ((1, 64, 0.0),), ((1, 64, float("nan")),)]
)
def test_a_profile_that_says_nothing_or_contradicts_itself_is_refused(
    points: tuple[tuple[int, int, float], ...],
) -> None:
    with pytest.raises(ValidationError):
        profile(*points)


def test_a_profile_survives_the_manifest(tmp_path: Path) -> None:
    latency = profile((1, 64, 5.25), (16, 64, 9.125))
    write_manifest(tmp_path, write_bundle(tmp_path).model_copy(update={"latency": latency}))
    assert load_bundle(tmp_path).manifest.latency == latency
