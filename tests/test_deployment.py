"""What deploys AceSpec agrees with the package, and its files with one another. No image is built here."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from acespec import cli
from acespec.edge_runtime.plan_files import ENGINES_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
ENTRYPOINT = ROOT / "deploy/edge-entrypoint.sh"
UNITS = ("acespec-engines.service", "acespec-verifier.service")
PYTHON_OF = {"jetpack6": "3.10", "jetpack7": "3.12"}
USER = "10001"


def script(name: str) -> ModuleType:
    """A Python script of the project as a module."""
    specification = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module
    specification.loader.exec_module(module)
    return module


steps = script("scripts/dockerfile_steps.py")


def stages(dockerfile: str) -> dict[str, Any]:
    return dict(steps.stages(steps.parse((ROOT / dockerfile).read_text(encoding="utf-8"))))


EDGE = stages("Dockerfile.jetson")
(CLOUD,) = stages("Dockerfile.cloud").values()
EVERY_STAGE = [*EDGE.items(), ("cloud", CLOUD)]


def substituted(text: str) -> str:
    """``text`` with the default in place of each ``${VARIABLE:-default}``."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def installed_extra(stage: list[Any]) -> str:
    (command,) = [step.value for step in stage if step.value.startswith("sh source/deploy/install-edge.sh")]
    return str(command.split()[-1])


def toml_project() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["project"])


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return dict(yaml.safe_load(substituted((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))))


def accepts(arguments: list[str]) -> None:
    """Fail unless ``acespec ARGUMENTS`` is a command with options it knows."""
    context = click.Context(cli.acespec, info_name="acespec")
    name, command, rest = cli.acespec.resolve_command(context, arguments)
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(context, rest)
    assert command is not None
    command.make_context(name, list(rest), parent=context)


def test_there_is_a_target_for_each_jetpack_and_one_without_tensorrt() -> None:
    assert list(EDGE) == ["jetpack6", "jetpack7", "cpu"]
    assert [installed_extra(stage) for stage in EDGE.values()] == ["jetpack6", "jetpack7", "edge"]


@pytest.mark.parametrize(("name", "stage"), EVERY_STAGE, ids=[name for name, _ in EVERY_STAGE])
def test_an_image_stands_on_a_pinned_base_and_is_not_run_as_root(name: str, stage: list[Any]) -> None:
    base = stage[0].value.split()[0]
    if name == "cloud":
        declared = next(
            line for line in (ROOT / "Dockerfile.cloud").read_text().splitlines() if "ARG BASE" in line
        )
        base = base.replace("${BASE_IMAGE}", declared.partition("=")[2])
    tag = substituted(base).rpartition(":")[2]
    assert re.search(r"\d|bookworm", tag), f"{base}: latest is not a version"
    assert steps.last(stage, "USER") == f"{USER}:{USER}"
    assert steps.last(stage, "HEALTHCHECK")
    assert steps.last(stage, "ENTRYPOINT")


def test_what_an_image_copies_exists() -> None:
    for _, stage in EVERY_STAGE:
        for step in stage:
            if step.keyword == "COPY":
                assert (ROOT / step.value.split()[0]).exists()


def test_commands_written_into_the_files_exist_with_their_options() -> None:
    assert {steps.last(stage, "CMD") for stage in EDGE.values()} == {'["--help"]'}
    (compile_line,) = re.findall(r"acespec (engine build .*)$", ENTRYPOINT.read_text(encoding="utf-8"), re.M)
    accepts(shlex.split(compile_line))
    for unit in UNITS:
        text = (ROOT / "deploy" / unit).read_text(encoding="utf-8")
        (command,) = re.findall(r"^ExecStart=\S+ (.*)$", text, re.MULTILINE)
        if "engine" in command or importlib.util.find_spec("grpc_health"):
            accepts(shlex.split(command.replace("$ACESPEC_SERVE", "")))
    if importlib.util.find_spec("grpc_health"):
        accepts(shlex.split(steps.exec_form(steps.last(CLOUD, "CMD"))))


def test_commands_read_the_variables_the_entry_point_sets() -> None:
    command = cli.acespec.get_command(click.Context(cli.acespec), "generate")
    assert command is not None
    assert {option.name: option.envvar for option in command.params}["runtime"] == "ACESPEC_RUNTIME"
    for variable in ("ACESPEC_RUNTIME", ENGINES_VARIABLE):
        assert f"export {variable}=" in ENTRYPOINT.read_text(encoding="utf-8")


def test_the_edges_targets_differ_in_base_tensorrt_and_extra_only() -> None:
    def end(stage: list[Any]) -> list[str]:
        keywords = [step.keyword for step in stage]
        common = stage[keywords.index("WORKDIR") :]
        lines = [f"{step.keyword} {step.value}" for step in common]
        lines = [re.sub(r"(install-edge\.sh) \w+", r"\1 EXTRA", line) for line in lines]
        return [re.sub(r" CUDA_CACHE_PATH=\S+ NVIDIA_VISIBLE_DEVICES=.*", "", line) for line in lines]

    assert end(EDGE["jetpack6"]) == end(EDGE["jetpack7"]) == end(EDGE["cpu"])


def test_the_extras_that_images_install_exist_for_the_pythons_of_their_bases() -> None:
    project = toml_project()
    extras = project["optional-dependencies"]
    assert "cloud" in extras
    for name, stage in EDGE.items():
        extra = installed_extra(stage)
        assert extra in extras
        if extra != "edge":
            assert "acespec[edge]" in extras[extra]
            assert f"Programming Language :: Python :: {PYTHON_OF[name]}" in project["classifiers"]
    assert (
        project["requires-python"]
        == f">={min(PYTHON_OF.values(), key=lambda v: tuple(map(int, v.split('.'))))}"
    )


