"""The TensorRT engine, on a TensorRT that computes with ONNX Runtime, against the ONNX Runtime engine.

Both run the same graph of the same bundle, so that whatever differs is the engine's own: what it binds, where
it places rows, which width it chooses, what it masks.
"""

from __future__ import annotations

import functools
import gc
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from acespec.edge_runtime.cuda import Cuda, CudaError
from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine
from acespec.edge_runtime.trt_engine import TensorRtEngine, row_layout
from acespec.edge_runtime.trt_module import TensorRtError
from acespec.models.manifest import TensorSpec
from acespec.speculation import DraftLogits
from fake_cuda import Code
from fake_device import FakeDevice, fake_device
from native_interface import native_bundle
from tiny_bundle import BUCKETS, CONTEXT, PREFILL, TREE_ROWS, tiny_bundle

TOLERANCE = 1e-4
KINDS: dict[str, dict[str, Any]] = {
    "profiles": {},
    "split": {"layout": "split"},
    "without graphs": {},
    "windows and the largest logits": {"family": "mistral", "top_k": 20},
    "native": {},
}


class Pair:
    """Both engines, told the same."""

    def __init__(self, kind: str) -> None:
        bundle = tiny_bundle(**KINDS[kind])
        version = "10.16.0" if kind == "native" else "10.3.0"
        self.device = fake_device(Path(plans_folder(kind)), version)
        mine = native_bundle(bundle) if kind == "native" else bundle
        self.tensorrt = self.device.engine(mine, use_graphs=kind != "without graphs")
        self.onnxruntime = OnnxRuntimeEngine(bundle, tree_rows=TREE_ROWS)

    def forward(
        self, tokens: NDArray[np.int64], positions: NDArray[np.int64], mask: NDArray[np.bool_]
    ) -> DraftLogits:
        """One step of both; what they return must agree, and is returned."""
        actual = self.tensorrt.forward(tokens, positions, mask)
        assert_same(actual, self.onnxruntime.forward(tokens, positions, mask))
        return actual

    def prefill(
        self, tokens: NDArray[np.int64], positions: NDArray[np.int64], mask: NDArray[np.bool_]
    ) -> None:
        """One wide step of the one, many narrow ones of the other; the last token's logits must agree."""
        actual = self.tensorrt.forward(tokens, positions, mask, last_only=True)
        past = mask.shape[1] - len(tokens)
        for first in range(0, len(tokens), BUCKETS[-1]):
            end = min(first + BUCKETS[-1], len(tokens))
            part = mask[first:end, : past + end]
            expected = self.onnxruntime.forward(tokens[first:end], positions[first:end], part)
        assert_same(actual, last_of(expected))

    def compact(self, prefix: int, rows: list[int]) -> None:
        for engine in (self.tensorrt, self.onnxruntime):
            engine.compact(prefix, rows)

    def truncate(self, num_rows: int) -> None:
        for engine in (self.tensorrt, self.onnxruntime):
            engine.truncate(num_rows)


def assert_same(actual: DraftLogits, expected: DraftLogits) -> None:
    """Same logits of the same tokens, and the same sum."""
    assert len(actual) == len(expected)
    for row in range(len(actual)):
        mine, other = actual[row], expected[row]
        if mine.ids is None:
            np.testing.assert_allclose(mine.values, other.values, rtol=0, atol=TOLERANCE)
            assert mine.values.argmax() == other.values.argmax()
        else:
            assert other.ids is not None
            assert mine.log_sum_exp == pytest.approx(other.log_sum_exp, abs=TOLERANCE)
            np.testing.assert_array_equal(mine.ids, other.ids)
            np.testing.assert_allclose(mine.values, other.values, rtol=0, atol=TOLERANCE)


def last_of(logits: DraftLogits) -> DraftLogits:
    """The last row alone."""
    sums = None if logits.log_sum_exp is None else logits.log_sum_exp[-1:]
    return DraftLogits(logits.values[-1:], None if logits.ids is None else logits.ids[-1:], sums)


@functools.cache
def shared_pair(kind: str) -> Pair:
    return Pair(kind)


