"""Half precisions, the largest logits and fixed shapes, each against what it must equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from acespec.export.bundle import export_bundle
from acespec.export.check import GraphRunner, compare_logits, torch_logits
from acespec.export.options import ExportOptions
from acespec.models.exportable import load_decoder
from acespec.models.manifest import Bundle, GraphVariant
from acespec.models.probe import branching_probe, causal_probe
from acespec.models.tolerances import TOLERANCES
from acespec.speculation import DraftLogits
from model_folder import tiny_tokenizer
from tiny_families import NAMED

VOCAB = 257
BUCKETS = (1, 4)
PREFILL = 8


def exported(family: str, folder: Path, **options: Any) -> tuple[Path, Bundle]:
    """Folders of the model and of its bundle."""
    source = folder / "model"
    NAMED[family]().save_pretrained(source)
    tiny_tokenizer().save(str(source / "tokenizer.json"))
    chosen = ExportOptions(buckets=BUCKETS, context=48, prefill_chunk=PREFILL, tree_rows=8, **options)
    return source, export_bundle(source, folder / "bundle", chosen)


def file_of(bundle: Bundle) -> Path:
    return bundle.folder / "portable.onnx"


def test_half_precision_keeps_its_rows_and_masks_and_returns_logits_in_float32(tmp_path: Path) -> None:
    source, bundle = exported("gemma 3", tmp_path, precision="fp16")
    (variant,) = bundle.manifest.graphs
    types = {spec.name: spec.dtype for spec in (*variant.inputs, *variant.outputs)}
    kinds = {"mask_full", "mask_sliding", "past_key.0", "past_value.1", "new_key.1", "new_value.0"}
    assert {types[name] for name in kinds} == {"float16"}
    assert types["logits"] == "float"
    probe = branching_probe(np.arange(30) * 7 % VOCAB)
    expected = torch_logits(load_decoder(source, torch.float16), probe, VOCAB)
    actual = GraphRunner(file_of(bundle), variant).run(probe, (20, 1, 9))
    compare_logits(actual, expected, file_of(bundle), TOLERANCES["fp16"])
    full = torch_logits(load_decoder(source), probe, VOCAB)
    assert np.abs(expected - full).max() > 1e-3, "PyTorch ran in float32 too"


def test_bfloat16_is_what_the_file_itself_computes(tmp_path: Path) -> None:
    """By ONNX's own reference: the export checks a twin in float32, for want of kernels."""
    source, bundle = exported("qwen 3", tmp_path, precision="bf16")
    (variant,) = bundle.manifest.graphs
    graph = onnx.load(file_of(bundle))
    weights = {tensor.data_type for tensor in graph.graph.initializer if len(tensor.dims) == 2}
    assert weights == {onnx.TensorProto.BFLOAT16}
    probe = causal_probe([*range(60, 72)])
    step: dict[str, NDArray[Any]] = {
        "input_ids": probe.tokens[None],
        "position_ids": probe.positions[None],
        "logit_rows": np.arange(probe.count),
        "mask": np.where(np.pad(probe.mask, ((0, 0), (1, 0))), 0, -1e4).astype(ml_dtypes.bfloat16)[
            None, None
        ],
    }
    for spec in variant.inputs:
        if spec.name.startswith("past_"):
            assert spec.dtype == "bfloat16"
            step[spec.name] = np.zeros((1, *map(int, spec.shape[1:])), ml_dtypes.bfloat16)
    logits = ReferenceEvaluator(graph).run(None, step)[0][0]
    expected = torch_logits(load_decoder(source, torch.bfloat16), probe, VOCAB)
    compare_logits(DraftLogits(logits), expected, file_of(bundle), TOLERANCES["bf16"])


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    """Fixed shapes that return the three largest logits, of a model with two masks."""
    return exported("gemma 3", tmp_path_factory.mktemp("split"), top_k=3, layout="split")


def test_the_largest_logits_are_those_of_the_whole_row(split: tuple[Path, Bundle]) -> None:
    source, bundle = split
    (variant,) = bundle.manifest.graphs
    probe = branching_probe(np.arange(30) * 11 % VOCAB)
    top = GraphRunner(file_of(bundle), variant).run(probe, (20, 1, 9))
    full = torch_logits(load_decoder(source), probe, VOCAB)
    order = np.argsort(-full, axis=1)[:, :3]
    assert top.ids is not None
    np.testing.assert_array_equal(top.ids, order)
    np.testing.assert_allclose(top.values, np.take_along_axis(full, order, axis=1), atol=2e-4)
    np.testing.assert_allclose(top.log_sum_exp, torch.from_numpy(full).logsumexp(1), atol=2e-4)


def test_graphs_of_fixed_shapes_share_one_file_of_weights(split: tuple[Path, Bundle]) -> None:
    (variant,) = split[1].manifest.graphs
    folder = split[1].folder
    assert set(variant.files) == {"portable.b1.onnx", "portable.b4.onnx", "portable.prefill8.onnx"}
    assert [file.name for file in folder.glob("*.data")] == ["portable.onnx.data"]
    data_bytes = (folder / "portable.onnx.data").stat().st_size
    for name in variant.files:
        graph = onnx.load(folder / name, load_external_data=False).graph
        places = {
            entry.value for t in graph.initializer for entry in t.external_data if entry.key == "location"
        }
        assert places == {"portable.onnx.data"}
        inline = sum(len(tensor.raw_data) for tensor in graph.initializer)
        assert inline < data_bytes / 20, "weights are in the graph too"


def _fixed_step(session: onnxruntime.InferenceSession, variant: GraphVariant) -> dict[str, NDArray[Any]]:
    """Random inputs of just the shapes that ``session`` takes."""
    generator = np.random.default_rng(3)
    step: dict[str, NDArray[Any]] = {}
    for spec in session.get_inputs():
        if spec.name == "logit_rows":
            step[spec.name] = np.arange(spec.shape[0]) + (session.get_inputs()[0].shape[1] - spec.shape[0])
        elif spec.type == "tensor(int64)":
            step[spec.name] = generator.integers(0, 40, spec.shape)
        elif spec.name.startswith("mask"):
            step[spec.name] = np.where(generator.random(spec.shape) < 0.5, 0, -1e4).astype(np.float32)
        else:
            step[spec.name] = generator.standard_normal(spec.shape).astype(np.float32)
    assert variant.rows is not None
    assert step["past_key.0"].shape[0] == variant.rows == 56
    return step


@pytest.mark.parametrize("width", [*BUCKETS, PREFILL])
def test_a_graph_of_fixed_shapes_equals_the_one_it_was_made_from(
    width: int, split: tuple[Path, Bundle]
) -> None:
    (variant,) = split[1].manifest.graphs
    assert variant.prefill is not None
    name = variant.prefill.file if width == PREFILL else variant.bucket_files[width]
    fixed, varying = (
        onnxruntime.InferenceSession(split[1].folder / file) for file in (name, "portable.onnx")
    )
    step = _fixed_step(fixed, variant)
    assert step["input_ids"].shape == (1, width)
    assert len(step["logit_rows"]) == (1 if width == PREFILL else width)
    outputs = fixed.run(None, step)
    assert all(isinstance(size, int) for spec in fixed.get_outputs() for size in spec.shape)
    for actual, expected in zip(outputs, varying.run(None, step), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5, rtol=1e-5)
