"""The ONNX Runtime engine against PyTorch run token by token along each branch."""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine
from acespec.edge_runtime.ort_graph import choose_graph
from acespec.edge_runtime.ort_session import EngineError
from acespec.models.manifest import Bundle, BundleError, BundleManifest, load_bundle, write_manifest
from acespec.speculation import DraftLogits
from tiny_bundle import tiny_bundle, tiny_decoder

TOLERANCE, HALF_TOLERANCE = 1e-4, 0.05
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "portable": ("llama", {}),
    "ort": ("llama", {"graph": "ort"}),
    "window, fixed shapes": ("mistral", {"layout": "split"}),
    "mixed windows, ort": ("gemma 3", {"graph": "ort"}),
    "mixed windows, largest logits": ("gemma 3", {"top_k": 7}),
}
"""Engines by family and export options, all in float32. Windows are of eight positions."""
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def shared_engine(kind: str = "portable") -> OnnxRuntimeEngine:
    family, options = KINDS[kind]
    return OnnxRuntimeEngine(tiny_bundle(family, **options), tree_rows=64)


@torch.no_grad()
def reference_logits(family: str, paths: list[list[int]]) -> list[NDArray[np.float32]]:
    """PyTorch's logits ``[len(path), vocab]`` of each path: one plain causal forward, a path a sequence."""
    longest = max(map(len, paths))
    padded = torch.tensor([path + [0] * (longest - len(path)) for path in paths])
    logits = tiny_decoder(family)(input_ids=padded, use_cache=False).logits.numpy()
    vocab_size = tiny_bundle().manifest.vocab_size
    return [rows[: len(path), :vocab_size] for rows, path in zip(logits, paths, strict=True)]


@dataclass(frozen=True)
class Tree:
    """Tokens in the order fed; ``parents[i] < i`` is the row each continues, -1 for a first one."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def ancestors(self, row: int) -> list[int]:
        """Rows from the root to ``row``, itself included."""
        path = []
        while row >= 0:
            path.append(row)
            row = self.parents[row]
        return path[::-1]

    def expected_logits(self, kind: str) -> NDArray[np.float32]:
        """PyTorch's logits of every row, each branch run alone."""
        leaves = sorted(set(range(len(self.tokens))) - set(self.parents))
        paths = [self.ancestors(leaf) for leaf in leaves]
        texts = [[self.tokens[row] for row in path] for path in paths]
        expected = np.empty((len(self.tokens), tiny_bundle().manifest.vocab_size), np.float32)
        for path, logits in zip(paths, reference_logits(KINDS[kind][0], texts), strict=True):
            expected[path] = logits
        return expected