@functools.cache
def plans_folder(kind: str) -> str:
    folder = tempfile.TemporaryDirectory(prefix="acespec-plans-")
    plan_folders.append(folder)
    return folder.name


plan_folders: list[tempfile.TemporaryDirectory[str]] = []


def draw_step(
    data: st.DataObject, past: list[list[int]], width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], list[list[int]]]:
    """A tree step behind ``past``, whose rows are given as the rows each attends to (its own last).

    Each token continues any row, of the past or of this step, or begins a text of its own.
    """
    count = data.draw(st.integers(1, width))
    tokens = np.array(data.draw(st.lists(st.integers(0, 256), min_size=count, max_size=count)))
    paths = list(past)
    for row in range(len(past), len(past) + count):
        parent = data.draw(st.integers(-1, row - 1))
        if parent >= 0 and len(paths[parent]) >= CONTEXT:
            parent = -1
        paths.append([*(paths[parent] if parent >= 0 else []), row])
    mask = np.zeros((count, len(paths)), np.bool_)
    for token, path in enumerate(paths[len(past) :]):
        mask[token, path] = True
    positions = np.array([len(path) - 1 for path in paths[len(past) :]])
    return tokens, positions, mask, paths


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=25)
def test_both_engines_give_the_same_logits_whatever_they_are_told(kind: str, data: st.DataObject) -> None:
    pair = shared_pair(kind)
    pair.truncate(0)
    paths: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        room = pair.tensorrt.max_rows - len(paths)
        action = data.draw(st.sampled_from(["step", "step", "prefill", "compact", "truncate"]))
        if action == "step" and room:
            tokens, positions, mask, paths = draw_step(data, paths, min(BUCKETS[-1], room))
            pair.forward(tokens, positions, mask)
        elif action == "prefill" and room:
            tokens, positions, mask, paths = draw_step(data, paths, min(PREFILL, room))
            pair.prefill(tokens, positions, mask)
        elif action == "compact" and paths:
            kept = data.draw(st.sampled_from(paths))  # a branch, as after a round
            prefix = next((index for index, row in enumerate(kept) if index != row), len(kept))
            pair.compact(prefix, kept[prefix:])
            paths = [list(range(length + 1)) for length in range(len(kept))]
        elif action == "truncate":
            cut = data.draw(st.integers(0, len(paths)))
            pair.truncate(cut)
            paths = paths[:cut]
        assert pair.tensorrt.num_rows == pair.onnxruntime.num_rows == len(paths)


@pytest.mark.parametrize("kind", KINDS)
def test_both_engines_write_the_same_text(kind: str) -> None:
    pair = shared_pair(kind)
    pair.truncate(0)
    prompt = np.arange(20) * 7 % 257
    pair.prefill(prompt, np.arange(20), np.tri(20, dtype=np.bool_))
    token = 5
    for row in range(20, 60):
        logits = pair.forward(np.array([token]), np.array([row]), np.ones((1, row + 1), np.bool_))
        best = int(logits[0].values.argmax())
        token = best if logits.ids is None else int(logits[0].ids[best])  # type: ignore[index]


def one_step(engine: TensorRtEngine, count: int = 3, last_only: bool = False) -> DraftLogits:
    past = engine.num_rows
    positions = np.arange(past, past + count) % CONTEXT
    mask = np.tri(count, past + count, past, dtype=np.bool_)
    return engine.forward(np.arange(count), positions, mask, last_only)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FakeDevice]:
    fake = fake_device(tmp_path)
    yield fake
    fake.cuda.failures.clear()
    fake.cuda.check_nothing_is_left()
    assert fake.world.live_contexts == 0


def test_it_says_what_the_bundle_says(device: FakeDevice) -> None:
    with device.engine(tiny_bundle()) as engine:
        assert engine.buckets == BUCKETS
        assert engine.prefill_width == PREFILL
        assert engine.max_context == CONTEXT
        assert engine.max_rows == CONTEXT + TREE_ROWS
        assert engine.vocab_size == 257
    with device.engine(tiny_bundle(), max_context=40) as engine:
        assert engine.max_context == 40


