"""What every test file shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The machine may be slow or busy: how long an example takes says nothing about the code. CI draws the same
# examples each time.
settings.register_profile(
    "acespec",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
    print_blob=True,
)
settings.load_profile("acespec")

CLOUD_MODULES = (
    "accelerate",
    "cryptography",
    "gguf",
    "grpc_health",
    "jwt",
    "ml_dtypes",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "opentelemetry",
    "prometheus_client",
    "safetensors",
    "tomllib",
    "torch",
    "transformers",
    "yaml",
)
"""Modules the ``edge`` extra does not bring, or Python 3.10 lacks."""
DEVICE_MODULES = {"tensorrt"}
"""Modules no extra brings, for they come with the device. Imported by name where they are used."""


class EdgeAwareModule(pytest.Module):
    """A test file that is skipped, by name, where it needs a module the device does not have.

    The edge's own folders cannot hide behind this: ``test_imports.py`` has no skips, and fails if one of them
    needs such a module.
    """

    def _getobj(self) -> object:
        try:
            return super()._getobj()  # type: ignore[no-untyped-call]
        except self.CollectError as error:
            cause = error.__cause__
            if isinstance(cause, ModuleNotFoundError) and (cause.name or "").split(".")[0] in CLOUD_MODULES:
                pytest.skip(f"needs {cause.name}", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return EdgeAwareModule.from_parent(parent, path=module_path)