def test_the_wheels_checked_are_those_of_the_images() -> None:
    check_wheels = script("scripts/check_wheels.py")
    assert {jetpack.extra: jetpack.python_version for jetpack in check_wheels.JETPACKS} == PYTHON_OF
    lines = ["both==1", "old==2 ; python_version < '3.11'", "x86==3 ; platform_machine == 'x86_64'"]
    six, seven = (check_wheels.applying(lines, jetpack.markers) for jetpack in check_wheels.JETPACKS)
    assert (six, seven) == (["both==1", "old==2"], ["both==1"])


def test_the_build_context_makes_a_whole_wheel(tmp_path: Path) -> None:
    """What ``.dockerignore`` leaves out is not missing from the package."""
    pytest.importorskip("build", reason="only the edge extra is installed")
    from test_packaging import package_files

    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    assert entries[0] == "*"
    context = tmp_path / "context"
    context.mkdir()
    for kept in (entry[1:] for entry in entries if entry.startswith("!")):
        source = ROOT / kept
        if source.is_dir():
            leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, context / kept, symlinks=True, ignore=leave)
        else:
            shutil.copy(source, context / kept)
    for needed in ("requirements/edge.txt", "requirements/dev.txt", "deploy/edge-entrypoint.sh"):
        assert (context / needed).is_file()
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, context]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name.removeprefix("acespec/") for name in archive.namelist() if ".dist-info/" not in name}
    assert held >= package_files()


def test_a_step_that_fails_ends_the_script_made_of_a_dockerfile(tmp_path: Path) -> None:
    """A shell ends at a failed command only where no ``&&`` follows; Docker ends at every one."""
    made = steps.shell_script(steps.parse("RUN false \\\n    # why\n    && true\nRUN touch reached"))
    result = subprocess.run(["/bin/sh", "-c", made], cwd=tmp_path, check=False)
    assert result.returncode != 0
    assert not (tmp_path / "reached").exists()


def test_an_instruction_without_a_shell_form_is_not_left_out() -> None:
    with pytest.raises(SystemExit, match="no shell form of: ADD"):
        steps.shell_script(steps.parse("ADD https://example.org/file /file"))


def test_compose_runs_the_images_with_read_only_roots_and_arguments_they_know() -> None:
    services = compose()["services"]
    assert services["edge"]["build"] == {
        "context": ".",
        "dockerfile": "Dockerfile.jetson",
        "target": "jetpack6",
    }
    assert services["edge"]["runtime"] == "nvidia"
    assert services["cloud"]["build"]["dockerfile"] == "Dockerfile.cloud"
    assert services["cloud"]["ports"] == ["127.0.0.1:50051:50051"], "the connection is plaintext"
    written = {"edge": {steps.last(EDGE["jetpack6"], "VOLUME")}, "cloud": set()}
    written |= {"prometheus": {"/prometheus"}, "grafana": {"/var/lib/grafana"}}
    assert set(services) == set(written)
    for name, service in services.items():
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]  # noqa: S108 - the container's
        assert service["cap_drop"] == ["ALL"]
        assert service["restart"]
        writable = [mount["target"] for mount in service["volumes"] if not mount.get("read_only")]
        assert set(writable) <= written[name]
    accepts(services["edge"]["command"])
    pytest.importorskip("grpc_health", reason="only the edge extra is installed")
    accepts(services["cloud"]["command"])


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_one_systemd_takes_and_shuts_in(unit: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here")
    text = (ROOT / "deploy" / unit).read_text(encoding="utf-8")
    (command,) = re.findall(r"^ExecStart=(\S+) .*$", text, re.MULTILINE)
    assert command == "/opt/acespec/environment/bin/acespec"
    file = tmp_path / unit
    file.write_text(text.replace(command, "/bin/true"), encoding="utf-8")
    for verb in (["verify", "--man=no"], ["security", "--offline=yes", "--threshold=30"]):
        result = subprocess.run([analyze, *verb, file], capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, ""), verb


@pytest.mark.parametrize("serving", [True, False])
async def test_the_verifiers_health_check_tells_serving_from_not(serving: bool) -> None:
    grpc_health = pytest.importorskip("grpc_health.v1.health", reason="only the edge extra is installed")
    import grpc.aio
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from acespec.cloud_verifier.service import SERVICE_NAME

    check = script("deploy/check_verifier.py")
    assert check.SERVICE == SERVICE_NAME
    health = grpc_health.aio.HealthServicer()
    status = health_pb2.HealthCheckResponse
    await health.set(SERVICE_NAME, status.SERVING if serving else status.NOT_SERVING)
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    assert await check.problem(address, {}) == (None if serving else f"{address} answers, but does not serve")
    await server.stop(None)
    assert await check.problem(address, {}) == (
        f"{address} does not answer in plaintext (UNAVAILABLE); "
        "if it speaks TLS, set ACESPEC_HEALTH_CA to the CA's PEM file"
    )


@pytest.mark.parametrize("arguments", [[], ["127.0.0.1:1", "more"]])
def test_the_health_check_says_how_it_is_called(arguments: list[str]) -> None:
    pytest.importorskip("grpc_health.v1.health", reason="only the edge extra is installed")
    result = subprocess.run(
        [sys.executable, ROOT / "deploy" / "check_verifier.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "usage: python check_verifier.py HOST:PORT\n"