def test_each_width_is_captured_at_its_second_step_and_launched_from_then_on(device: FakeDevice) -> None:
    with device.engine(tiny_bundle()) as engine:
        launches = []
        for count in (1, 1, 1, 4, 3, 16, 1):
            one_step(engine, count)
            launches.append(device.cuda.launches)
    assert launches == [0, 1, 2, 2, 3, 3, 4]


def test_a_step_that_cannot_be_captured_runs_without_a_graph_and_says_so_once(
    device: FakeDevice, caplog: pytest.LogCaptureFixture
) -> None:
    device.world.is_capturable = False
    with device.engine(tiny_bundle()) as engine:
        expected = one_step(engine).values.copy()
        for _ in range(3):
            engine.truncate(0)
            np.testing.assert_array_equal(one_step(engine).values, expected)
    assert device.cuda.launches == 0
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "steps of 4 tokens run without a CUDA graph: TensorRT cannot run a step of 4 tokens (it allocates "
        "memory, which cannot be captured); build the plans again with: acespec engine build BUNDLE --force"
    ]


def test_binding_another_address_drops_the_graph(device: FakeDevice) -> None:
    with device.engine(tiny_bundle()) as engine:
        for _ in range(2):
            one_step(engine, 1)
        assert device.cuda.launches == 1
        step = engine._steps.by_width[1]
        elsewhere = Cuda(device.cuda).allocate(257 * 4)
        step.bind("logits", elsewhere)
        for _ in range(2):
            one_step(engine, 1)
        assert device.cuda.launches == 2  # plain, then captured again
        written = device.cuda.device(elsewhere, 257 * 4).view(np.float32)
        assert np.isfinite(written).all()
        device.cuda.cudaFree(elsewhere)


def test_a_short_prompt_runs_on_a_bucket_and_a_long_one_on_the_prefill_graph(device: FakeDevice) -> None:
    with device.engine(tiny_bundle()) as engine:
        assert engine._step_for(3, last_only=True).shape.width == 4
        assert engine._step_for(17, last_only=True).shape.width == PREFILL
        assert engine._step_for(16, last_only=False).shape.width == 16
        assert len(one_step(engine, 5, last_only=True)) == 1
        with pytest.raises(AssertionError):
            one_step(engine, 17)
        with pytest.raises(AssertionError):
            one_step(engine, PREFILL + 1, last_only=True)


def test_all_contexts_work_in_one_block_as_large_as_the_hungriest_wants(device: FakeDevice) -> None:
    with device.engine(tiny_bundle()) as engine:
        contexts = [step._context for step in engine._steps.by_width.values()]
        blocks = {context._scratch for context in contexts}  # type: ignore[union-attr]
        assert len(blocks) == 1
        assert device.cuda.block_size(blocks.pop()) == -(-1000 * PREFILL // 256) * 256


def test_a_plan_is_built_once_and_a_stale_or_damaged_one_again(device: FakeDevice) -> None:
    bundle = tiny_bundle()
    device.engine(bundle).close()
    device.engine(bundle).close()
    assert len(device.world.builds) == 1
    plan = next(device.folder.path.glob("*.plan"))
    plan.write_bytes(plan.read_bytes() + b" ")
    device.engine(bundle).close()
    assert len(device.world.builds) == 2
    device.target = replace(device.target, compute_capability="11.0")
    device.engine(bundle).close()
    assert len(device.world.builds) == 3


def test_closing_twice_is_closing_once_and_a_closed_engine_is_not_to_be_used(device: FakeDevice) -> None:
    engine = device.engine(tiny_bundle())
    one_step(engine)
    engine.close()
    engine.close()
    with pytest.raises(AssertionError, match="closed"):
        one_step(engine)
    with pytest.raises(AssertionError, match="closed"):
        engine.compact(0, [])


def test_an_engine_nobody_closed_frees_the_device_when_it_goes(device: FakeDevice) -> None:
    engine = device.engine(tiny_bundle())
    one_step(engine)
    engine.compact(0, [2])  # the device has not done it yet
    del engine
    gc.collect()


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("refuses_plans", r"refuses the plan of portable.onnx \(the plan is of another device\).*--force"),
        ("refuses_contexts", r"refuses a context for steps of 1 tokens .*--force"),
    ],
)
def test_what_tensorrt_refuses_at_the_start_is_named_and_leaves_nothing(
    device: FakeDevice, trouble: str, message: str
) -> None:
    setattr(device.world, trouble, True)
    with pytest.raises(TensorRtError, match=message):
        device.engine(tiny_bundle())


