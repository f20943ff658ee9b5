"""Finding TensorRT, and whether what is said of it is so."""

from __future__ import annotations

import ast
import logging
import sys
from pathlib import Path
from types import ModuleType

import pytest

from acespec.edge_runtime.trt_module import (
    MODULES,
    TensorRtError,
    TensorRtModule,
    TensorRtRuntime,
    load_tensorrt,
    message_logger,
    version_of,
)
from fake_cuda import FakeCuda
from fake_tensorrt import fake_tensorrt

STUB = Path(__file__).resolve().parent.parent / "typings/tensorrt/__init__.pyi"
NOT_IN_RTX = {"Dims.__iter__": "it has __len__ and __getitem__; type checkers want an iterator to iterate"}
"""Names of the stub that TensorRT for RTX 1.7.1 lacks, each with the reason."""


def stub_names() -> list[str]:
    """Every class, call, property and member that the stub describes, dotted."""
    names = ["__version__"]
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names.append(node.name)
            for inner in [node, *(inner for inner in node.body if isinstance(inner, ast.ClassDef))]:
                path = node.name if inner is node else f"{node.name}.{inner.name}"
                for member in inner.body:
                    if isinstance(member, ast.FunctionDef):
                        names.append(f"{path}.{member.name}")
                    elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                        names.append(f"{path}.{member.target.id}")
                    elif isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name):
                        names.append(f"{path}.{member.targets[0].id}")
    return names


@pytest.mark.parametrize("name", stub_names())
def test_every_name_of_the_stub_exists_in_tensorrt_for_rtx(name: str) -> None:
    found: object = pytest.importorskip(
        "tensorrt_rtx_bindings", reason="TensorRT for RTX is not installed (Linux on x86-64 only)"
    )
    if name.endswith("__buffer__"):
        pytest.skip("how Python 3.12 spells the buffer protocol; the built plans are read through it")
    for part in name.split("."):
        if not hasattr(found, part):
            assert name in NOT_IN_RTX
            return
        found = getattr(found, part)
    assert name not in NOT_IN_RTX


def test_the_stub_has_every_class_that_is_asked_of_the_module() -> None:
    assert set(TensorRtModule.__annotations__) <= set(stub_names())


def test_the_fake_has_every_class_that_is_asked_of_the_module() -> None:
    module, _ = fake_tensorrt(FakeCuda())
    assert set(TensorRtModule.__annotations__) == set(vars(module))


@pytest.mark.parametrize(
    ("runtime", "remedy"),
    [
        ("tensorrt", "apt-get install python3-libnvinfer"),
        ("tensorrt-rtx", "pip install tensorrt-rtx-cu12-libs"),
    ],
)
def test_a_missing_module_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, runtime: TensorRtRuntime, remedy: str
) -> None:
    monkeypatch.setitem(sys.modules, MODULES[runtime], None)
    with pytest.raises(TensorRtError, match=f"^{runtime} cannot be imported .*{remedy}"):
        load_tensorrt(runtime)


def test_a_package_of_stubs_in_its_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", ModuleType("tensorrt"))
    with pytest.raises(TensorRtError, match="pip uninstall tensorrt-stubs"):
        load_tensorrt("tensorrt")


@pytest.mark.parametrize(("version", "accepted"), [("10.2.1", False), ("10.3.0", True), ("11.4.1", True)])
def test_versions_before_the_first_that_works_are_refused(
    monkeypatch: pytest.MonkeyPatch, version: str, accepted: bool
) -> None:
    module, _ = fake_tensorrt(FakeCuda(), version)
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    if accepted:
        assert version_of(load_tensorrt("tensorrt")) == tuple(map(int, version.split(".")[:2]))
    else:
        with pytest.raises(TensorRtError, match=r"10\.2\.1 is too old, 10\.3 is needed"):
            load_tensorrt("tensorrt")


def test_messages_reach_the_log_and_errors_whoever_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    module, _ = fake_tensorrt(FakeCuda())
    errors: list[str] = []
    logger = message_logger(module, errors.append)
    severity = module.ILogger.Severity
    for level in severity:
        logger.log(level, f"a {level.name}\n  message")
    assert errors == ["a INTERNAL_ERROR message", "a ERROR message"]
    assert "a WARNING" in caplog.text
    assert "a VERBOSE" not in caplog.text
