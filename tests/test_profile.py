"""Profiling: the medians of what a clock said, at the contexts and buckets that count."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from acespec.edge_runtime.profile_command import profile
from acespec.edge_runtime.profiler import measure_engine, measure_prefill, profile_contexts
from acespec.errors import AcespecError
from acespec.models.latency import machine_name
from acespec.models.manifest import load_bundle
from acespec.speculation import DraftLogits
from tiny_bundle import tiny_bundle


class TimedEngine:
    """An engine whose step of n tokens behind S rows takes ``10 n + S`` milliseconds, more when cold."""

    buckets = (1, 8)
    prefill_width = 32
    max_context = 300
    max_rows = 400
    vocab_size = 4

    def __init__(self) -> None:
        self.num_rows = 0
        self.now_ms = 0.0
        self.seen: dict[tuple[int, int], int] = {}

    def forward(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        mask: NDArray[np.bool_],
        last_only: bool = False,
    ) -> DraftLogits:
        count = len(tokens)
        assert count in self.buckets or count < 8 or (last_only and count == self.prefill_width)
        assert mask.shape == (count, self.num_rows + count)
        assert mask[:, : self.num_rows + 1].all()
        assert positions.max() < self.max_context
        times = self.seen[count, self.num_rows] = self.seen.get((count, self.num_rows), 0) + 1
        cold_ms = 1000.0 if times <= 2 else 0.0
        outlier_ms = 500.0 if times == 4 else 0.0
        self.now_ms += 10.0 * count + self.num_rows + cold_ms + outlier_ms
        self.num_rows += count
        return DraftLogits(np.zeros((count, self.vocab_size), np.float32))

    def compact(self, prefix: int, rows: Sequence[int]) -> None:
        raise AssertionError("profiling keeps no branch")

    def truncate(self, num_rows: int) -> None:
        self.num_rows = num_rows


def test_each_point_is_the_median_of_warm_steps() -> None:
    engine = TimedEngine()
    points = list(measure_engine(engine, repeats=3, clock=lambda: engine.now_ms / 1000.0))
    assert [(point.bucket, point.context) for point in points] == [
        (bucket, context) for context in (64, 256, 292) for bucket in (1, 8)
    ]
    for point in points:
        assert point.median_ms == pytest.approx(10.0 * point.bucket + point.context)
    assert engine.num_rows == 0


def test_the_prefill_is_one_wide_step_on_an_empty_buffer() -> None:
    engine = TimedEngine()
    point = measure_prefill(engine, repeats=3, clock=lambda: engine.now_ms / 1000.0)
    assert (point.bucket, point.context, point.median_ms) == (32, 0, pytest.approx(320.0))
    assert engine.num_rows == 0


def test_contexts_leave_room_for_the_widest_step() -> None:
    assert profile_contexts(2048, 32) == (64, 256, 512, 1024, 2016)
    assert profile_contexts(96, 32) == (64,)
    assert profile_contexts(40, 32) == (8,)
    assert profile_contexts(16, 32) == (0,)


def test_a_bucket_wider_than_all_rows_is_measured_at_what_fits() -> None:
    engine = TimedEngine()
    engine.buckets, engine.max_context, engine.max_rows = (1, 8), 3, 5
    (_, wide) = measure_engine(engine, repeats=1, clock=lambda: engine.now_ms / 1000)
    assert (wide.bucket, wide.context, wide.median_ms) == (8, 0, pytest.approx(50.0))


def test_the_command_stores_what_it_measured_in_the_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "[/bundle]"
    shutil.copytree(tiny_bundle().folder, folder)
    result = CliRunner().invoke(profile, [str(folder), "--repeats", "1", "--threads", "2"])
    assert result.exit_code == 0, result.output
    assert "[/bundle]" in result.output
    manifest = load_bundle(folder).manifest
    assert manifest.latency is not None
    assert (manifest.latency.machine, manifest.latency.threads) == (machine_name(), 2)
    assert manifest.latency.runs_on == "onnxruntime/cpu"
    assert {(p.bucket, p.context) for p in manifest.latency.points} == {
        (bucket, context) for bucket in (1, 4, 16) for context in (64, 80)
    }
    assert [(p.bucket, p.context) for p in manifest.latency.prefill] == [(32, 0)]
    assert manifest.model_copy(update={"latency": None}) == tiny_bundle().manifest


def test_a_bundle_that_cannot_be_written_is_refused_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_bundle().folder, folder)

    def read_only(*_: object, **__: object) -> None:  # rights do not keep root out
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    result = CliRunner().invoke(profile, [str(folder)])
    assert isinstance(result.exception, AcespecError)
    assert f"cannot write {folder / 'manifest.json'} (Read-only file system)" in str(result.exception)
    assert "bucket" not in result.output


def test_a_machine_has_a_name() -> None:
    assert machine_name().endswith("cores")
    assert "\n" not in machine_name()