@st.composite
def trees(draw: st.DrawFn, max_size: int = 20) -> Tree:
    """A prefix, and behind it rows that continue any earlier one or the prefix's end."""
    prefix = draw(st.integers(1, max_size // 2))
    size = draw(st.integers(prefix, max_size))
    parents = [row - 1 for row in range(prefix)]
    parents += [draw(st.integers(prefix - 1, row - 1)) for row in range(prefix, size)]
    tokens = draw(st.lists(st.integers(0, 256), min_size=len(parents), max_size=len(parents)))
    return Tree(tuple(tokens), tuple(parents))


def feed(engine: OnnxRuntimeEngine, tree: Tree, first: int, end: int) -> DraftLogits:
    """Feed rows ``first .. end - 1`` of the tree in one step; returns their logits."""
    mask = np.zeros((end - first, end), np.bool_)
    for row in range(first, end):
        mask[row - first, tree.ancestors(row)] = True
    positions = np.array([len(tree.ancestors(row)) - 1 for row in range(first, end)])
    return engine.forward(np.array(tree.tokens[first:end]), positions, mask)


def steps(draw: st.DataObject, size: int) -> list[tuple[int, int]]:
    """Cut ``0 .. size`` into steps no wider than the widest bucket."""
    cuts = [0]
    while cuts[-1] < size:
        cuts.append(cuts[-1] + draw.draw(st.integers(1, min(16, size - cuts[-1]))))
    return list(itertools.pairwise(cuts))


def check(actual: DraftLogits, expected: NDArray[np.float32]) -> None:
    """``expected`` are whole rows. Largest logits must be the largest and belong to the tokens named."""
    assert len(actual) == len(expected)
    values = expected
    if actual.ids is not None:
        assert actual.log_sum_exp is not None
        totals = np.log(np.exp(expected.astype(np.float64)).sum(axis=1))
        np.testing.assert_allclose(actual.log_sum_exp, totals, rtol=0, atol=TOLERANCE)
        values = np.take_along_axis(expected, actual.ids, axis=1)
        largest = -np.sort(-expected, axis=1)[:, : actual.ids.shape[1]]
        np.testing.assert_allclose(actual.values, largest, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(actual.values, values, rtol=0, atol=TOLERANCE)


@each_kind
@given(trees(), st.data())
@settings(max_examples=20)
def test_every_branch_equals_a_sequential_run_of_it_alone(kind: str, tree: Tree, data: st.DataObject) -> None:
    engine = shared_engine(kind)
    engine.truncate(0)
    expected = tree.expected_logits(kind)
    for first, end in steps(data, len(tree.tokens)):
        check(feed(engine, tree, first, end), expected[first:end])
    assert engine.num_rows == len(tree.tokens)


@each_kind
@given(trees(), st.data())
@settings(max_examples=20)
def test_a_branch_kept_by_compaction_continues_like_a_fresh_prefill(
    kind: str, tree: Tree, data: st.DataObject
) -> None:
    """Rows behind which others went are further apart than their positions: windows must not mind."""
    engine = shared_engine(kind)
    engine.truncate(0)
    for first, end in steps(data, len(tree.tokens)):
        feed(engine, tree, first, end)
    path = tree.ancestors(data.draw(st.integers(0, len(tree.tokens) - 1)))
    prefix = next((row for row, kept in enumerate(path) if row != kept), len(path))
    engine.compact(prefix, path[prefix:])
    kept = tuple(tree.tokens[row] for row in path)
    following = tuple(data.draw(st.lists(st.integers(0, 256), min_size=1, max_size=16)))
    text = Tree(kept + following, tuple(range(-1, len(kept) + len(following) - 1)))
    logits = feed(engine, text, len(kept), len(text.tokens))
    check(logits, text.expected_logits(kind)[len(kept) :])


@each_kind
def test_windows_count_the_positions_of_moved_rows(kind: str) -> None:
    """A branch behind seven siblings of its root: where its rows go, other positions stood."""
    engine = shared_engine(kind)
    engine.truncate(0)
    parents = (-1, 0, 1, 2, *[3] * 8, *range(11, 17))
    tree = Tree(tuple(range(20, 20 + len(parents))), parents)
    feed(engine, tree, 0, 12)
    feed(engine, tree, 12, len(parents))
    path = tree.ancestors(len(parents) - 1)
    engine.compact(4, path[4:])
    text = Tree(tuple(tree.tokens[row] for row in path) + tuple(range(100, 112)), tuple(range(-1, 22)))
    logits = feed(engine, text, len(path), len(text.tokens))
    check(logits, text.expected_logits(kind)[len(path) :])


def test_float16_rows_and_masks_give_the_same_logits_but_for_rounding() -> None:
    engine = OnnxRuntimeEngine(tiny_bundle(precision="fp16"), tree_rows=64)
    assert engine._rows.buffer.storage.dtype == np.float16
    parents = (-1, 0, 1, 2, *[3] * 8, *range(11, 17))
    tree = Tree(tuple(range(20, 20 + len(parents))), parents)
    expected = tree.expected_logits("portable")
    for first, end in ((0, 3), (3, 12), (12, len(parents))):
        logits = feed(engine, tree, first, end).values
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits, expected[first:end], rtol=0, atol=HALF_TOLERANCE)


@each_kind
@given(trees(max_size=16), st.integers(1, 16), st.data())
@settings(max_examples=15)
def test_what_lies_behind_the_rows_in_use_never_counts(
    kind: str, tree: Tree, poisoned: int, data: st.DataObject
) -> None:
    """Truncated rows and the padding of the last step become NaN: one that counted would spread.

    Graphs with fixed shapes read them, so there they become large instead: masked, they have no weight.
    """
    engine = shared_engine(kind)
    engine.truncate(0)
    cut = data.draw(st.integers(0, len(tree.tokens) - 1))
    if cut:
        feed(engine, tree, 0, cut)
    poison = 100.0 if "fixed" in kind else np.nan
    junk = Tree(tuple([3] * poisoned), tuple(range(-1, poisoned - 1)))
    engine.forward(np.array(junk.tokens), np.arange(poisoned), np.ones((poisoned, cut + poisoned), np.bool_))
    engine.truncate(cut)
    storage = engine._rows.buffer.storage
    storage[:, cut:] = poison
    for new_rows in getattr(engine._rows, "_new_rows", {}).values():
        new_rows[:] = poison
    logits = feed(engine, tree, cut, len(tree.tokens))
    check(logits, tree.expected_logits(kind)[cut:])
    assert np.isfinite(storage[:, : engine.num_rows]).all()


@each_kind
@given(st.lists(st.integers(0, 256), min_size=1, max_size=70), st.data())
@settings(max_examples=10)
def test_a_prompt_fed_in_wide_steps_ends_in_the_same_logits(
    kind: str, tokens: list[int], data: st.DataObject
) -> None:
    engine = shared_engine(kind)
    assert engine.prefill_width == 32
    engine.truncate(0)
    while engine.num_rows < len(tokens):
        first = engine.num_rows
        end = first + data.draw(st.integers(1, min(32, len(tokens) - first)))
        mask = np.tri(end - first, end, first, dtype=np.bool_)
        logits = engine.forward(np.array(tokens[first:end]), np.arange(first, end), mask, last_only=True)
        assert len(logits) == 1
    (expected,) = reference_logits(KINDS[kind][0], [tokens])
    check(logits, expected[-1:])


def test_a_step_narrower_than_its_bucket_takes_only_its_own_rows_into_use() -> None:
    engine = shared_engine()
    engine.truncate(0)
    engine._rows.buffer.storage[:] = np.nan
    engine.forward(np.array([5, 6]), np.arange(2), np.tri(2, dtype=np.bool_))
    assert engine.num_rows == 2
    assert np.isfinite(engine._rows.buffer.storage[:, :2]).all()
    assert np.isnan(engine._rows.buffer.storage[:, 2:]).all()


def test_it_says_what_the_bundle_says() -> None:
    engine, manifest = shared_engine(), tiny_bundle().manifest
    assert engine.buckets == (1, 4, 16)
    assert engine.max_context == manifest.max_context == 96
    assert engine.max_rows == 96 + 64
    assert engine.vocab_size == manifest.vocab_size == 257


def test_the_buffer_can_be_filled_to_its_last_row() -> None:
    engine = OnnxRuntimeEngine(tiny_bundle(), tree_rows=3, max_context=15)
    for first in range(0, 18, 3):
        mask = np.tri(3, first + 3, first, dtype=np.bool_)
        engine.forward(np.array([1, 2, 3]), np.minimum(np.arange(first, first + 3), 14), mask)
    assert engine.num_rows == engine.max_rows == 18
    with pytest.raises(AssertionError):
        engine.forward(np.array([1]), np.array([0]), np.ones((1, 19), np.bool_))


def test_positions_the_model_does_not_know_are_a_bug() -> None:
    engine = shared_engine()
    engine.truncate(0)
    with pytest.raises(AssertionError):
        engine.forward(np.array([1]), np.array([96]), np.ones((1, 1), np.bool_))


def copied_bundle(folder: Path, **changes: object) -> Bundle:
    """The tiny bundle in ``folder`` with a manifest changed to match whatever the test does to it."""
    shutil.copytree(tiny_bundle().folder, folder, dirs_exist_ok=True)
    manifest = tiny_bundle().manifest.model_dump() | changes
    write_manifest(folder, BundleManifest.model_validate(manifest))
    return load_bundle(folder)


def test_a_graph_onnx_runtime_cannot_read_is_named(tmp_path: Path) -> None:
    bundle = copied_bundle(tmp_path)
    (tmp_path / "portable.onnx").write_bytes(b"not a graph")
    with pytest.raises(EngineError, match=r"portable\.onnx .*export the bundle again") as caught:
        OnnxRuntimeEngine(bundle)
    assert "\n" not in str(caught.value)


def test_a_graph_that_is_not_what_the_manifest_says_is_refused(tmp_path: Path) -> None:
    graph = tiny_bundle().manifest.graphs[0].model_dump()
    graph["outputs"] = [
        spec | {"shape": (1, "N", 300)} if spec["name"] == "logits" else spec for spec in graph["outputs"]
    ]
    bundle = copied_bundle(tmp_path, graphs=[graph], vocab_size=300)
    with pytest.raises(EngineError, match=r"no output .*logits"):
        OnnxRuntimeEngine(bundle)


@pytest.mark.parametrize(
    "changes",
    [{"num_layers": 1}, {"num_layers": 2**31 - 1}, {"num_kv_heads": 1}, {"head_dim": 9}, {"vocab_size": 7}],
)
def test_numbers_that_are_not_the_graphs_are_refused_before_any_buffer_is_made(
    tmp_path: Path, changes: dict[str, int]
) -> None:
    with pytest.raises(EngineError, match=r"contradicts itself: .*export the bundle again"):
        OnnxRuntimeEngine(copied_bundle(tmp_path, **changes))


def test_rows_of_a_type_that_cannot_be_fed_are_refused_by_name(tmp_path: Path) -> None:
    graph = tiny_bundle().manifest.graphs[0].model_dump()
    for specs in (graph["inputs"], graph["outputs"]):
        for spec in specs:
            if "_key." in spec["name"] or "_value." in spec["name"]:
                spec["dtype"] = "bfloat16"
    with pytest.raises(EngineError, match=r"rows in bfloat16.*--precision fp32.*TensorRT"):
        OnnxRuntimeEngine(copied_bundle(tmp_path, graphs=[graph]))


def test_the_cpu_runs_the_ort_graph_where_there_are_both(tmp_path: Path) -> None:
    """Another device cannot: there it is refused, and auto stays on the CPU."""
    both = copied_bundle(tmp_path)
    ort_bundle = tiny_bundle(graph="ort")
    assert choose_graph(ort_bundle, "auto") == ("cpu", ort_bundle.graph("ort"))
    graphs = (*both.manifest.graphs, *ort_bundle.manifest.graphs)
    bundle = Bundle(tmp_path, both.manifest.model_copy(update={"graphs": graphs}))
    assert choose_graph(bundle)[1].name == "ort"
    assert choose_graph(bundle, "cpu", "portable")[1].name == "portable"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acespec.edge_runtime.ort_graph.choose_provider", lambda _: "cuda")
        assert choose_graph(bundle, "auto") == ("cuda", bundle.graph("portable"))
        with pytest.raises(EngineError, match="the ort graph runs on the CPU alone"):
            choose_graph(bundle, "cuda", "ort")
        with pytest.raises(BundleError, match="no 'portable' graph"):
            choose_graph(ort_bundle, "cuda")
    with pytest.raises(EngineError, match=r"TensorRT alone runs the native graph"):
        choose_graph(bundle, graph="native")


def test_a_step_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = OnnxRuntimeEngine(tiny_bundle())

    def out_of_memory(*_: object) -> None:
        raise RuntimeError("Failed to allocate memory\nfor requested buffer")

    for file in engine._files.values():
        monkeypatch.setattr(file.session, "run_with_iobinding", out_of_memory)
    with pytest.raises(EngineError, match=r"failed in a step \(Failed to allocate memory for .*--context"):
        engine.forward(np.array([1]), np.array([0]), np.ones((1, 1), np.bool_))


def test_a_context_beyond_the_memory_is_one_line() -> None:
    with pytest.raises(EngineError, match=r"no memory .*smaller --context"):
        OnnxRuntimeEngine(tiny_bundle(), tree_rows=2**48)
