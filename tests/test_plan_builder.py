"""The plan builder on a TensorRT that only pretends: keys, refusals, interruption, what is given to it."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from acespec.edge_runtime.plan_builder import BuildTarget, PlanBuilder
from acespec.edge_runtime.plan_files import PlanFolder
from acespec.edge_runtime.plan_key import PlanKey, StepShape, dimensions, shape_at
from acespec.edge_runtime.trt_module import TensorRtError
from acespec.models.manifest import Bundle, TensorSpec
from fake_cuda import FakeCuda
from fake_device import FakeDevice, fake_device
from fake_tensorrt import BuilderFlag, MemoryPoolType, ParserError, World, fake_tensorrt
from tiny_bundle import BUCKETS, CONTEXT, PREFILL, TREE_ROWS, tiny_bundle


@pytest.fixture
def device(tmp_path: Path) -> FakeDevice:
    return fake_device(tmp_path / "engines")


def build(device: FakeDevice, bundle: Bundle | None = None, force: bool = False) -> list[str]:
    """Build all plans of the bundle; returns what was reported."""
    bundle = bundle or tiny_bundle()
    variant, keys = device.target.plan_keys(bundle)
    told: list[str] = []
    builder = PlanBuilder(bundle, device.target, device.folder, progress=told.append)
    for key in keys:
        builder.read_or_build(variant, key, force)
    return told


def left_behind(device: FakeDevice) -> list[str]:
    return sorted(path.name for path in device.folder.path.iterdir()) if device.folder.path.exists() else []


def test_one_graph_for_all_widths_is_one_plan_with_a_profile_each(device: FakeDevice) -> None:
    bundle = tiny_bundle()
    _, (key,) = device.target.plan_keys(bundle)
    assert [(step.width, step.logit_rows) for step in key.steps] == [(1, 1), (4, 4), (16, 16), (PREFILL, 1)]
    assert key.rows == CONTEXT + TREE_ROWS
    assert key.graph_sha256 == bundle.manifest.file_sha256["portable.onnx"]
    assert key.weights_sha256 == {"portable.onnx.data": bundle.manifest.file_sha256["portable.onnx.data"]}
    build(device)
    (config,) = device.world.configs
    rows, total = key.rows, [key.rows + width for width in (*BUCKETS, PREFILL)]
    assert [profile.shapes["input_ids"] for profile in config.profiles] == [
        (1, 1),
        (1, 4),
        (1, 16),
        (1, PREFILL),
    ]
    assert [profile.shapes["logit_rows"] for profile in config.profiles] == [(1,), (4,), (16,), (1,)]
    assert [profile.shapes["mask"][-1] for profile in config.profiles] == total
    assert all(profile.shapes["past_key.0"][0] == rows for profile in config.profiles)


def test_a_graph_for_each_width_is_a_plan_each_without_profiles(device: FakeDevice) -> None:
    bundle = tiny_bundle(layout="split")
    _, keys = device.target.plan_keys(bundle)
    assert [[step.width for step in key.steps] for key in keys] == [[1], [4], [16], [PREFILL]]
    build(device, bundle)
    assert len(device.world.builds) == 4
    assert not any(config.profiles for config in device.world.configs)


def test_what_is_built_is_kept_and_forced_is_built_again(device: FakeDevice) -> None:
    assert build(device) == ["parsing portable.onnx", "building portable.onnx: Building engine"]
    assert build(device) == ["portable.onnx is built already"]
    build(device, force=True)
    assert len(device.world.builds) == 2
    assert left_behind(device) == [
        "portable.tensorrt.sm87.json",
        "portable.tensorrt.sm87.plan",
        "tensorrt-10.3.0.sm87.timing",
    ]


@pytest.mark.parametrize("change", ["version", "device", "graph", "weights"])
def test_a_plan_of_anything_else_is_built_again(device: FakeDevice, change: str) -> None:
    bundle = tiny_bundle()
    build(device)
    if change == "version":
        module, device.world = fake_tensorrt(device.cuda, "10.4.0")
        device.target = replace(device.target, tensorrt=module)
    elif change == "device":
        device.target = replace(device.target, compute_capability="11.0")
    else:
        name = "portable.onnx" if change == "graph" else "portable.onnx.data"
        hashes = bundle.manifest.file_sha256 | {name: "0" * 64}
        bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"file_sha256": hashes}))
    built = len(device.world.builds)
    build(device, bundle)
    assert len(device.world.builds) == built + 1


def test_times_measured_in_earlier_builds_are_used_and_kept(device: FakeDevice) -> None:
    for _ in range(2):
        build(device, force=True)
    caches = [config.timing_cache for config in device.world.configs]
    assert [cache.content for cache in caches if cache is not None] == [b"", b"timed;"]
    assert (device.folder.path / "tensorrt-10.3.0.sm87.timing").read_bytes() == b"timed;timed;"


def test_times_of_another_device_are_begun_anew(device: FakeDevice, caplog: pytest.LogCaptureFixture) -> None:
    build(device)
    (device.folder.path / "tensorrt-10.3.0.sm87.timing").write_bytes(b"foreign")
    build(device, force=True)
    assert "beginning a new one" in caplog.text
    assert (device.folder.path / "tensorrt-10.3.0.sm87.timing").read_bytes() == b"timed;"


def test_what_the_parser_refuses_is_named_with_node_and_reason(device: FakeDevice) -> None:
    device.world.parser_errors = [
        ParserError(7, "node_scatter", "TensorScatter", "no importer\n registered"),
        ParserError(8, "", "", "in\tvalid"),
        ParserError(9, "c", "C", "c"),
        ParserError(10, "d", "D", "d"),
    ]
    with pytest.raises(TensorRtError) as caught:
        build(device)
    assert str(caught.value).endswith(
        "portable.onnx: node node_scatter (TensorScatter): no importer registered; "
        "node 8 (no operator): in valid; node c (C): c; and 1 more"
    )
    assert str(caught.value).startswith("tensorrt 10.3.0 cannot parse ")
    assert left_behind(device) == []


def test_what_the_builder_refuses_is_named(device: FakeDevice) -> None:
    device.world.build_error = "no tactic\nfor node x"
    with pytest.raises(
        TensorRtError, match=r"cannot build a plan of .*portable\.onnx: no tactic for node x$"
    ):
        build(device)
    assert left_behind(device) == []


def test_an_interrupt_ends_the_build_at_its_next_step_and_leaves_nothing(device: FakeDevice) -> None:
    before = signal.getsignal(signal.SIGINT)
    steps: list[None] = []

    def press() -> None:
        steps.append(None)
        os.kill(os.getpid(), signal.SIGINT)

    device.world.on_build_step = press
    with pytest.raises(KeyboardInterrupt):
        build(device)
    assert len(steps) == 1
    assert left_behind(device) == []
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupted_rebuild_leaves_the_old_plan(device: FakeDevice) -> None:
    build(device)
    before = left_behind(device)
    device.world.on_build_step = lambda: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        build(device, force=True)
    assert left_behind(device) == before
    device.world.on_build_step = lambda: None
    assert build(device) == ["portable.onnx is built already"]


def test_a_build_in_another_thread_leaves_signals_alone(device: FakeDevice) -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []
    device.world.on_build_step = lambda: seen.append(signal.getsignal(signal.SIGINT))
    thread = threading.Thread(target=build, args=(device,))
    thread.start()
    thread.join()
    assert seen == [before, before]
    assert len(device.world.builds) == 1


@pytest.mark.parametrize(
    ("where", "change", "named"),
    [
        ("inputs", {"dtype": "float"}, "input input_ids"),
        ("inputs", {"name": "tokens"}, "input input_ids"),
        ("inputs", {"shape": (1, "N", 1)}, "input input_ids"),
        ("outputs", {"shape": (1, "M", 300)}, "output logits"),
    ],
)
def test_a_graph_that_is_not_the_manifests_is_refused(
    device: FakeDevice, where: str, change: dict[str, object], named: str
) -> None:
    bundle = tiny_bundle()
    variant = bundle.manifest.graphs[0]
    first, *others = getattr(variant, where)
    changed = variant.model_copy(update={where: (first.model_copy(update=change), *others)})
    manifest = bundle.manifest.model_copy(update={"graphs": (changed,)})
    with pytest.raises(TensorRtError, match=f"portable.onnx and the manifest differ in {named}; export"):
        build(device, replace(bundle, manifest=manifest))


def test_scratch_memory_is_bounded_only_when_asked(device: FakeDevice) -> None:
    bundle = tiny_bundle()
    build(device)
    variant, (key,) = device.target.plan_keys(bundle)
    builder = PlanBuilder(bundle, device.target, device.folder, workspace_bytes=1 << 20)
    builder.read_or_build(variant, key, force=True)
    assert [config.pools for config in device.world.configs] == [{}, {MemoryPoolType.WORKSPACE: 1 << 20}]


def rtx_target(capability: str) -> tuple[BuildTarget, World]:
    module, world = fake_tensorrt(FakeCuda(), "1.7.1.116")
    return BuildTarget(module, "tensorrt-rtx", capability), world


def test_tensorrt_for_rtx_is_told_the_device_and_to_allocate_nothing_itself(tmp_path: Path) -> None:
    target, world = rtx_target("8.9")
    variant, (key,) = target.plan_keys(tiny_bundle())
    PlanBuilder(tiny_bundle(), target, PlanFolder(tmp_path)).read_or_build(variant, key)
    (config,) = world.configs
    assert config.capabilities == {0: "8.9"}
    assert config.flags == {BuilderFlag.REQUIRE_USER_ALLOCATION}
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".plan"]  # it measures no times


def test_a_device_tensorrt_for_rtx_does_not_offer_is_named_before_anything_is_parsed(tmp_path: Path) -> None:
    target, world = rtx_target("8.7")
    world.parser_errors = [ParserError(0, "", "", "parsed")]
    variant, (key,) = target.plan_keys(tiny_bundle())
    with pytest.raises(
        TensorRtError, match=r"no plans for compute capability 8\.7 \(it offers: 8\.0, 8\.9, 12\.0\)"
    ):
        PlanBuilder(tiny_bundle(), target, PlanFolder(tmp_path)).read_or_build(variant, key)


def with_graphs(*names: str) -> Bundle:
    """The tiny bundle, its graph listed under each of ``names``."""
    bundle = tiny_bundle()
    graph = bundle.manifest.graphs[0]
    graphs = tuple(graph.model_copy(update={"name": name}) for name in names)
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"graphs": graphs}))


@pytest.mark.parametrize(
    ("version", "graphs", "chosen"),
    [
        ("10.3.0", ("portable", "native"), "portable"),
        ("10.14.1", ("native", "portable"), "portable"),
        ("10.15.0", ("portable", "native"), "native"),
        ("11.0.0", ("portable", "native"), "native"),
        ("11.0.0", ("ort", "portable"), "portable"),
    ],
)
def test_the_native_graph_is_taken_where_its_operators_are_known(
    version: str, graphs: tuple[str, ...], chosen: str
) -> None:
    module, _ = fake_tensorrt(FakeCuda(), version)
    variant, _keys = BuildTarget(module, "tensorrt", "8.7").plan_keys(with_graphs(*graphs))
    assert variant.name == chosen


@pytest.mark.parametrize("graphs", [("ort",), ("native",), ("ort", "native")])
def test_a_bundle_without_a_graph_for_this_tensorrt_is_refused(graphs: tuple[str, ...]) -> None:
    module, _ = fake_tensorrt(FakeCuda(), "10.3.0")
    with pytest.raises(TensorRtError, match=r"no graph for tensorrt 10\.3 .*--runtime tensorrt"):
        BuildTarget(module, "tensorrt", "8.7").plan_keys(with_graphs(*graphs))


def test_rows_are_those_of_the_graph_or_of_the_context_and_the_tree() -> None:
    module, _ = fake_tensorrt(FakeCuda())
    target = BuildTarget(module, "tensorrt", "8.7")
    bundle = tiny_bundle()
    open_rows = bundle.manifest.graphs[0].model_copy(update={"rows": None})
    manifest = bundle.manifest.model_copy(update={"graphs": (open_rows,)})
    (key,) = target.plan_keys(replace(bundle, manifest=manifest))[1]
    assert key.rows == CONTEXT + 512
    assert target.plan_keys(replace(bundle, manifest=manifest), rows=200)[1][0].rows == 200
    assert target.plan_keys(bundle, rows=200)[1][0].rows == CONTEXT + TREE_ROWS


def key_of(graph: str) -> PlanKey:
    module, _ = fake_tensorrt(FakeCuda())
    (key,) = BuildTarget(module, "tensorrt", "8.7").plan_keys(tiny_bundle())[1]
    return key.model_copy(update={"graph": graph, "rows": 100})


def test_a_graphs_letters_stand_for_these_numbers() -> None:
    step = StepShape(width=8, logit_rows=1)
    assert dimensions(key_of("portable"), step) == {"N": 8, "M": 1, "S": 100, "R": 100, "T": 108}
    assert dimensions(key_of("native"), step) == {"N": 8, "M": 1, "S": 100, "R": 100, "T": 100}
    spec = TensorSpec(name="x", dtype="float", shape=(1, "N", 3, "T"))
    assert shape_at(spec, dimensions(key_of("native"), step)) == (1, 8, 3, 100)
    with pytest.raises(TensorRtError, match="dimension 'Q'"):
        shape_at(TensorSpec(name="x", dtype="float", shape=("Q",)), dimensions(key_of("native"), step))


def test_a_folder_that_cannot_be_written_is_named_before_the_build(
    device: FakeDevice, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    device.folder = PlanFolder(tmp_path / "file")
    with pytest.raises(TensorRtError, match="--engines DIR"):
        build(device)
    assert device.world.builds == []
