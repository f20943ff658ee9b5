"""The export from folder to bundle: what it writes, what it refuses, and that nothing is left half done."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine
from acespec.errors import AcespecError
from acespec.export import write as write_module
from acespec.export.bundle import export_bundle
from acespec.export.check import (
    ExportShapeError,
    ExportToleranceError,
    GraphRunner,
    compare_logits,
    torch_logits,
)
from acespec.export.commands import export
from acespec.export.graph import ExportError
from acespec.export.lower_portable import lower_portable
from acespec.export.options import ExportOptions, parse_buckets
from acespec.export.staging import replaced_bundle
from acespec.models.architecture import UnsupportedModelError
from acespec.models.exportable import DecoderShape, ModelFolderError
from acespec.models.manifest import Bundle, load_bundle
from acespec.models.probe import branching_probe, causal_probe
from acespec.models.tolerances import TOLERANCES
from acespec.speculation import DraftLogits
from model_folder import tiny_tokenizer
from test_manifest import write_bundle
from tiny_bundle import tiny_bundle
from tiny_target import tiny_model

GRAPH = Path("portable.onnx")


def model_folder(folder: Path, architecture: str) -> Path:
    tiny_model(architecture).save_pretrained(folder)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}}))
    return folder


@dataclass(frozen=True)
class Exported:
    bundle: Bundle
    said: list[str]


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A tied head, normalised queries and four bits in one bundle, and what the export said."""
    folder = tmp_path_factory.mktemp("qwen3")
    said: list[str] = []
    bundle = export_bundle(
        model_folder(folder / "tiny-qwen3", "qwen3"),
        folder / "bundle",
        ExportOptions((8, 1, 8), context=64, precision="int4"),
        said.append,
    )
    return Exported(bundle, said)


def test_the_graph_has_standard_operators_only_and_the_interface_of_the_manifest() -> None:
    variant = tiny_bundle().manifest.graphs[0]
    graph = onnx.load(tiny_bundle().folder / GRAPH, load_external_data=False)
    assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 21)]
    assert {node.domain for node in graph.graph.node} == {""}
    assert not graph.functions
    assert [spec.name for spec in variant.inputs[:6]] == [
        "input_ids",
        "position_ids",
        "logit_rows",
        "mask",
        "past_key.0",
        "past_value.0",
    ]
    for specs, values in ((variant.inputs, graph.graph.input), (variant.outputs, graph.graph.output)):
        shapes = {
            value.name: tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in values
        }
        assert {spec.name: spec.shape for spec in specs} == shapes


def test_the_past_is_neither_concatenated_nor_repeated() -> None:
    """Keys and values of the past reach a matrix product through a transposition alone."""
    graph = onnx.load(tiny_bundle().folder / GRAPH, load_external_data=False).graph
    for layer in range(2):
        for kind in ("key", "value"):
            users = [node for node in graph.node if f"past_{kind}.{layer}" in node.input]
            assert {node.op_type for node in users} <= {"Transpose", "Shape"}
            (transposed,) = [node.output[0] for node in users if node.op_type == "Transpose"]
            assert {node.op_type for node in graph.node if transposed in node.input} == {"MatMul"}


def test_the_manifest_describes_the_model(qwen3: Exported) -> None:
    manifest = qwen3.bundle.manifest
    assert (manifest.num_layers, manifest.num_kv_heads, manifest.head_dim) == (2, 2, 16)
    assert manifest.model_name == "tiny-qwen3"
    assert manifest.vocab_size == 257
    assert manifest.max_context == 64
    assert manifest.end_token_ids == (256,)
    assert manifest.eos_token == "<end>"  # noqa: S105 - a token of text
    assert manifest.graphs[0].buckets == (1, 8)
    assert qwen3.bundle.chat_template == "{{ messages[0].content }}"
    assert tiny_bundle().chat_template is None
    assert tiny_bundle().manifest.max_context == 96


def test_four_bit_weights_are_stored_as_such_and_the_head_as_eight(qwen3: Exported) -> None:
    graph = onnx.load(qwen3.bundle.folder / GRAPH, load_external_data=False).graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert kinds["model.lm_head.weight.values"] == onnx.TensorProto.UINT8
    assert kinds["model.model.layers.0.self_attn.q_proj.weight.values"] == onnx.TensorProto.UINT4
    # 48 inputs do not divide into blocks of 32
    assert kinds["model.model.layers.1.mlp.down_proj.weight"] == onnx.TensorProto.FLOAT
    (block,) = {
        next(attribute.i for attribute in node.attribute if attribute.name == "block_size")
        for node in graph.node
        if node.op_type == "DequantizeLinear"
    }
    assert block == 32


