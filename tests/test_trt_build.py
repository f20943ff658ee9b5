"""Plans that NVIDIA's own parser and builder make of our graphs, without a GPU.

TensorRT for RTX parses and compiles for a device that need not be there. It shows that TensorRT takes the
graph; what a Jetson's TensorRT makes of it, it does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acespec.edge_runtime.plan_builder import BuildTarget, PlanBuilder
from acespec.edge_runtime.plan_files import PlanFolder
from acespec.edge_runtime.plan_key import PlanKey, dimensions, shape_at
from acespec.edge_runtime.trt_module import TensorRtError, load_tensorrt, message_logger
from acespec.export.bundle import export_bundle
from acespec.export.options import DEFAULT_BUCKETS, DEFAULT_PREFILL, ExportOptions
from acespec.export.tensorrt_weights import tensorrt_quantization
from acespec.models import resolve_model
from acespec.models.manifest import Bundle, GraphVariant, TensorSpec
from tiny_bundle import BUCKETS, PREFILL, tiny_bundle

trt = pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT for RTX is not installed")

CAPABILITY = "8.9"
KINDS: dict[str, dict[str, Any]] = {
    "one graph for all widths": {},
    "a graph for each width": {"layout": "split"},
    "half precision": {"precision": "fp16"},
    "int4": {"precision": "int4", "quantization": tensorrt_quantization("int4")},
    "windows and the largest logits": {"family": "mistral", "top_k": 20},
}


def rtx_target(capability: str = CAPABILITY) -> BuildTarget:
    return BuildTarget(load_tensorrt("tensorrt-rtx"), "tensorrt-rtx", capability)


def parsed_network(bundle: Bundle, key: PlanKey) -> tuple[dict[str, Any], dict[str, Any]]:
    """Type and shape of every input and output, by name, as TensorRT's parser reads the graph file."""
    logger = message_logger(load_tensorrt("tensorrt-rtx"), lambda message: None)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(bundle.path(key.graph_file)))
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    named = [
        {tensor.name: (tensor.dtype, tuple(tensor.shape)) for tensor in each} for each in (inputs, outputs)
    ]
    return named[0], named[1]


def expected(specs: tuple[TensorSpec, ...], key: PlanKey) -> dict[str, Any]:
    """What the manifest says, with -1 where the widths a plan serves differ."""
    types = {"float": trt.float32, "float16": trt.float16, "int64": trt.int64, "bfloat16": trt.bfloat16}
    sizes = [dimensions(key, step) for step in key.steps]
    is_open = len(key.steps) > 1
    return {
        spec.name: (
            types[spec.dtype],
            tuple(
                -1 if is_open and isinstance(size, str) else shape_at(spec, sizes[0])[axis]
                for axis, size in enumerate(spec.shape)
            ),
        )
        for spec in specs
    }


def check_plans(bundle: Bundle, variant: GraphVariant, keys: tuple[PlanKey, ...], folder: Path) -> None:
    """Read back and build every plan; each goes away again, for it is as large as the weights."""
    plans = PlanFolder(folder)
    builder = PlanBuilder(bundle, rtx_target(), plans)
    for key in keys:
        assert parsed_network(bundle, key) == (expected(variant.inputs, key), expected(variant.outputs, key))
        assert len(builder.read_or_build(variant, key)) > 100_000
        plans.plan_path(key).unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_tensorrt_takes_every_width_and_reads_the_manifests_interface(kind: str, tmp_path: Path) -> None:
    bundle = tiny_bundle(**KINDS[kind])
    variant, keys = rtx_target().plan_keys(bundle)
    widths = [(step.width, step.logit_rows) for key in keys for step in key.steps]
    assert widths == [*((width, width) for width in BUCKETS), (PREFILL, 1)]
    check_plans(bundle, variant, keys, tmp_path)


def test_a_plan_that_is_there_is_read_and_not_built_again(tmp_path: Path) -> None:
    bundle = tiny_bundle()
    variant, (key,) = rtx_target().plan_keys(bundle)
    told: list[str] = []
    builder = PlanBuilder(bundle, rtx_target(), PlanFolder(tmp_path), progress=told.append)
    first = builder.read_or_build(variant, key)
    assert told == ["parsing portable.onnx", "building portable.onnx: Building engine"]
    assert builder.read_or_build(variant, key) == first
    assert told[2:] == ["portable.onnx is built already"]


def test_a_graph_tensorrt_does_not_parse_is_refused_with_its_reason(tmp_path: Path) -> None:
    bundle = tiny_bundle()
    (tmp_path / "portable.onnx").write_bytes(bundle.path("portable.onnx").read_bytes()[:5000])
    broken = Bundle(tmp_path, bundle.manifest)
    variant, (key,) = rtx_target().plan_keys(broken)
    with pytest.raises(
        TensorRtError, match=r"^tensorrt-rtx 1\.7\.1\.116 cannot parse .*portable\.onnx: node "
    ):
        PlanBuilder(broken, rtx_target(), PlanFolder(tmp_path)).read_or_build(variant, key)


@pytest.mark.parametrize("capability", ["8.7", "11.0"])
def test_the_jetsons_are_not_among_its_devices(capability: str, tmp_path: Path) -> None:
    """If this fails, it offers them now, and the tests can prove more."""
    bundle = tiny_bundle()
    variant, (key,) = rtx_target(capability).plan_keys(bundle)
    with pytest.raises(TensorRtError, match=rf"no plans for compute capability {capability}"):
        PlanBuilder(bundle, rtx_target(capability), PlanFolder(tmp_path)).read_or_build(variant, key)


@pytest.fixture(scope="module")
def real_bundle() -> Iterator[Bundle]:
    """SmolLM2 in half precision, with a graph for each width and the one they were made from."""
    options = ExportOptions(DEFAULT_BUCKETS, graph="portable", layout="split", precision="fp16")
    with tempfile.TemporaryDirectory(prefix="acespec-smollm2-") as folder:
        yield export_bundle(resolve_model("smollm2-135m"), Path(folder) / "bundle", options)


@pytest.mark.real_model
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("layout", ["profiles", "split"])
def test_tensorrt_takes_the_real_model_at_every_width(
    real_bundle: Bundle, layout: str, tmp_path: Path
) -> None:
    target = rtx_target()
    variant = real_bundle.graph("portable")
    if layout == "profiles":  # the same graph, before its shapes were fixed
        assert variant.prefill is not None
        prefill = variant.prefill.model_copy(update={"file": "portable.onnx"})
        files = dict.fromkeys(variant.buckets, "portable.onnx")
        variant = variant.model_copy(update={"bucket_files": files, "prefill": prefill})
    manifest = real_bundle.manifest.model_copy(update={"graphs": (variant,)})
    bundle = Bundle(real_bundle.folder, manifest)
    variant, keys = target.plan_keys(bundle)
    assert len(keys) == (1 if layout == "profiles" else len(DEFAULT_BUCKETS) + 1)
    assert [step.width for key in keys for step in key.steps] == [*DEFAULT_BUCKETS, DEFAULT_PREFILL]
    check_plans(bundle, variant, keys, tmp_path)
