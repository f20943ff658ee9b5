"""Validation: a right engine passes, and every way of being wrong that was thought of is found and named."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from acespec.edge_runtime.validation import (
    DEEPEST,
    LONGEST_PROMPT,
    prompt_length,
    random_tree,
    row_difference,
    validate_engine,
)
from acespec.errors import AcespecError
from acespec.models.files import sha256_of
from acespec.models.manifest import Bundle, load_bundle, write_manifest
from acespec.models.tolerances import Tolerance, run_tolerance
from acespec.speculation import DraftLogits, LogitsRow
from acespec.validate_command import validate
from fake_device import fake_device
from fake_draft import TableDraftEngine, hashed_table

VOCAB = 50
EXACT = Tolerance(0.0, 0.0)
Step = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], bool]


class ModelEngine(TableDraftEngine):
    """Computes something of whatever it is shown, sensible or not, as a model does."""

    def __init__(self, buckets: Sequence[int] = (1, 4, 8), **sizes: int) -> None:
        defaults = {"max_context": 64, "tree_rows": 32, "prefill_width": 12}
        super().__init__(hashed_table(VOCAB, salt=3), VOCAB, buckets, **(defaults | sizes))

    def _path(self, attends: NDArray[np.bool_]) -> tuple[int, ...]:
        seen = sorted(self.rows[row] for row in np.flatnonzero(attends))
        return tuple(number for position_and_token in seen for number in position_and_token)


def failures(engine: ModelEngine, windows: Sequence[int] = ()) -> set[tuple[str, int]]:
    """Check and bucket of every failure."""
    found = list(validate_engine(engine, EXACT, windows))
    assert {finding.check for finding in found} == {"prefill", "tree", "compaction"}
    assert engine.num_rows == 0
    return {(finding.check, finding.bucket) for finding in found if not finding.passed}


class Faulty(ModelEngine):
    """Changes a step before, or its logits after it is computed."""

    def __init__(self, change: Callable[[Faulty, Step], Step], **sizes: int) -> None:
        super().__init__(**sizes)
        self._change = change

    def forward(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        mask: NDArray[np.bool_],
        last_only: bool = False,
    ) -> DraftLogits:
        changed = self._change(self, (tokens, positions.copy(), mask.copy(), last_only))
        return super().forward(*changed)


def plain_causal(engine: Faulty, step: Step) -> Step:
    """Forgets the tree: a token sees all before it."""
    tokens, positions, mask, last_only = step
    return tokens, positions, np.tri(*mask.shape, engine.num_rows, dtype=np.bool_), last_only


def leaks_one(engine: Faulty, step: Step) -> Step:
    """In a bucket of 8, the last token sees the one before, whoever it is."""
    tokens, positions, mask, last_only = step
    if len(tokens) > 4 and not last_only:
        mask[-1, -2] = True
    return tokens, positions, mask, last_only


def forgets_the_step_before(engine: Faulty, step: Step) -> Step:
    """A second step of a tree does not see what the first one drafted last."""
    tokens, positions, mask, last_only = step
    if engine.num_rows == 6 + 8 and not last_only:
        mask[:, engine.num_rows - 1] = False
    return tokens, positions, mask, last_only


def places_by_row(engine: Faulty, step: Step) -> Step:
    """Positions are the rows' places in the buffer."""
    tokens, _, mask, last_only = step
    return tokens, np.arange(engine.num_rows, engine.num_rows + len(tokens)), mask, last_only


def drops_a_chunks_first(engine: Faulty, step: Step) -> Step:
    """The second wide step of a prompt does not see the first one's last row."""
    tokens, positions, mask, last_only = step
    if last_only and engine.num_rows:
        mask[:, engine.num_rows - 1] = False
    return tokens, positions, mask, last_only


def window_of_rows(window: int) -> Callable[[Faulty, Step], Step]:
    """A sliding window that counts rows, not positions."""

    def change(engine: Faulty, step: Step) -> Step:
        tokens, positions, mask, last_only = step
        rows = np.arange(mask.shape[1])
        own = engine.num_rows + np.arange(len(tokens))
        return tokens, positions, mask & (own[:, None] - rows < window), last_only

    return change


def window_of_positions(window: int) -> Callable[[Faulty, Step], Step]:
    """A sliding window as it should be."""

    def change(engine: Faulty, step: Step) -> Step:
        tokens, positions, mask, last_only = step
        rows = np.array([*(position for position, _ in engine.rows), *positions.tolist()])
        return tokens, positions, mask & (positions[:, None] - rows < window), last_only

    return change


@pytest.mark.parametrize("buckets", [(1,), (4,), (1, 4, 8), (3, 32)])
def test_a_right_engine_passes(buckets: tuple[int, ...]) -> None:
    assert failures(ModelEngine(buckets=buckets, prefill_width=max(12, *buckets))) == set()


