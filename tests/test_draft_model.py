"""Where a draft's step times come from, and what is said when they are a guess."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from acespec.edge_runtime.draft_model import load_draft
from acespec.models.latency import LatencyPoint, LatencyProfile, machine_name
from acespec.models.manifest import Bundle
from tiny_bundle import tiny_bundle

BUCKETS = (1, 4, 16)


def profiled(
    machine: str, threads: int, buckets: tuple[int, ...] = BUCKETS, runs_on: str = "onnxruntime/cpu"
) -> Bundle:
    """The tiny bundle, its step of n tokens behind S rows said to take ``n + S`` milliseconds."""
    points = tuple(
        LatencyPoint(bucket=bucket, context=context, median_ms=bucket + context)
        for bucket in buckets
        for context in (10, 30)
    )
    latency = LatencyProfile(machine=machine, threads=threads, runs_on=runs_on, points=points)
    bundle = tiny_bundle()
    return dataclasses.replace(bundle, manifest=bundle.manifest.model_copy(update={"latency": latency}))


def remarks(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the draft's loading said; the export of the tiny bundle may have logged before."""
    return [record for record in caplog.records if record.name == "acespec.edge_runtime.draft_model"]


def test_step_times_are_the_profiles_without_a_word_on_the_machine_it_was_made_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    draft = load_draft(profiled(machine_name(), threads=1), threads=1)
    draft.runner.close()
    assert draft.profile_at(20) == {1: 21.0, 4: 24.0, 16: 36.0}
    assert not remarks(caplog)


@pytest.mark.parametrize(
    ("machine", "threads", "runs_on"),
    [
        ("another machine, 12 cores", 1, "onnxruntime/cpu"),
        (machine_name(), 3, "onnxruntime/cpu"),
        (machine_name(), 1, "tensorrt"),
    ],
)
def test_a_profile_of_other_circumstances_is_used_with_one_warning(
    caplog: pytest.LogCaptureFixture, machine: str, threads: int, runs_on: str
) -> None:
    bundle = profiled(machine, threads, runs_on=runs_on)
    draft = load_draft(bundle, threads=1)
    draft.runner.close()
    assert draft.profile_at(20) == {1: 21.0, 4: 24.0, 16: 36.0}
    (record,) = remarks(caplog)
    assert record.levelno == logging.WARNING
    assert f"measured on {machine} ({runs_on}) with {threads} threads" in record.getMessage()
    assert record.getMessage().endswith(f"acespec profile {bundle.folder} --threads 1")


@pytest.mark.parametrize("buckets", [None, BUCKETS[:2]])
def test_without_a_profile_of_every_bucket_a_few_steps_are_measured_and_forgotten(
    caplog: pytest.LogCaptureFixture, buckets: tuple[int, ...] | None
) -> None:
    bundle = tiny_bundle() if buckets is None else profiled(machine_name(), 1, buckets)
    draft = load_draft(bundle, threads=1)
    draft.runner.close()
    measured = draft.profile_at(0)
    assert tuple(measured) == BUCKETS
    assert all(milliseconds > 0.0 for milliseconds in measured.values())
    assert draft.profile_at(500) == measured
    assert draft.engine.num_rows == 0
    assert "has no latency profile" in caplog.text


def test_steps_wider_than_the_context_are_measured_too() -> None:
    bundle = tiny_bundle()
    manifest = bundle.manifest.model_copy(update={"max_context": 3})
    draft = load_draft(dataclasses.replace(bundle, manifest=manifest), threads=1)
    draft.runner.close()
    assert tuple(draft.profile_at(0)) == BUCKETS
