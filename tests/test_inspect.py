"""``acespec inspect``: memory from shapes worked out by hand, and what is shown of it."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from acespec.edge_runtime.inspect_command import inspect, size
from acespec.edge_runtime.latency_plot import plot_latency
from acespec.edge_runtime.plan_files import PlanRecord
from acespec.edge_runtime.plan_key import PlanKey, StepShape
from acespec.errors import AcespecError
from acespec.models.bundle_report import fold, report_bundle, weights_files, weights_format
from acespec.models.files import sha256_of
from acespec.models.latency import LatencyPoint, LatencyProfile
from acespec.models.manifest import (
    AttentionMask,
    BundleManifest,
    GraphVariant,
    PrefillGraph,
    Quantization,
    TensorSpec,
    load_bundle,
    write_manifest,
)

LAYERS, HEADS, HEAD_DIM, CONTEXT, VOCAB = 2, 2, 8, 96, 257
LATENCY = LatencyProfile(
    machine="a small computer",
    threads=2,
    points=tuple(
        LatencyPoint(bucket=bucket, context=context, median_ms=float(bucket + context / 10))
        for bucket in (1, 16)
        for context in (64, 80)
    ),
    prefill=(LatencyPoint(bucket=32, context=0, median_ms=40.0),),
)


def graph_bytes(weights: str) -> bytes:
    """Like a graph whose tensors lie in the file ``weights``: the entry of onnx.proto that says so."""
    entry = b"\x0a\x08location\x12" + bytes([len(weights)]) + weights.encode()
    return b"a graph " + entry


FILES = {
    "portable.onnx": graph_bytes("portable.data"),
    "portable.data": bytes(1000),
    "native.1.onnx": graph_bytes("native.data"),
    "native.16.onnx": graph_bytes("native.data") + b"longer",
    "native.prefill.onnx": graph_bytes("native.data"),
    "native.data": bytes(5000),
    "tokenizer.json": b"{}",
}


def tensors(kind: str, dtype: str, shape: tuple[int | str, ...]) -> list[TensorSpec]:
    """``kind_key.i`` and ``kind_value.i`` of every layer."""
    return [
        TensorSpec(name=f"{kind}_{part}.{layer}", dtype=dtype, shape=shape)
        for layer in range(LAYERS)
        for part in ("key", "value")
    ]


PORTABLE = GraphVariant(
    name="portable",
    opset=21,
    bucket_files={16: "portable.onnx", 1: "portable.onnx"},
    masks=(AttentionMask(name="mask"),),
    inputs=(
        TensorSpec(name="input_ids", dtype="int64", shape=(1, "N")),
        TensorSpec(name="mask", dtype="float", shape=(1, 1, "N", "T")),
        *tensors("past", "float", ("S", HEADS, HEAD_DIM)),
    ),
    outputs=(
        TensorSpec(name="logits", dtype="float", shape=(1, "M", VOCAB)),
        *tensors("new", "float", ("N", HEADS, HEAD_DIM)),
    ),
)
NATIVE = GraphVariant(
    name="native",
    opset=24,
    bucket_files={1: "native.1.onnx", 16: "native.16.onnx"},
    prefill=PrefillGraph(width=32, file="native.prefill.onnx"),
    rows=160,
    masks=(AttentionMask(name="full"), AttentionMask(name="sliding", window=24)),
    inputs=(
        TensorSpec(name="full", dtype="float16", shape=(1, 1, "N", 160)),
        TensorSpec(name="sliding", dtype="float16", shape=(1, 1, "N", 160)),
        *tensors("past", "float16", (1, HEADS, 160, HEAD_DIM)),
    ),
    outputs=(
        TensorSpec(name="top_logits", dtype="float", shape=(1, "M", 64)),
        TensorSpec(name="top_ids", dtype="int64", shape=(1, "M", 64)),
        TensorSpec(name="log_sum_exp", dtype="float", shape=(1, "M")),
        *tensors("present", "float16", (1, HEADS, 160, HEAD_DIM)),
    ),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle that nothing can run, of a portable graph and a native one in the split layout."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    manifest = BundleManifest(
        model_name="tiny",
        source_fingerprint="ab" * 32,
        vocabulary_hash="cd" * 32,
        vocab_size=VOCAB,
        end_token_ids=(256,),
        bos_token=None,
        eos_token=None,
        tokenizer_file="tokenizer.json",
        chat_template_file=None,
        num_layers=LAYERS,
        num_kv_heads=HEADS,
        head_dim=HEAD_DIM,
        max_context=CONTEXT,
        precision="int4",
        quantization=Quantization(bits=4, block=32, symmetric=False, head_bits=8),
        graphs=(PORTABLE, NATIVE),
        file_sha256={name: sha256_of(folder / name) for name in FILES},
        latency=LATENCY,
    )
    write_manifest(folder, manifest)
    return folder


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(inspect, list(map(str, words)), env={"COLUMNS": "200"})


def test_memory_is_what_the_shapes_say(folder: Path) -> None:
    portable, native = report_bundle(load_bundle(folder), tree_rows=100).variants

    row = LAYERS * 2 * HEADS * HEAD_DIM * 4
    assert (portable.context_bytes, portable.tree_bytes) == (CONTEXT * row, 100 * row)
    one, sixteen = portable.steps
    assert (one.logits_bytes, sixteen.logits_bytes) == (VOCAB * 4, 16 * VOCAB * 4)
    assert (one.mask_bytes, sixteen.mask_bytes) == (197 * 4, 16 * 212 * 4)  # 196 rows and the step's own
    assert (one.new_rows_bytes, sixteen.new_rows_bytes) == (row, 16 * row)

    assert (native.context_rows, native.tree_rows) == (CONTEXT, 160 - CONTEXT)
    assert native.context_bytes + native.tree_bytes == 160 * row // 2  # float16
    one, sixteen, prompt = native.steps
    assert (prompt.width, prompt.prefill) == (32, True)
    best = 64 * (4 + 8) + 4  # 64 logits and ids, and the row's log-sum-exp
    assert (one.logits_bytes, sixteen.logits_bytes, prompt.logits_bytes) == (best, 16 * best, best)
    assert prompt.mask_bytes == 2 * 32 * 160 * 2  # two masks of float16
    assert prompt.new_rows_bytes == 0  # written in place


def test_a_layout_holds_the_weights_once_an_engine(folder: Path) -> None:
    portable, native = report_bundle(load_bundle(folder)).variants
    assert (portable.layout, native.layout) == ("profiles", "split")

    graph = len(FILES["native.16.onnx"])
    profiles, split = native.layouts
    assert (profiles.engines, profiles.weights_bytes) == (1, graph + 5000)
    assert (split.engines, split.weights_bytes) == (3, 3 * (graph + 5000))
    widest = max(step.total_bytes for step in native.steps)
    assert split.total_bytes == split.weights_bytes + native.context_bytes + native.tree_bytes + widest
    on_disk = sum(len(FILES[name]) for name in FILES if name.startswith("native"))
    assert native.weights_bytes == on_disk  # the weights file once


def test_tensors_of_alike_layers_are_one_line(folder: Path) -> None:
    assert [tensor.name for tensor in report_bundle(load_bundle(folder)).variants[0].inputs] == [
        "input_ids",
        "mask",
        "past_key.0..1",
        "past_value.0..1",
    ]
    odd = [TensorSpec(name=f"key.{layer}", dtype="float", shape=(2,)) for layer in (0, 1, 2, 5)]
    other = TensorSpec(name="key.3", dtype="float16", shape=(2,))
    nonsense = TensorSpec(name="key." + "9" * 5000, dtype="float", shape=(2,))
    assert fold([nonsense])[0].name == nonsense.name
    assert [(tensor.name, tensor.count) for tensor in fold([*odd, other])] == [
        ("key.0..2,5", 4),
        ("key.3", 1),
    ]


def test_a_real_graph_names_its_weights() -> None:
    pytest.importorskip("torch")
    bundle = importlib.import_module("tiny_bundle").tiny_bundle()
    for variant in bundle.manifest.graphs:
        for file in variant.files:
            (weights,) = weights_files(bundle, file)
            assert bundle.path(weights).stat().st_size > bundle.path(file).stat().st_size / 10


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (
            {"bits": 4, "block": 32, "symmetric": False, "head_bits": 8},
            "int4 weights (blocks of 32, asymmetric, head int8)",
        ),
        (
            {"bits": 8, "block": None, "symmetric": True, "head_bits": 8, "activation_bits": 8},
            "int8 weights (a scale an output, symmetric, head int8, activations int8 with a scale a row)",
        ),
        (
            {"bits": 8, "block": 128, "symmetric": True, "head_bits": None, "embedding_bits": 8},
            "int8 weights (blocks of 128, symmetric, head in floats, embeddings int8)",
        ),
    ],
)
def test_the_weights_form_is_put_in_words(folder: Path, form: dict[str, Any], words: str) -> None:
    manifest = load_bundle(folder).manifest
    assert weights_format(manifest.model_copy(update={"quantization": Quantization(**form)})) == words
    assert weights_format(manifest.model_copy(update={"quantization": None, "precision": "fp16"})) == "fp16"


def test_everything_is_shown(folder: Path) -> None:
    result = run(folder)
    assert result.exit_code == 0, result.output
    for expected in (
        "int4 weights (blocks of 32, asymmetric, head int8)",
        "graph native, opset 24, layout split",
        "prompt 32",
        "full full, sliding 24 positions",
        "largest 64, last row",
        "past_key.0..1",
        "native.prefill.onnx",
        "at 80 rows",
        "24.00",  # 16 tokens behind 80 rows
        "onnxruntime/cpu on a small computer, 2 threads; a prompt's 32 tokens at once: 40.00 ms",
    ):
        assert expected in result.output
    assert "TensorRT" not in result.output


def test_names_are_shown_as_they_are_and_move_no_cursor(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["model_name"] = "a[/x]\x1b[2Jb"
    manifest["latency"]["machine"] = "[red]c"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    result = run(folder)
    assert result.exit_code == 0, result.output
    assert "a[/x]?[2Jb: int4 weights" in result.output
    assert "on [red]c, 2 threads" in result.output
    assert "[1, N]" in result.output


def test_json_has_the_same_figures(folder: Path) -> None:
    shown = json.loads(run(folder, "--json").output)
    report = report_bundle(load_bundle(folder))
    for described, variant in zip(shown["variants"], report.variants, strict=True):
        assert described["context_bytes"] == variant.context_bytes
        assert [layout["total_bytes"] for layout in described["layouts"]] == [
            layout.total_bytes for layout in variant.layouts
        ]
    assert shown["variants"][1]["masks"][1] == {"name": "sliding", "window": 24}
    assert shown["latency"] == LATENCY.model_dump(mode="json")
    assert shown["plans"] == []


def write_plan(folder: Path, **changes: Any) -> None:
    """A plan of the first native graph, with its record."""
    described: dict[str, Any] = {
        "runtime": "tensorrt",
        "version": "10.16.0.1",
        "compute_capability": "8.7",
        "graph": "native",
        "graph_file": "native.1.onnx",
        "graph_sha256": sha256_of(folder / "native.1.onnx"),
        "weights_sha256": {"native.data": sha256_of(folder / "native.data")},
        "rows": 160,
        "steps": (StepShape(width=1, logit_rows=1),),
    }
    key = PlanKey(**(described | changes))
    engines = folder / "engines"
    engines.mkdir()
    (engines / f"{key.stem}.plan").write_bytes(b"plan")
    record = PlanRecord(key=key, plan_sha256=hashlib.sha256(b"plan").hexdigest())
    (engines / f"{key.stem}.json").write_text(record.model_dump_json())


def test_plans_beside_the_bundle_are_shown(folder: Path) -> None:
    write_plan(folder)
    (plan,) = json.loads(run(folder, "--json").output)["plans"]
    assert plan == {
        "file": "native.1.tensorrt.sm87.plan",
        "size_bytes": 4,
        "runtime": "tensorrt 10.16.0.1",
        "compute_capability": "8.7",
        "graph_file": "native.1.onnx",
        "widths": [1],
        "rows": 160,
        "fault": "",
    }
    assert "tensorrt 10.16.0.1" in run(folder).output


def test_a_plan_of_another_graph_or_without_a_record_is_shown_as_such(folder: Path) -> None:
    write_plan(folder, weights_sha256={"native.data": "ef" * 32})
    (folder / "engines/stray.plan").write_bytes(b"")
    (folder / "engines/half.plan").write_bytes(b"")
    (folder / "engines/half.json").write_text('{"format_version": 1')
    faults = {plan["file"]: plan["fault"] for plan in json.loads(run(folder, "--json").output)["plans"]}
    assert faults == {
        "half.plan": "its record is missing or cannot be read",
        "native.1.tensorrt.sm87.plan": "it was built of another native.data",
        "stray.plan": "its record is missing or cannot be read",
    }
    assert run(folder).exit_code == 0


def test_a_changed_file_is_refused_by_name(folder: Path) -> None:
    (folder / "native.data").write_bytes(bytes(5001))
    error = run(folder).exception
    assert isinstance(error, AcespecError)
    assert f"bundle file {folder / 'native.data'} is damaged" in str(error)


def test_a_tensor_of_an_unknown_type_is_refused(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["graphs"][0]["inputs"][1]["dtype"] = "float3"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    error = run(folder).exception
    assert isinstance(error, AcespecError)
    assert "unknown type 'float3'" in str(error)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.00 GiB")],
)
def test_sizes_are_readable(count: int, shown: str) -> None:
    assert size(count) == shown


def test_the_plot_is_a_picture_of_every_bucket(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = folder.parent / "latency.svg"
    assert run(folder, "--plot", picture).exit_code == 0
    drawn = picture.read_text()
    assert "1 token " in drawn  # matplotlib keeps each text as a comment beside its outline
    assert "16 tokens " in drawn
    png = folder.parent / "latency.png"
    plot_latency(LATENCY, "tiny", png)
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_one_line(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("nonesuch/latency.png", "latency.nonesuch"):
        error = run(folder, "--plot", folder / name).exception
        assert isinstance(error, AcespecError)
        assert "cannot draw into" in str(error)


def test_without_matplotlib_the_command_that_brings_it_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    error = run(folder, "--plot", folder / "latency.png").exception
    assert isinstance(error, AcespecError)
    assert "in a clone of acespec, run: pip install '.[plot]'" in str(error)


def test_without_a_profile_there_is_nothing_to_draw(folder: Path) -> None:
    bundle = load_bundle(folder)
    write_manifest(folder, bundle.manifest.model_copy(update={"latency": None}))
    error = run(folder, "--plot", folder / "latency.png").exception
    assert isinstance(error, AcespecError)
    assert f"measure one with: acespec profile {folder}" in str(error)
    assert "No latency profile" in run(folder).output
