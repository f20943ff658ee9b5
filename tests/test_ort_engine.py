"""The ONNX Runtime engine against PyTorch run token by token along each branch."""

from __future__ import annotations

import functools
import itertools
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine
from acespec.edge_runtime.ort_session import EngineError
from acespec.models.manifest import Bundle, BundleManifest, load_bundle, write_manifest
from tiny_bundle import tiny_bundle
from tiny_target import tiny_model

TOLERANCE = 1e-4


@functools.cache
def shared_engine() -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(tiny_bundle(), tree_rows=64)


@functools.cache
def reference_logits(path: tuple[int, ...]) -> NDArray[np.float32]:
    """PyTorch's logits ``[vocab]`` after ``path``, from one plain causal forward of nothing else."""
    with torch.no_grad():
        logits = _model()(input_ids=torch.tensor([path]), use_cache=False).logits[0, -1]
    return logits[: tiny_bundle().manifest.vocab_size].numpy()


@functools.cache
def _model() -> torch.nn.Module:
    return tiny_model("llama")


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

    def path_tokens(self, row: int) -> tuple[int, ...]:
        return tuple(self.tokens[ancestor] for ancestor in self.ancestors(row))


@st.composite
def trees(draw: st.DrawFn, max_size: int = 20) -> Tree:
    """A prefix, and behind it rows that continue any earlier one or the prefix's end."""
    prefix = draw(st.integers(1, max_size // 2))
    size = draw(st.integers(prefix, max_size))
    parents = [row - 1 for row in range(prefix)]
    parents += [draw(st.integers(prefix - 1, row - 1)) for row in range(prefix, size)]
    tokens = draw(st.lists(st.integers(0, 256), min_size=len(parents), max_size=len(parents)))
    return Tree(tuple(tokens), tuple(parents))


def feed(engine: OnnxRuntimeEngine, tree: Tree, first: int, end: int) -> NDArray[np.float32]:
    """Feed rows ``first .. end - 1`` of the tree in one step; returns a copy of their logits."""
    mask = np.zeros((end - first, end), np.bool_)
    for row in range(first, end):
        mask[row - first, tree.ancestors(row)] = True
    positions = np.array([len(tree.ancestors(row)) - 1 for row in range(first, end)])
    return engine.forward(np.array(tree.tokens[first:end]), positions, mask).values.copy()


def steps(draw: st.DataObject, size: int) -> list[tuple[int, int]]:
    """Cut ``0 .. size`` into steps no wider than the widest bucket."""
    cuts = [0]
    while cuts[-1] < size:
        cuts.append(cuts[-1] + draw.draw(st.integers(1, min(16, size - cuts[-1]))))
    return list(itertools.pairwise(cuts))


@given(trees(), st.data())
@settings(max_examples=40)
def test_every_branch_equals_a_sequential_run_of_it_alone(tree: Tree, data: st.DataObject) -> None:
    engine = shared_engine()
    engine.truncate(0)
    for first, end in steps(data, len(tree.tokens)):
        logits = feed(engine, tree, first, end)
        for row in range(first, end):
            expected = reference_logits(tree.path_tokens(row))
            np.testing.assert_allclose(logits[row - first], expected, rtol=0, atol=TOLERANCE)
    assert engine.num_rows == len(tree.tokens)


@given(trees(), st.data())
@settings(max_examples=40)
def test_a_branch_kept_by_compaction_continues_like_a_fresh_prefill(tree: Tree, data: st.DataObject) -> None:
    engine = shared_engine()
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
    for offset in range(len(following)):
        expected = reference_logits(text.path_tokens(len(kept) + offset))
        np.testing.assert_allclose(logits[offset], expected, rtol=0, atol=TOLERANCE)


@given(trees(max_size=16), st.integers(1, 16), st.data())
@settings(max_examples=30)
def test_what_lies_behind_the_rows_in_use_never_counts(
    tree: Tree, poisoned: int, data: st.DataObject
) -> None:
    """Truncated rows and the padding of the last step become NaN: one that counted would spread."""
    engine = shared_engine()
    engine.truncate(0)
    cut = data.draw(st.integers(0, len(tree.tokens) - 1))
    if cut:
        feed(engine, tree, 0, cut)
    junk = Tree(tuple([3] * poisoned), tuple(range(-1, poisoned - 1)))
    engine.forward(np.array(junk.tokens), np.arange(poisoned), np.ones((poisoned, cut + poisoned), np.bool_))
    engine.truncate(cut)
    engine._rows.buffer.storage[:, cut:] = np.nan
    for new_rows in engine._rows._new_rows.values():
        new_rows[:] = np.nan
    logits = feed(engine, tree, cut, len(tree.tokens))
    for row in range(cut, len(tree.tokens)):
        expected = reference_logits(tree.path_tokens(row))
        np.testing.assert_allclose(logits[row - cut], expected, rtol=0, atol=TOLERANCE)
    assert np.isfinite(engine._rows.buffer.storage[:, : engine.num_rows]).all()


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
    [{"num_layers": 1}, {"num_layers": 10**12}, {"num_kv_heads": 1}, {"head_dim": 9}, {"vocab_size": 7}],
)
def test_numbers_that_are_not_the_graphs_are_refused_before_any_buffer_is_made(
    tmp_path: Path, changes: dict[str, int]
) -> None:
    with pytest.raises(EngineError, match=r"contradicts itself: .*export the bundle again"):
        OnnxRuntimeEngine(copied_bundle(tmp_path, **changes))


def test_a_context_beyond_the_memory_is_one_line() -> None:
    with pytest.raises(EngineError, match=r"no memory .*smaller --context"):
        OnnxRuntimeEngine(tiny_bundle(), tree_rows=2**48)
