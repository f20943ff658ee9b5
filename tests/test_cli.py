"""The command line's table: help loads nothing, errors are one line."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from acespec import cli
from acespec.errors import AcespecError
from acespec.models import MODELS
from conftest import DEVICE_MODULES
from source_imports import imported_packages


def run_acespec(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "acespec", *arguments], capture_output=True, text=True, check=False
    )


def test_help_names_every_command_and_loads_none() -> None:
    code = (
        "import sys; from acespec.cli import acespec, COMMANDS\n"
        "try: acespec(['--help'], prog_name='acespec')\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "assert not [lazy.module for lazy in COMMANDS.values() if lazy.module in sys.modules]\n"
        "assert 'torch' not in sys.modules and 'grpc' not in sys.modules and 'numpy' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for name, lazy in cli.COMMANDS.items():
        assert name in result.stdout
        assert lazy.summary in " ".join(result.stdout.split())


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_loads(name: str) -> None:
    if cli.COMMANDS[name].module.startswith(("acespec.export", "acespec.cloud_verifier", "acespec.bench")):
        pytest.importorskip("torch")
    command = cli.LazyGroup().get_command(click.Context(cli.acespec), name)
    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help, f"{name} has no help text"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "acespec", "--help"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert result.returncode == 1
    (line,) = result.stderr.decode().splitlines()
    assert "cannot write the output (No space left on device)" in line


def test_an_unknown_command_is_a_usage_error() -> None:
    result = run_acespec("nonesuch")
    assert result.returncode == 2
    assert "No such command 'nonesuch'" in result.stderr
    assert "Traceback" not in result.stderr


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception, *words: str) -> str:
    """What ``main`` exits with when the command in ``words`` raises ``error``."""

    def raise_error(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "acespec", raise_error)
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    return str(stop.value.code)


def test_a_user_error_is_one_line_and_not_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    message = fail_with(monkeypatch, AcespecError("port 80 is taken; choose another with --port"))
    assert message == "acespec: error: port 80 is taken; choose another with --port"


def test_a_missing_module_names_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    message = fail_with(monkeypatch, ModuleNotFoundError("no", name="onnxruntime.capi"))
    assert message == (
        "acespec: error: this needs the extra 'edge', of which onnxruntime.capi is not installed; "
        "in a clone of acespec, run: pip install '.[edge]'"
    )


@pytest.mark.parametrize(
    ("words", "module", "extra"),
    [
        (("-v", "serve", "--model", "demo"), "jwt", "cloud"),
        (("serve",), "tokenizers", "cloud"),
        (("serve",), "tomllib", "cloud"),
        (("serve",), "opentelemetry.sdk", "tracing"),
        (("demo",), "torch", "bench"),
        (("export", "m"), "torch", "export"),
        (("token", "list"), "yaml", "cloud"),
        (("models", "list"), "huggingface_hub", "cloud"),
    ],
)
def test_a_command_names_the_one_extra_it_needs(
    words: tuple[str, ...], module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = fail_with(monkeypatch, ModuleNotFoundError("no", name=module), *words)
    assert message == (
        f"acespec: error: this needs the extra '{extra}', of which {module} is not installed; "
        f"in a clone of acespec, run: pip install '.[{extra}]' (Python 3.11 or later)"
    )


def test_a_broken_module_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    message = fail_with(monkeypatch, ImportError("libonnx.so:\nno such file", name="onnxruntime.capi"))
    assert message.startswith(
        "acespec: error: onnxruntime.capi cannot be imported (libonnx.so: no such file);"
    )
    assert message.endswith("acespec doctor")


def test_a_missing_module_that_no_extra_brings_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ModuleNotFoundError("no", name="acespec.nonesuch")
    monkeypatch.setattr(cli, "acespec", lambda **_: (_ for _ in ()).throw(error))
    with pytest.raises(ModuleNotFoundError):
        cli.main()


def readme_commands() -> list[list[str]]:
    """The words of every ``acespec`` command shown in the README, comments left out."""
    text = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
    return [shlex.split(line, comments=True) for line in re.findall(r"^\$ acespec (.*)$", text, re.MULTILINE)]


@pytest.mark.parametrize("words", readme_commands(), ids=" ".join)
def test_the_readmes_commands_exist_with_their_options(words: list[str]) -> None:
    pytest.importorskip("torch")
    group: click.Command = cli.acespec
    context = click.Context(group)
    while isinstance(group, click.Group):
        found = group.get_command(context, words.pop(0))
        assert found is not None
        group = found
    group.make_context(group.name, words)  # parses, and runs nothing


def test_the_readme_derives_the_demos_draft() -> None:
    (derive,) = [words for words in readme_commands() if "derive-draft" in words]
    assert f"acespec {' '.join(derive)}" == MODELS["smollm2-135m-draft"].fetch_command


def test_every_module_an_extra_is_said_to_bring_exists() -> None:
    pytest.importorskip("torch")
    for modules in cli.EXTRAS.values():
        for module in modules:
            assert importlib.util.find_spec(module), module


def test_no_extra_is_said_to_bring_what_python_has_itself() -> None:
    for modules in cli.EXTRAS.values():
        assert not set(modules) & sys.stdlib_module_names


def test_the_readmes_table_has_every_extra() -> None:
    tomllib = pytest.importorskip("tomllib")
    root = Path(__file__).resolve().parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (root / "README.md").read_text(encoding="utf-8")
    rows = [row for row in text.splitlines() if row.startswith("| `acespec[")]
    listed = {extra for row in rows for extra in re.findall(r"\[(\w+)\]`", row.split("|")[1])}
    assert listed == set(project["optional-dependencies"])
    for extra in cli.EXTRAS | {lazy.extra: () for lazy in cli.COMMANDS.values() if lazy.extra is not None}:
        assert extra in listed


BASE_MODULES = {"click", "numpy", "platformdirs", "pydantic", "rich", "typing_extensions"}
"""What is installed without any extra."""


def test_every_module_that_may_be_missing_has_an_extra_to_name() -> None:
    root = Path(__file__).resolve().parent.parent
    for lazy in cli.COMMANDS.values():
        for path in (root / lazy.module.split(".")[1]).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            modules = imported_packages(source)
            for module in modules - sys.stdlib_module_names - BASE_MODULES - DEVICE_MODULES - {"acespec"}:
                assert cli.missing_extra(module) is not None, f"{path} imports {module}"