@pytest.mark.parametrize(
    "sizes", [{"max_context": 12}, {"tree_rows": 0}, {"max_context": 16, "tree_rows": 0}]
)
def test_a_right_engine_with_little_room_passes(sizes: dict[str, int]) -> None:
    assert failures(ModelEngine(**sizes)) == set()


def test_buckets_wider_than_all_rows_are_refused_by_their_own_name() -> None:
    with pytest.raises(AcespecError, match="export with narrower --buckets"):
        failures(ModelEngine(buckets=(1, 32), prefill_width=32, max_context=20, tree_rows=4))


def test_a_context_too_short_to_check_is_refused() -> None:
    with pytest.raises(AcespecError, match="too short to validate"):
        list(validate_engine(ModelEngine(max_context=DEEPEST + 2), EXACT))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (plain_causal, {("tree", 4), ("tree", 8)}),
        (leaks_one, {("tree", 8)}),
        (forgets_the_step_before, {("tree", 8)}),
        (places_by_row, {("tree", 4), ("tree", 8), ("compaction", 4), ("compaction", 8)}),
        (drops_a_chunks_first, {("prefill", 12)}),
    ],
)
def test_a_wrong_step_is_found(change: Callable[[Faulty, Step], Step], found: set[tuple[str, int]]) -> None:
    assert failures(Faulty(change)) == found


def test_a_window_counts_positions() -> None:
    window = 9
    assert failures(Faulty(window_of_positions(window)), [window]) == set()
    assert ("tree", 8) in failures(Faulty(window_of_rows(window)), [window])


def test_the_prompt_is_longer_than_every_window_it_can_be() -> None:
    engine = ModelEngine(max_context=10_000)
    assert prompt_length(engine, []) == 12 + 6 + 1
    assert prompt_length(engine, [100, 30]) == 101
    assert prompt_length(engine, [4096]) == LONGEST_PROMPT
    assert prompt_length(ModelEngine(max_context=64), [100]) == 64 - DEEPEST - 1


class WrongCompaction(ModelEngine):
    """Keeps the first rows behind the prefix instead of those asked for."""

    def compact(self, prefix: int, rows: Sequence[int]) -> None:
        super().compact(prefix, range(prefix, prefix + len(rows)))


class NotANumber(ModelEngine):
    """A step of eight tokens overflows in its fourth."""

    def forward(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        mask: NDArray[np.bool_],
        last_only: bool = False,
    ) -> DraftLogits:
        logits = super().forward(tokens, positions, mask, last_only)
        if len(tokens) == 8 and not last_only:
            logits.values[3, 7] = np.nan
        return logits


def test_a_wrong_compaction_is_found() -> None:
    assert failures(WrongCompaction()) == {("compaction", 4), ("compaction", 8)}


def test_not_a_number_is_found_and_its_row_named() -> None:
    failed = [finding for finding in validate_engine(NotANumber(), EXACT) if not finding.passed]
    assert {(finding.check, finding.bucket, finding.row) for finding in failed} == {("tree", 8, 3)}


@given(count=st.integers(1, 200), step=st.integers(1, 100), seed=st.integers(0, 2**32))
def test_a_trees_nodes_come_before_their_children_and_none_is_too_deep(
    count: int, step: int, seed: int
) -> None:
    tree = random_tree(np.random.default_rng(seed), count, VOCAB, step)
    for node, parent in enumerate(tree.parents.tolist()):
        assert -1 <= parent < node
        assert tree.depths[node] == (0 if parent < 0 else tree.depths[parent] + 1) < DEEPEST
    path = tree.path_to_deepest()
    assert len(path) == tree.depths.max() + 1
    assert [int(tree.parents[node]) for node in path] == [-1, *path[:-1]]
    if step > 1:
        assert all(tree.parents[first] >= 0 for first in range(step, count, step)), "it spans its steps"


def largest(values: NDArray[np.float32], count: int) -> LogitsRow:
    ids = np.sort(np.argsort(values)[-count:])
    return LogitsRow(values[ids], ids, float(np.log(np.sum(np.exp(values)))))


@given(seed=st.integers(0, 2**32), count=st.integers(1, VOCAB), noise=st.sampled_from([0.0, 1e-3, 1.0]))
def test_rows_cut_to_their_largest_differ_by_no_more_than_whole_ones(
    seed: int, count: int, noise: float
) -> None:
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(VOCAB).astype(np.float32)
    other = values + noise * generator.uniform(-1, 1, VOCAB).astype(np.float32)
    whole = row_difference(LogitsRow(values), LogitsRow(other))
    assert whole == np.max(np.abs(values - other))
    assert row_difference(largest(values, count), largest(other, count)) <= whole + 1e-6


def test_a_token_that_should_not_be_among_the_largest_counts() -> None:
    row = LogitsRow(np.array([5, 4], np.float32), np.array([3, 8]), 6.0)
    other = LogitsRow(np.array([5, 7], np.float32), np.array([3, 9]), 6.0)
    assert row_difference(row, other) == 3.0  # token 9 is at 7, and in the first row at most at 4
    assert row_difference(row, LogitsRow(row.values, row.ids, 6.5)) == 0.5


