"""The scripts of the edge's container, run on stand-ins for the programs they call."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENTRYPOINT = ROOT / "deploy/edge-entrypoint.sh"
USER = "10001"


@dataclass
class Container:
    """Folders and stand-ins the entry point is run on."""

    folder: Path
    process_id: int = 0
    """Of the latest start."""

    @property
    def ready(self) -> Path:
        return self.folder / "ready"

    @property
    def calls(self) -> list[str]:
        log = self.folder / "calls"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []

    def put(self, program: str, text: str) -> None:
        file = self.folder / "bin" / program
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        file.chmod(0o755)

    def start(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "ACESPEC_BUNDLE": str(self.folder / "bundle"),
            "ACESPEC_ENGINES": str(self.folder / "engines"),
            "ACESPEC_READY": str(self.ready),
            **environment,
        }
        command = ["/bin/sh", str(ENTRYPOINT), *arguments]
        with subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            output, errors = process.communicate()
        self.process_id = process.pid
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


@pytest.fixture
def container(tmp_path: Path) -> Container:
    """A bundle, an empty engines volume, a working TensorRT, and an ``acespec`` that keeps a record.

    Its ``engine build`` makes a plan where there is none, as the real one does.
    """
    made = Container(tmp_path)
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/manifest.json").write_text("{}", encoding="utf-8")
    (tmp_path / "engines").mkdir()
    made.put("python", 'test "$1" = -c')
    made.put(
        "acespec",
        f"""echo "$@" >> {tmp_path}/calls
        if [ "$1 $2" = "engine build" ]; then
            test -e {tmp_path}/broken && exit 3
            plan="$ACESPEC_ENGINES/plan"
            test -e "$plan" || {{ echo compiled >> {tmp_path}/calls; : > "$plan"; }}
        else
            test -e {tmp_path}/ready && echo ready >> {tmp_path}/calls
            echo "$$ $# on ${{ACESPEC_RUNTIME:-the default}}" > {tmp_path}/started
            exit 7
        fi""",
    )
    return made


def test_the_first_start_compiles_and_the_next_finds_the_engine(container: Container) -> None:
    build = f"engine build {container.folder}/bundle"
    first = container.start("generate", "--prompt", "two words")
    assert container.calls == [build, "compiled", "generate --prompt two words", "ready"]
    assert first.returncode == 7, "the exit status is the command's"
    started = (container.folder / "started").read_text(encoding="utf-8")
    assert started == f"{container.process_id} 3 on tensorrt\n", (
        "signals reach the command, and arguments stay whole"
    )
    container.start("doctor")
    assert container.calls[4:] == [build, "doctor", "ready"]


def test_without_tensorrt_the_command_runs_on_onnx_runtime(container: Container) -> None:
    container.put("python", "echo 'Traceback' >&2; echo 'ImportError: libnvdla.so: cannot open' >&2; exit 1")
    result = container.start("generate")
    assert container.calls == ["generate", "ready"]
    assert (container.folder / "started").read_text(encoding="utf-8").endswith("on the default\n")
    assert result.stderr == (
        "edge-entrypoint: TensorRT does not work here (ImportError: libnvdla.so: cannot open): "
        "no engine is compiled\n"
    )


def test_tensorrt_is_tried_as_the_build_will_use_it(container: Container) -> None:
    if importlib.util.find_spec("tensorrt") is not None:
        pytest.skip("TensorRT is here, and may work")
    container.put("python", f'exec {sys.executable} "$@"')
    result = container.start("generate")
    assert container.calls == ["generate", "ready"]
    assert "TensorRtError: tensorrt cannot be imported (No module named 'tensorrt')" in result.stderr


def test_compiling_can_be_left_out_and_needs_a_bundle(container: Container) -> None:
    container.start("generate", ACESPEC_COMPILE="never")
    container.start("generate", ACESPEC_BUNDLE="/nowhere")
    assert container.calls == ["generate", "ready"] * 2
    refused = container.start("generate", ACESPEC_COMPILE="maybe")
    assert refused.returncode == 2
    assert "'maybe'" in refused.stderr
    assert len(container.calls) == 4


def test_an_engine_that_cannot_be_compiled_ends_the_start_unhealthy(container: Container) -> None:
    """Falling back to slow kernels unasked would hide it."""
    container.start("generate")
    assert container.ready.exists()
    (container.folder / "broken").touch()
    count = len(container.calls)
    assert container.start("generate").returncode == 3
    assert [call.split()[0] for call in container.calls[count:]] == ["engine"]
    assert not container.ready.exists(), "left over from the start before"


@pytest.fixture
def image(tmp_path: Path) -> Container:
    """Stand-ins for what the installer calls, and the sources it finds beside it."""
    made = Container(tmp_path)
    shutil.copytree(ROOT / "deploy", tmp_path / "source/deploy", ignore=shutil.ignore_patterns("__pycache__"))
    packages = tmp_path / "environment/site-packages"
    made.put(
        "python3",
        f"""if [ "$1" = -m ]; then
            mkdir -p "$3/bin" {packages}
            cp {tmp_path}/bin/pip "$3/bin/pip"
            cp {tmp_path}/bin/inner "$3/bin/python"
        else
            test -e {tmp_path}/base/tensorrt/__init__.py && echo {tmp_path}/base/tensorrt/__init__.py || echo
        fi""",
    )
    made.put("pip", f'echo "pip $@" >> {tmp_path}/calls')
    made.put("inner", f"echo {packages}")
    made.put("useradd", f'echo "useradd $@" >> {tmp_path}/calls')
    made.put("install", f'test "$1" = -d && echo "install $@" >> {tmp_path}/calls || cp "$3" "$4"')
    return made


def install(image: Container, extra: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(image.folder / "source/deploy/install-edge.sh"), extra]
    path = {"PATH": f"{image.folder / 'bin'}:/usr/bin:/bin"}
    return subprocess.run(command, cwd=image.folder, env=path, capture_output=True, text=True, check=False)


def test_the_installer_adds_the_bases_tensorrt_to_the_environment(image: Container) -> None:
    (image.folder / "base/tensorrt").mkdir(parents=True)
    (image.folder / "base/tensorrt/__init__.py").touch()
    assert install(image, "jetpack6").returncode == 0
    link = image.folder / "environment/site-packages/tensorrt.pth"
    assert link.read_text(encoding="utf-8") == f"{image.folder}/base\n"
    source = image.folder / "source"
    assert image.calls == [
        f"pip install --no-cache-dir -c {source}/requirements/edge.txt {source}[jetpack6]",
        f"useradd --no-create-home --home-dir /tmp --uid {USER} --user-group --groups video acespec",
        f"install -d -o {USER} -g {USER} /engines",
    ]
    assert (image.folder / "environment/bin/edge-entrypoint").read_bytes() == ENTRYPOINT.read_bytes()
    assert not source.exists()


def test_a_base_without_tensorrt_will_do_for_the_cpu_and_not_for_a_jetson(image: Container) -> None:
    refused = install(image, "jetpack7")
    assert refused.returncode != 0
    assert refused.stderr == "install-edge.sh: the base has no Python module tensorrt\n"
    assert install(image, "edge").returncode == 0
    assert not (image.folder / "environment/site-packages/tensorrt.pth").exists()
