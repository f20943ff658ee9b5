"""Opening an engine by the name of its runtime."""

from __future__ import annotations

import importlib.util

import pytest

from acespec.edge_runtime import providers
from acespec.edge_runtime.runtimes import PROVIDERS, open_engine
from acespec.errors import AcespecError
from acespec.options import RUNTIMES
from tiny_bundle import tiny_bundle


def test_every_provider_has_onnx_runtimes_name() -> None:
    assert set(PROVIDERS) == {"auto", *providers.PROVIDERS}


def test_onnx_runtime_says_what_it_runs_on() -> None:
    opened = open_engine(tiny_bundle(), threads=1)
    assert opened.runs_on in ("onnxruntime/cpu", "onnxruntime/cuda")
    assert open_engine(tiny_bundle(), threads=1, provider="cpu").runs_on == "onnxruntime/cpu"


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "onnxruntime"])
def test_tensorrt_has_no_providers(runtime: str) -> None:
    with pytest.raises(AcespecError, match=f"{runtime} has no providers"):
        open_engine(tiny_bundle(), 1, runtime, "cuda")  # type: ignore[arg-type]


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="this machine has TensorRT")
def test_a_runtime_that_is_not_installed_is_named_with_its_remedy() -> None:
    with pytest.raises(AcespecError, match=r"tensorrt cannot be imported .*apt-get install"):
        open_engine(tiny_bundle(), 1, "tensorrt")