def tiny() -> Bundle:
    pytest.importorskip("torch")
    bundle: Bundle = importlib.import_module("tiny_bundle").tiny_bundle()
    return bundle


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(validate, list(map(str, words)))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    shutil.copytree(tiny().folder, folder)
    return folder


def reseal(folder: Path, **changes: Any) -> None:
    """Let the manifest vouch for what its files are now."""
    manifest = tiny().manifest
    hashes = {name: sha256_of(folder / name) for name in manifest.file_sha256}
    write_manifest(folder, manifest.model_copy(update={"file_sha256": hashes, **changes}))


def test_the_command_passes_a_sound_bundle_and_compares_with_pytorch() -> None:
    bundle = tiny()
    result = run(bundle.folder, "--model", bundle.folder.parent / "tiny-llama", "--threads", "2")
    assert result.exit_code == 0, (result.output, result.exception)
    for expected in ("files have the manifest's hashes", "prefill       32 wide", "tree          16 wide"):
        assert expected in result.output
    assert "pytorch" in result.output
    assert "all checks passed" in result.output


def test_the_command_names_file_bucket_and_row_of_a_wrong_step(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tiny()
    engine = importlib.import_module("acespec.edge_runtime.ort_engine").OnnxRuntimeEngine
    right = engine.forward

    def forward(self: Any, tokens: Any, positions: Any, mask: Any, last_only: bool = False) -> DraftLogits:
        if len(tokens) == 4:
            mask = mask.copy()
            mask[2, -1] = True  # its last
        result: DraftLogits = right(self, tokens, positions, mask, last_only)
        return result

    monkeypatch.setattr(engine, "forward", forward)
    result = run(bundle.folder)
    assert isinstance(result.exception, AcespecError)
    assert f"checks of {bundle.folder} failed" in str(result.exception)
    file = bundle.manifest.graphs[0].bucket_files[4]
    assert f"FAILED {file}, bucket 4, row 2 behind 6: a tree step differs" in result.output
    assert "bucket 16" not in result.output


def test_a_tensorrt_engine_is_checked_alike(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    bundle = importlib.import_module("tiny_bundle").tiny_bundle("mistral", top_k=20)
    tolerance = run_tolerance(bundle.manifest)
    with fake_device(tmp_path).engine(bundle) as engine:
        found = list(validate_engine(engine, tolerance, [8]))
    assert len(found) == 1 + 2 * (1 + len(engine.buckets))
    assert all(finding.passed for finding in found), found


def test_a_corrupted_file_is_named(copied: Path) -> None:
    weights = next(name for name in load_bundle(copied).manifest.file_sha256 if name.endswith(".data"))
    content = bytearray((copied / weights).read_bytes())
    content[len(content) // 2] ^= 0x40
    (copied / weights).write_bytes(content)
    error = run(copied).exception
    assert isinstance(error, AcespecError)
    assert f"bundle file {copied / weights} is damaged" in str(error)


def test_other_weights_under_a_right_manifest_are_found_by_pytorch_alone(copied: Path) -> None:
    weights = next(name for name in load_bundle(copied).manifest.file_sha256 if name.endswith(".data"))
    values = np.frombuffer((copied / weights).read_bytes(), np.float32).copy()
    values[len(values) // 4 :] *= 1.05
    (copied / weights).write_bytes(values.tobytes())
    reseal(copied)
    assert run(copied).exit_code == 0
    result = run(copied, "--model", tiny().folder.parent / "tiny-llama")
    assert isinstance(result.exception, AcespecError)
    assert "bucket 16, row" in result.output
    assert "the logits differ from PyTorch's" in result.output


def test_a_graph_that_is_not_the_manifests_is_named(copied: Path) -> None:
    variant = load_bundle(copied).manifest.graphs[0]
    renamed = variant.inputs[0].model_copy(update={"name": "tokens"})
    wrong = variant.model_copy(update={"inputs": (renamed, *variant.inputs[1:])})
    reseal(copied, graphs=(wrong,))
    error = run(copied).exception
    assert isinstance(error, AcespecError)
    assert str(copied) in str(error)


def test_another_models_logits_are_no_reference(tmp_path: Path) -> None:
    bundle = tiny()
    other = tmp_path / "other"
    shutil.copytree(bundle.folder.parent / "tiny-llama", other)
    importlib.import_module("tiny_target").tiny_model("qwen3").save_pretrained(other)
    result = run(bundle.folder, "--model", other)
    assert isinstance(result.exception, AcespecError)
    assert "was not exported from" in str(result.exception)
    assert result.output == "", "it was refused before the first check"


def test_a_runtime_without_a_graph_is_refused(copied: Path) -> None:
    variant = load_bundle(copied).manifest.graphs[0]
    reseal(copied, graphs=(variant.model_copy(update={"name": "native"}),))
    error = run(copied).exception
    assert isinstance(error, AcespecError)
    assert "onnxruntime runs none of the graphs" in str(error)