def test_a_quantised_bundle_runs_and_says_how_often_it_agrees(qwen3: Exported) -> None:
    engine = OnnxRuntimeEngine(qwen3.bundle)
    text = causal_probe(list(range(40, 48)))
    logits = engine.forward(text.tokens, text.positions, text.mask).values
    expected = torch_logits(tiny_model("qwen3"), text, 257)
    correlation = np.corrcoef(logits.ravel(), expected.ravel())[0, 1]
    assert 0.9 < correlation < 1.0
    assert any("likeliest token is the full model's at" in line for line in qwen3.said)
    assert any("differ from PyTorch's by at most" in line for line in qwen3.said)


def test_a_graph_that_computes_something_else_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tampered(graph: onnx_ir.Model, shape: DecoderShape) -> None:
        weight = graph.graph.initializers["model.model.layers.1.self_attn.o_proj.weight"]
        weight.const_value.raw.data[0, 0] += 0.5  # type: ignore[union-attr]
        lower_portable(graph, shape)

    monkeypatch.setattr(write_module, "lower_portable", tampered)
    folder = model_folder(tmp_path / "model", "llama")
    with pytest.raises(ExportToleranceError, match=r"portable\.onnx differs from PyTorch by .* allowed are"):
        export_bundle(folder, tmp_path / "bundle", ExportOptions())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_shape_and_tolerance_are_different_errors() -> None:
    tolerance = TOLERANCES["fp32"]
    expected = np.zeros((3, 5), np.float32)

    def compare(values: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
        return compare_logits(DraftLogits(values), expected, GRAPH, tolerance)

    assert compare(expected + np.float32(5e-4), expected) == pytest.approx(5e-4)
    with pytest.raises(ExportToleranceError):
        compare(expected + np.float32(2e-3), expected)
    large = expected + np.float32(40)
    assert compare(large + np.float32(3e-3), large) == pytest.approx(3e-3, rel=1e-2)
    with pytest.raises(ExportToleranceError):
        compare(large + np.float32(5e-3), large)
    with pytest.raises(ExportToleranceError):
        compare(np.full_like(expected, np.nan), expected)
    with pytest.raises(ExportShapeError, match=r"shape \(3, 4\), PyTorch \(3, 5\)"):
        compare(expected[:, :4], expected)


TOP = DraftLogits(
    np.array([[3, 2]], np.float32), np.array([[1, 2]]), np.log(np.exp(np.arange(4)).sum(keepdims=True))
)
"""The two largest logits of 0, 3, 2 and 1."""


@pytest.mark.parametrize(
    "wrong",
    [
        replace(TOP, ids=np.array([[2, 1]])),
        replace(TOP, ids=np.array([[1, 3]]), values=np.array([[3, 1]], np.float32)),
        replace(TOP, values=TOP.values + np.float32(0.1)),
        replace(TOP, log_sum_exp=np.full(1, 3.3, np.float32)),
    ],
)
def test_the_largest_logits_are_checked_with_their_tokens_and_the_sum(wrong: DraftLogits) -> None:
    expected = np.array([[0, 3, 2, 1]], np.float32)
    assert compare_logits(TOP, expected, GRAPH, TOLERANCES["fp32"]) < 1e-6
    with pytest.raises(ExportToleranceError):
        compare_logits(wrong, expected, GRAPH, TOLERANCES["fp32"])


def test_a_graph_onnx_runtime_refuses_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / GRAPH).write_bytes(b"not a graph")
    with pytest.raises(ExportError, match=r"ONNX Runtime refuses portable\.onnx") as caught:
        GraphRunner(tmp_path / GRAPH, tiny_bundle().manifest.graphs[0])
    assert "\n" not in str(caught.value)


def test_the_probe_s_branches_see_the_prefix_and_themselves() -> None:
    probe = branching_probe(np.arange(6), num_branches=2, branch_length=2)
    seen = [np.flatnonzero(row).tolist() for row in probe.mask]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4], [0, 1, 4, 5]]
    assert probe.positions.tolist() == [0, 1, 2, 3, 2, 3]


