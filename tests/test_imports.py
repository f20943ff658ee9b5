"""Who may import whom, and what the device must do without."""

from __future__ import annotations

import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import CLOUD_MODULES
from source_imports import imports_of

ROOT = Path(__file__).resolve().parent.parent

MAY_IMPORT = {
    "speculation": set(),
    "wire": {"speculation"},
    "models": {"speculation"},
    "export": {"speculation", "wire", "models"},
    "edge_runtime": {"speculation", "wire", "models"},
    "cloud_verifier": {"speculation", "wire", "models"},
    "bench": {"speculation", "wire", "models", "export", "edge_runtime", "cloud_verifier"},
}
ROOT_MODULES = {"__version__", "compute", "errors", "logs", "machine", "options", "private_files"}
EDGE_PACKAGES = ("acespec.speculation", "acespec.wire", "acespec.edge_runtime")
TORCH_FREE_MODELS = ("cache", "chat", "fingerprint", "manifest", "pairs", "sources", "vocabulary")

BLOCKER = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {CLOUD_MODULES}:
            raise ModuleNotFoundError(f"{{name}} is not on the device", name=name)

sys.meta_path.insert(0, Blocker())
"""


def source_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def violations(folder: str, source: str) -> list[str]:
    """What in ``source``, a file of ``folder``, breaks the rules."""
    allowed = MAY_IMPORT[folder] | ROOT_MODULES | {folder}
    found = []
    for line, name in imports_of(source):
        parts = name.split(".")
        if parts[0] == "":
            found.append(f"{line}: relative import {name}")
        elif parts[0] in MAY_IMPORT:
            found.append(f"{line}: {name} must be imported as acespec.{name}")
        elif parts[0] == "acespec" and len(parts) > 1 and parts[1] not in allowed:
            found.append(f"{line}: {folder} may not import {name}")
        elif folder in ("speculation", "wire", "edge_runtime") and parts[0] in CLOUD_MODULES:
            found.append(f"{line}: the device has no {name}")
    return found


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folders_import_only_what_they_may(folder: str) -> None:
    assert source_files(folder), f"{folder}/ holds no Python"
    assert [
        f"{path.relative_to(ROOT)}:{violation}"
        for path in source_files(folder)
        for violation in violations(folder, path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("edge_runtime", "import torch.nn"),
        ("wire", "from acespec.models import pairs"),
        ("cloud_verifier", "from acespec import edge_runtime"),
        ("export", "def late():\n    from acespec.edge_runtime.engine import DraftEngine"),
        ("models", "import importlib; importlib.import_module('acespec.export.graph')"),
        ("bench", "import wire.codec"),
        ("speculation", "from .params import SamplingParams"),
        ("speculation", "from acespec import cli"),
    ],
)
def test_each_rule_catches_its_breach(folder: str, line: str) -> None:
    assert len(violations(folder, line)) == 1


def run_on_the_device(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter that has only what the device has."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKER + code], capture_output=True, text=True, check=False, timeout=120
    )


def modules_of(package: str) -> list[str]:
    """The package and every module in it, found without importing any."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    inside = pkgutil.walk_packages(spec.submodule_search_locations, f"{package}.")
    return [package, *(module.name for module in inside)]


@pytest.mark.parametrize("package", EDGE_PACKAGES)
def test_every_edge_module_imports_on_the_device(package: str) -> None:
    modules = modules_of(package)
    assert len(modules) > 2
    result = run_on_the_device(f"import importlib\nfor name in {modules}: importlib.import_module(name)")
    assert result.returncode == 0, result.stderr


def test_the_edge_imports_neither_engine_nor_network_until_asked() -> None:
    result = run_on_the_device(
        "import acespec.edge_runtime\nassert not {'grpc', 'onnxruntime', 'tokenizers'} & set(sys.modules)"
    )
    assert result.returncode == 0, result.stderr


def test_models_imports_on_the_device_as_far_as_the_edge_uses_it() -> None:
    modules = ["acespec.models", *(f"acespec.models.{name}" for name in TORCH_FREE_MODELS)]
    result = run_on_the_device(f"import importlib\nfor name in {modules}: importlib.import_module(name)")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("module", ["torch", "transformers.models"])
def test_the_device_really_lacks_them(module: str) -> None:
    result = run_on_the_device(f"import {module}")
    assert result.returncode != 0
    assert "is not on the device" in result.stderr