def test_a_step_that_fails_is_named_and_leaves_the_rows_as_they_were(device: FakeDevice) -> None:
    with device.engine(tiny_bundle()) as engine:
        one_step(engine)
        device.world.fails_to_run = True
        with pytest.raises(TensorRtError, match=r"cannot run a step of 1 tokens \(the step failed\)"):
            one_step(engine, 1)
        assert engine.num_rows == 3
        device.world.fails_to_run = False
        engine.truncate(1)  # the next step's inputs are others
        one_step(engine, 1)
        assert engine.num_rows == 2


def test_an_error_of_cuda_is_named(device: FakeDevice) -> None:
    with device.engine(tiny_bundle()) as engine:
        device.cuda.failures["cudaMemcpyAsync"] = Code.LAUNCH_FAILURE
        with pytest.raises(CudaError, match=r"cudaMemcpyAsync failed \(launch failure\)"):
            one_step(engine)
        device.cuda.failures.clear()


@pytest.mark.parametrize("capacity", [0, 3_000, 30_000, 100_000])
def test_too_little_memory_is_one_line_and_leaves_nothing(device: FakeDevice, capacity: int) -> None:
    device.cuda.capacity = capacity
    with pytest.raises(CudaError, match=r"cudaMalloc failed \(out of memory\)"):
        device.engine(tiny_bundle())


def test_a_plan_with_other_tensors_is_refused(device: FakeDevice) -> None:
    """The record fits, the plan is another graph's: somebody put it there."""
    bundle = tiny_bundle()
    device.engine(bundle).close()
    variant, _ = device.target.plan_keys(bundle)
    other = variant.model_copy(update={"outputs": variant.outputs[:-1]})
    manifest = bundle.manifest.model_copy(update={"graphs": (other,)})
    with pytest.raises(TensorRtError, match=r"has not its graph's inputs and outputs; build the plans again"):
        device.engine(replace(bundle, manifest=manifest))


@pytest.mark.parametrize(
    "change", [{"num_layers": 1}, {"num_kv_heads": 1}, {"head_dim": 9}, {"vocab_size": 7}]
)
def test_numbers_that_are_not_the_graphs_are_refused_before_anything_is_built(
    device: FakeDevice, change: dict[str, int]
) -> None:
    bundle = tiny_bundle()
    with pytest.raises(TensorRtError, match=r"contradicts itself: .*export the bundle again"):
        device.engine(replace(bundle, manifest=bundle.manifest.model_copy(update=change)))
    assert device.world.builds == []


def test_the_native_graph_has_room_for_the_padding_of_its_widest_step(device: FakeDevice) -> None:
    version = fake_device(device.folder.path, "10.16.0")
    with version.engine(native_bundle(tiny_bundle())) as engine:
        assert engine.max_rows == CONTEXT + TREE_ROWS - (PREFILL - 1)
        while engine.num_rows < engine.max_rows:
            one_step(engine, min(16, engine.max_rows - engine.num_rows), last_only=True)
        with pytest.raises(AssertionError):
            one_step(engine, 1)
    version.cuda.check_nothing_is_left()


def test_rows_of_the_native_graph_are_cut_by_head() -> None:
    native = [TensorSpec(name="past_key.0", dtype="float16", shape=(1, 3, "R", 8))] * 4
    layout = row_layout(native, 100, is_native=True)
    assert (layout.tensors, layout.planes, layout.rows, layout.row_bytes) == (4, 3, 100, 16)
    portable = [TensorSpec(name="past_key.0", dtype="float", shape=("S", 3, 8))] * 4
    layout = row_layout(portable, 100, is_native=False)
    assert (layout.tensors, layout.planes, layout.rows, layout.row_bytes) == (4, 1, 100, 96)