def bundle_texts(folder: Path) -> NDArray[np.str_]:
    return np.array(sorted(path.name for path in folder.rglob("*")))


@pytest.mark.parametrize("error", [KeyboardInterrupt, AcespecError])
def test_an_interrupted_export_leaves_the_old_bundle_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    old = write_bundle(tmp_path / "bundle")
    before = bundle_texts(tmp_path)

    def interrupted_export() -> None:
        with replaced_bundle(tmp_path / "bundle") as staging:
            (staging / "portable.onnx").write_bytes(b"half a gra")
            raise error

    with pytest.raises(error):
        interrupted_export()
    assert bundle_texts(tmp_path).tolist() == before.tolist()
    assert load_bundle(tmp_path / "bundle").manifest == old


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    def export_to_full_disk() -> None:
        with replaced_bundle(tmp_path / "bundle"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(AcespecError, match=r"cannot write .*bundle \(No space left on device\); make room"):
        export_to_full_disk()
    assert not list(tmp_path.iterdir())


def test_a_link_goes_on_pointing_to_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "bundle")
    for name in ("first", "second"):
        with replaced_bundle(tmp_path / "link") as staging:
            (staging / name).write_bytes(b"")
            (staging / "manifest.json").write_bytes(b"{}")
    assert (tmp_path / "link").is_symlink()
    assert bundle_texts(tmp_path / "elsewhere").tolist() == ["bundle", "manifest.json", "second"]


def test_a_finished_export_replaces_the_old_bundle(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle")
    with replaced_bundle(tmp_path / "bundle") as staging:
        (staging / "new").write_bytes(b"")
    assert bundle_texts(tmp_path).tolist() == ["bundle", "new"]


def test_a_folder_that_is_no_bundle_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")
    with pytest.raises(AcespecError, match="exists and is not a bundle"):
        export_bundle(tmp_path, tmp_path, ExportOptions())
    assert (tmp_path / "thesis.txt").read_text() == "ten years of work"


def test_models_that_cannot_be_exported_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "dynamic", "llama")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=r"Llama.*dynamic"):
        export_bundle(folder, tmp_path / "bundle", ExportOptions())
    broken = model_folder(tmp_path / "broken", "llama")
    (broken / "model.safetensors").unlink()
    with pytest.raises(ModelFolderError, match=r"broken cannot be loaded as a causal language model"):
        export_bundle(broken, tmp_path / "bundle", ExportOptions())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "dynamic"]


def test_a_model_that_is_not_whole_is_refused_and_not_filled_with_random_weights(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", "llama")
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFolderError, match="cannot be loaded"):
        export_bundle(folder, tmp_path / "bundle", ExportOptions())
    weights.write_bytes(whole)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 3}))
    with pytest.raises(ModelFolderError, match=r"lacks 9 of the model's tensors, model\.layers\.2\."):
        export_bundle(folder, tmp_path / "bundle", ExportOptions())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"buckets": ()}, "between 1 and 1024, not none"),
        ({"buckets": (0, 8)}, "between 1 and 1024, not 0, 8"),
        ({"buckets": (2048,)}, "between 1 and 1024, not 2048"),
        ({"precision": "fp4"}, "no precision 'fp4'; choose one of fp32, fp16, bf16, int8, int4"),
        ({"context": 0}, "context must be between 1 and"),
    ],
)
def test_arguments_out_of_range_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(AcespecError, match=message):
        ExportOptions(**arguments)  # type: ignore[arg-type]


def test_buckets_are_sorted_and_parsed() -> None:
    assert ExportOptions((16, 1, 16)).buckets == (1, 16)
    assert parse_buckets("32, 8,1") == (32, 8, 1)
    with pytest.raises(AcespecError, match="numbers with commas between"):
        parse_buckets("1;8")


def test_the_command_ends_with_one_line_and_status_one(tmp_path: Path) -> None:
    main = "from acespec.cli import main; main()"
    arguments = ["export", str(tmp_path), "-o", str(tmp_path / "bundle")]
    run = subprocess.run(
        [sys.executable, "-c", main, *arguments], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert run.stderr.startswith("acespec: error: ")
    assert run.stderr.count("\n") == 1


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from acespec.export.commands import export\n"
        "assert not {'torch', 'transformers', 'onnx', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "--precision" in CliRunner().invoke(export, ["--help"]).output
