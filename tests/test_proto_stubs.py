"""The committed stubs are what the .proto yields, and every message and field of it is documented."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "proto.py"
PROTO = ROOT / "wire" / "verifier.proto"
NAMES = ["verifier_pb2.py", "verifier_pb2.pyi", "verifier_pb2_grpc.py", "verifier_pb2_grpc.pyi"]


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("grpc_tools", reason="the generators come with the dev extra")
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A copy of the committed stubs."""
    for name in NAMES:
        shutil.copyfile(ROOT / "wire" / name, tmp_path / name)
    return tmp_path


def test_committed_stubs_are_current() -> None:
    result = run_script("--check")
    assert result.returncode == 0, result.stderr


def test_stale_and_missing_stubs_are_named_and_renewed(stubs: Path) -> None:
    with (stubs / "verifier_pb2.pyi").open("a") as file:
        file.write("# changed\n")
    (stubs / "verifier_pb2_grpc.py").unlink()
    result = run_script("--check", "--stubs", str(stubs))
    assert result.returncode == 1
    assert "stale stubs: verifier_pb2.pyi, verifier_pb2_grpc.py;" in result.stderr

    assert run_script("--stubs", str(stubs)).returncode == 0
    assert run_script("--check", "--stubs", str(stubs)).returncode == 0
    for name in NAMES:
        assert (stubs / name).read_bytes() == (ROOT / "wire" / name).read_bytes()


def test_stubs_import_each_other_by_their_full_name() -> None:
    assert "from acespec.wire import verifier_pb2" in (ROOT / "wire" / "verifier_pb2_grpc.py").read_text()


def test_everything_in_the_proto_is_documented() -> None:
    undocumented = []
    previous = ""
    for line in map(str.strip, PROTO.read_text().splitlines()):
        declares = line.startswith(("message ", "enum ", "service ", "rpc ")) or " = " in line
        if declares and not line.startswith(("//", "syntax")) and not previous.startswith("//"):
            undocumented.append(line)
        previous = line
    assert undocumented == []


def test_the_package_imports_neither_grpc_nor_a_model_library() -> None:
    code = "import acespec.wire, sys; print({'grpc', 'torch', 'transformers'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
