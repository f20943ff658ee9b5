"""``acespec engine build`` from the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from acespec.edge_runtime import cuda as cuda_module
from acespec.edge_runtime.cuda import Cuda
from acespec.edge_runtime.engine_command import engine
from acespec.errors import AcespecError
from fake_cuda import FakeCuda
from fake_tensorrt import World, fake_tensorrt
from tiny_bundle import tiny_bundle


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine with TensorRT 10.3 and a GPU."""
    module, world = fake_tensorrt(FakeCuda())
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    monkeypatch.setattr(cuda_module, "load_cuda", lambda: Cuda(world.cuda))
    return world


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(engine, ["build", *map(str, arguments)])


def test_it_builds_beside_the_bundle_or_where_it_is_told(world: World, tmp_path: Path) -> None:
    result = run(tiny_bundle().folder, "--engines", tmp_path / "a", "--workspace", "64")
    assert result.exit_code == 0, result.output
    assert "widths 1, 4, 16, 32" in result.stderr.replace("\n", " ")
    assert sorted(path.suffix for path in (tmp_path / "a").iterdir()) == [".json", ".plan", ".timing"]
    assert [list(config.pools.values()) for config in world.configs] == [[64 << 20]]
    result = run(tiny_bundle().folder, "--engines", tmp_path / "a")
    assert "built already" in result.stderr
    assert run(tiny_bundle().folder, "--engines", tmp_path / "a", "--force").exit_code == 0
    assert len(world.builds) == 2


def refused(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, AcespecError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_another_device_is_for_rtx_alone(world: World, tmp_path: Path) -> None:
    message = refused(tiny_bundle().folder, "--compute-capability", "8.7")
    assert "leave --compute-capability out" in message
    assert "X.Y" in refused(tiny_bundle().folder, "--runtime", "tensorrt-rtx", "--compute-capability", "sm89")


def test_what_is_no_bundle_is_named(world: World, tmp_path: Path) -> None:
    assert f"{tmp_path} is not a bundle" in refused(tmp_path)


def test_a_machine_without_a_gpu_is_told_what_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _ = fake_tensorrt(FakeCuda(), "1.7.1.116")
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", module)
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    message = refused(tiny_bundle().folder, "--runtime", "tensorrt-rtx")
    assert "name a device with --compute-capability" in message
