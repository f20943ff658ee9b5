"""The native graph: its interface, what ONNX Runtime computes of it, and that TensorRT builds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from acespec.export.bundle import export_bundle
from acespec.export.check import compare_logits, torch_logits
from acespec.export.check_in_place import InPlaceRunner
from acespec.export.options import ExportOptions
from acespec.export.tensorrt_weights import tensorrt_quantization
from acespec.models.exportable import load_decoder
from acespec.models.manifest import Bundle, TensorSpec
from acespec.models.probe import branching_probe
from acespec.models.tolerances import TOLERANCES
from model_folder import tiny_tokenizer
from tiny_families import NAMED, family

VOCAB = 257
BUCKETS = (1, 8)
CONTEXT, TREE_ROWS = 48, 16
ROWS = CONTEXT + TREE_ROWS
TENSORRT_HEAD = {"head_dim": 64, "hidden_size": 128}
"""A size of head that TensorRT has a fused kernel for."""


def exported(source: Path, out: Path, **options: Any) -> Bundle:
    tiny_tokenizer().save(str(source / "tokenizer.json"))
    asked = ExportOptions(
        buckets=BUCKETS, context=CONTEXT, prefill_chunk=16, tree_rows=TREE_ROWS, graph="native", **options
    )
    return export_bundle(source, out, asked)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    """Two masks and groups of queries, in half precision."""
    folder = tmp_path_factory.mktemp("native")
    NAMED["gemma 3"]().save_pretrained(folder / "model")
    return folder / "model", exported(folder / "model", folder / "bundle", precision="fp16")


def test_rows_and_masks_have_the_size_of_the_buffer(gemma: tuple[Path, Bundle]) -> None:
    (variant,) = gemma[1].manifest.graphs
    assert (variant.name, variant.opset, variant.rows) == ("native", 24, ROWS)
    specs = {spec.name: spec for spec in (*variant.inputs, *variant.outputs)}
    assert specs["past_length"] == TensorSpec(name="past_length", dtype="int32", shape=(1,))
    for mask in ("mask_full", "mask_sliding"):
        assert specs[mask] == TensorSpec(name=mask, dtype="float16", shape=(1, 1, "N", ROWS))
    for name in ("past_key.0", "past_value.1", "present_key.1", "present_value.0"):
        assert specs[name] == TensorSpec(name=name, dtype="float16", shape=(1, 2, ROWS, 8))
    graph = onnx.load(gemma[1].folder / "native.onnx", load_external_data=False)
    assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 24)]
    kinds = [node.op_type for node in graph.graph.node]
    assert (kinds.count("TensorScatter"), kinds.count("Attention"), kinds.count("Softmax")) == (4, 2, 0)
    assert {len(node.output) for node in graph.graph.node if node.op_type == "Attention"} == {1}


def test_chain_and_tree_steps_equal_pytorch(gemma: tuple[Path, Bundle]) -> None:
    source, bundle = gemma
    file = bundle.folder / "native.onnx"
    probe = branching_probe(np.arange(30) * 53 % VOCAB)
    actual = InPlaceRunner(file, bundle.manifest.graphs[0]).run(probe, (20, 1, 8, 1))
    expected = torch_logits(load_decoder(source, torch.float16), probe, VOCAB)
    compare_logits(actual, expected, file, TOLERANCES["fp16"])


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "fp16"},
        {"precision": "int4", "layout": "split", "quantization": tensorrt_quantization("int4")},
    ],
)
def test_tensorrt_builds_it_with_its_cache_update_and_fused_attention(
    options: dict[str, Any], tmp_path: Path
) -> None:
    trt = pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT for RTX is not installed")
    family("Qwen3", **TENSORRT_HEAD)().save_pretrained(tmp_path / "model")
    bundle = exported(tmp_path / "model", tmp_path / "bundle", **options)
    (variant,) = bundle.manifest.graphs
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR))
    assert parser.parse_from_file(str(bundle.folder / variant.bucket_files[8])), parser.get_error(0).desc()
    kinds = [network.get_layer(index).type for index in range(network.num_layers)]
    assert kinds.count(trt.LayerType.KV_CACHE_UPDATE) == 4
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    for spec in variant.inputs:
        shape = tuple(size if isinstance(size, int) else 8 for size in spec.shape)
        profile.set_shape(spec.name, shape, shape, shape)
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config) is not None
