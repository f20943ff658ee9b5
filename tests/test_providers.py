"""The trial of ONNX Runtime's providers, and the choice among them: only what really computes is used."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from acespec.edge_runtime import providers
from acespec.edge_runtime.providers import (
    CPU,
    ProviderError,
    ProviderTrial,
    choose_provider,
    matrix_product_model,
    try_provider,
)

CUDA = "CUDAExecutionProvider"
LISTED = ["TensorrtExecutionProvider", CUDA, CPU]


def test_the_hand_written_model_is_a_matrix_product() -> None:
    session = onnxruntime.InferenceSession(matrix_product_model(), providers=[CPU])
    matrix = np.array([[1, -2], [0.5, 4]], np.float32)
    (product,) = session.run(None, {"x": matrix})
    np.testing.assert_array_equal(product, matrix @ matrix)


def test_the_hand_written_model_is_valid_onnx() -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(matrix_product_model())
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["MatMul"]


def test_the_cpu_runs() -> None:
    assert try_provider(CPU) == ProviderTrial(CPU, True, "")


def test_a_provider_that_is_not_in_the_build_does_not_run() -> None:
    trial = try_provider("NonesuchExecutionProvider")
    assert not trial.runs
    assert trial.reason == f"this build of onnxruntime {onnxruntime.__version__} does not have it"


@pytest.mark.parametrize("name", onnxruntime.get_available_providers())
def test_no_listed_provider_stops_the_trial(name: str) -> None:
    trial = try_provider(name)
    assert trial.runs == (trial.reason == "")
    assert "\n" not in trial.reason


class FakeSession:
    """What ONNX Runtime does with a provider that is listed."""

    used = (CUDA, CPU)
    product: Any = np.array([[7, 10], [15, 22]], np.float32)
    error: Exception | None = None

    def __init__(self, model: bytes, options: Any, providers: list[str], enable_fallback: int) -> None:
        assert providers == [CUDA]
        assert not enable_fallback, "ONNX Runtime would start again on the CPU"
        assert options.get_session_config_entry("session.disable_cpu_ep_fallback") == "1"
        if self.error is not None:
            raise self.error

    def get_providers(self) -> list[str]:
        return list(self.used)

    def run(self, names: None, feed: dict[str, Any]) -> list[Any]:
        return [self.product]


def trial_with(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> ProviderTrial:
    """The trial of CUDA where it is listed and behaves as ``changes`` say."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    session = type("Session", (FakeSession,), changes)
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    return try_provider(CUDA)


def test_a_listed_provider_that_computes_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trial_with(monkeypatch) == ProviderTrial(CUDA, True, "")


def test_a_silent_fall_back_to_the_cpu_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = trial_with(monkeypatch, used=(CPU,))
    assert trial == ProviderTrial(CUDA, False, f"ONNX Runtime uses {CPU} instead")


def test_a_provider_that_is_given_no_work_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("... but fallback to CPU EP has been explicitly disabled\nby the user.")
    assert trial_with(monkeypatch, error=error).reason == (
        "ONNX Runtime gives it no work: it did not start, or cannot multiply matrices"
    )


def test_a_provider_that_fails_says_why_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = trial_with(monkeypatch, error=RuntimeError("CUDA failure 35:\n  driver too old"))
    assert trial == ProviderTrial(CUDA, False, "CUDA failure 35: driver too old")


def test_a_provider_that_computes_wrongly_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = trial_with(monkeypatch, product=np.zeros((2, 2), np.float32))
    assert not trial.runs
    assert trial.reason == "it computes [[0.0, 0.0], [0.0, 0.0]], not [[7.0, 10.0], [15.0, 22.0]]"


def offer(monkeypatch: pytest.MonkeyPatch, listed: list[str], running: set[str]) -> list[str]:
    """Have ``listed`` providers, of which ``running`` pass their trial. Returns a list of those tried."""
    tried: list[str] = []

    def trial(name: str) -> ProviderTrial:
        tried.append(name)
        runs = name in running
        return ProviderTrial(name, runs, "" if runs else "libcudnn is missing")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: listed)
    monkeypatch.setattr(providers, "try_provider", trial)
    return tried


def test_auto_is_cuda_where_it_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = offer(monkeypatch, LISTED, {CUDA})
    assert choose_provider("auto") == "cuda"
    assert tried == [CUDA], "TensorRT builds for minutes: only by name"
    assert not caplog.records


def test_a_listed_provider_that_fails_is_reported_and_the_cpu_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offer(monkeypatch, LISTED, set())
    assert choose_provider("auto") == "cpu"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert CUDA in record.getMessage()
    assert "libcudnn is missing" in record.getMessage()


@pytest.mark.parametrize("wanted", ["auto", "cpu"])
def test_the_cpu_needs_no_trial(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wanted: str
) -> None:
    assert not offer(monkeypatch, LISTED[2:], set())
    assert choose_provider(wanted) == "cpu"
    assert not caplog.records


@pytest.mark.parametrize("wanted", ["cuda", "tensorrt"])
def test_a_provider_asked_for_by_name_runs_or_is_an_error(
    monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    offer(monkeypatch, LISTED, set(LISTED))
    assert choose_provider(wanted) == wanted
    offer(monkeypatch, LISTED, set())
    with pytest.raises(
        ProviderError, match=rf"cannot run on {wanted} \(libcudnn is missing\).*--provider cpu"
    ):
        choose_provider(wanted)
