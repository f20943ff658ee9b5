"""``optimum-cli export acespec`` does what ``acespec export`` does, option by option."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from acespec import cli
from acespec.export.commands import export

optimum_cli = pytest.importorskip("optimum.commands.optimum_cli")
register = pytest.importorskip("optimum.commands.register.acespec")


def run_optimum(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    """What ``optimum-cli`` exits with."""
    monkeypatch.setattr(sys, "argv", ["optimum-cli", *words])
    with pytest.raises(SystemExit) as stop:
        optimum_cli.main()
    return stop.value.code


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of every export that is run; none really is."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(export, "callback", lambda **given: calls.append(given))
    return calls


def example(option: click.Option) -> list[str]:
    """Words that give ``option`` a value which is not its default."""
    name = max(option.opts, key=len)
    if option.is_flag:
        return [name if not option.default else (option.secondary_opts or option.opts)[0]]
    if isinstance(option.type, click.Choice):
        return [name, str(next(c for c in option.type.choices if c != option.default))]
    if isinstance(option.type, click.types.IntParamType):
        return [name, "96"]
    return [name, {"buckets": "1,4"}.get(option.name or "", "example-value")]


def option_names() -> list[str]:
    return [str(option.name) for option in register.passed_on()]


def test_it_passes_on_every_option_of_the_click_command() -> None:
    assert {"model", "out", *option_names()} == {param.name for param in export.params}


@pytest.mark.parametrize("name", option_names())
def test_an_option_means_the_same_in_both(
    name: str, monkeypatch: pytest.MonkeyPatch, received: list[dict[str, Any]]
) -> None:
    (option,) = [option for option in register.passed_on() if option.name == name]
    words = example(option)
    assert run_optimum(monkeypatch, "export", "acespec", *words, "--model", "some-model", "some-folder") == 0
    with pytest.raises(SystemExit):
        cli.main(["export", "some-model", "-o", "some-folder", *words])
    through_optimum, direct = received
    assert through_optimum == direct
    assert direct[name] != option.get_default(click.Context(export))


def test_what_is_left_out_has_the_click_commands_default(
    monkeypatch: pytest.MonkeyPatch, received: list[dict[str, Any]]
) -> None:
    assert (
        run_optimum(monkeypatch, "export", "acespec", "-m", "--odd-name", "out") == 2
    )  # argparse's own rule
    assert run_optimum(monkeypatch, "export", "acespec", "--model=--odd-name", "out") == 0
    export.main(["--out=out", "--", "--odd-name"], standalone_mode=False)
    given, by_click = received
    assert (given["model"], given["out"]) == ("--odd-name", Path("out"))
    assert given == by_click


def test_its_help_lists_every_option_with_its_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_optimum(monkeypatch, "export", "acespec", "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    for option in register.passed_on():
        assert max(option.opts, key=len) in shown
        assert " ".join((option.help or "").split()) in shown
    assert "[default: 2048" in shown


def test_a_wrong_value_is_refused_in_the_same_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["--precision", "int3"]
    assert run_optimum(monkeypatch, "export", "acespec", "--model", "some-model", "out", *wrong) == 2
    through_optimum = capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["export", "some-model", "-o", "out", *wrong])
    assert through_optimum == capsys.readouterr().err
    assert "'int3' is not one of 'fp32'" in through_optimum


def test_a_users_error_is_the_same_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACESPEC_CACHE", str(tmp_path))
    message = run_optimum(monkeypatch, "export", "acespec", "--model", "nonesuch", str(tmp_path / "out"))
    assert str(message).startswith("acespec: error: there is no model 'nonesuch'")
    assert not (tmp_path / "out").exists()


def test_optimum_starts_without_torch() -> None:
    code = (
        "import sys; import optimum.commands.register.acespec\n"
        "assert not {'torch', 'transformers', 'onnx', 'onnxruntime'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_optimums_own_packages_are_left_alone() -> None:
    """Optimum's files and this one file share a namespace package, which an ``__init__.py`` would end."""
    spec = importlib.util.find_spec("optimum.commands.register")
    assert spec is not None
    assert spec.origin is None
    assert spec.submodule_search_locations
    source = Path(__file__).resolve().parent.parent / "src/optimum"
    assert [path.relative_to(source).as_posix() for path in source.rglob("*.py")] == [
        "commands/register/acespec.py"
    ]
