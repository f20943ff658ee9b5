"""One file, the environment and the command line: which wins, and what is refused by name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from acespec.cloud_verifier.config_file import effective, use_config
from acespec.cloud_verifier.documents import parse_document, toml_value
from acespec.cloud_verifier.option_groups import GroupedCommand, OptionGroup, Size, Whole, all_options
from acespec.errors import AcespecError

first, second = OptionGroup("First"), OptionGroup("Second")
first.add("--model", "Which.", required=True)
first.add("--port", "Where.", type=Whole(0, 65535), default=50051)
first.add("--wait", "How long.", type=float, default=2.5)
second.add("--room", "How much.", type=Size())
second.add("--strict/--no-strict", "How.", default=False)
second.add("--config", "From a file.", type=click.Path(path_type=Path), is_eager=True, callback=use_config)
second.add("--print-config", "Show.", is_flag=True)


@click.pass_context
def show(ctx: click.Context, /, **values: Any) -> None:
    click.echo("\n".join(effective(ctx)))


command = click.command(cls=GroupedCommand, context_settings={"auto_envvar_prefix": "TEST_SERVE"})(
    all_options(show, (first, second))
)


def run(*arguments: object, **variables: str) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments], env=variables)


def written(folder: Path, text: str, ending: str = "toml") -> Path:
    path = folder / f"config.{ending}"
    path.write_text(text)
    return path


def fault(folder: Path, text: str, ending: str = "toml") -> str:
    """The one line a file is refused with."""
    result = run("--config", written(folder, text, ending))
    assert isinstance(result.exception, AcespecError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


FILE = 'model = "file"\nport = 1\nwait = 1\nroom = "2KiB"\nstrict = true\n'


def test_the_command_line_wins_over_the_environment_over_the_file_over_the_default(tmp_path: Path) -> None:
    path = written(tmp_path, 'model = "file"\nport = 1\nwait = 3\n')
    result = run(
        "--config", path, "--port", 3, TEST_SERVE_PORT="2", TEST_SERVE_WAIT="7.5", TEST_SERVE_STRICT="1"
    )
    assert result.output.splitlines() == [
        'model = "file"  # file',
        "port = 3  # command line",
        "wait = 7.5  # environment",
        "strict = true  # environment",
    ]


def test_yaml_says_the_same_and_the_environment_may_name_the_file(tmp_path: Path) -> None:
    yaml = written(tmp_path, "model: file\nport: 1\nwait: 1\nroom: 2KiB\nstrict: true\n", "yaml")
    expected = run("--config", written(tmp_path, FILE)).output
    assert expected.splitlines()[3] == "room = 2048  # file"
    assert run(TEST_SERVE_CONFIG=str(yaml)).output == expected


def test_the_command_line_can_take_back_what_the_file_sets(tmp_path: Path) -> None:
    assert "strict = false" in run("--config", written(tmp_path, FILE), "--no-strict").output


def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path: Path) -> None:
    assert fault(tmp_path, "prot = 1") == f"{tmp_path}/config.toml: unknown key 'prot' (did you mean port?)"
    assert fault(tmp_path, "xyzzy = 1") == f"{tmp_path}/config.toml: unknown key 'xyzzy'"
    assert "unknown key 'config'" in fault(tmp_path, 'config = "other.toml"')
    assert "unknown key 'print_config'" in fault(tmp_path, "print_config = true")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("port = 65536", "port: '65536' is no whole number from 0 to 65535."),
        ("port = 1.5", "port: '1.5' is no whole number from 0 to 65535."),
        ("port = true", "port: 'True' is no whole number from 0 to 65535."),
        ('port = "banana"', "port: 'banana' is no whole number from 0 to 65535."),
        ('wait = "soon"', "wait: 'soon' is not a valid float"),
        ("strict = 7", "strict: '7' is not a valid boolean"),
        ('room = "much"', "room: 'much' is no size such as 4GiB or 500MB."),
        ("port = [1]", "port: one value is wanted"),
        ("[port]\na = 1", "port: one value is wanted"),
    ],
)
def test_a_value_is_held_to_its_option_s_type(line: str, reason: str, tmp_path: Path) -> None:
    assert reason in fault(tmp_path, line)


@pytest.mark.parametrize(
    ("text", "ending", "reason"),
    [
        ("port = ", "toml", "is no TOML"),
        ("port: [", "yaml", "is no YAML"),
        ("- port", "yml", "must hold names with values"),
        ("port: null", "yaml", "one value is wanted"),
        ("port=1", "ini", "must be named *.toml, *.yaml or *.yml"),
    ],
)
def test_a_file_that_is_none_is_one_line(text: str, ending: str, reason: str, tmp_path: Path) -> None:
    assert reason in fault(tmp_path, text, ending)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    result = run("--config", tmp_path / "none.toml")
    assert str(result.exception) == f"cannot read {tmp_path}/none.toml (No such file or directory)"


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    for ending in ("toml", "yaml"):
        assert run("--config", written(tmp_path, "", ending), "--model", "x").exit_code == 0


def test_a_variable_that_is_no_option_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run("--model", "x", TEST_SERVE_PROT="1", TEST_SERVE_XYZZY="1", TEST_SERVER="1")
    assert [record.getMessage() for record in caplog.records] == [
        "the environment's TEST_SERVE_PROT is no option; TEST_SERVE_PORT is",
        "the environment's TEST_SERVE_XYZZY is no option",
    ]


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        (
            (),
            {"TEST_SERVE_PORT": "banana"},
            "TEST_SERVE_PORT in the environment: 'banana' is no whole number from 0 to 65535.",
        ),
        ((), {"TEST_SERVE_ROOM": "x"}, "TEST_SERVE_ROOM in the environment: 'x' is no size such as"),
        (("--port", "banana"), {}, "'--port': 'banana' is no whole number from 0 to 65535."),
        (("--port", "-1"), {"TEST_SERVE_PORT": "1"}, "'--port': '-1' is no whole number from 0 to 65535."),
    ],
)
def test_a_bad_value_is_told_where_it_comes_from(
    words: tuple[str, ...], variables: dict[str, str], message: str
) -> None:
    result = run("--model", "x", *words, **variables)
    assert result.exit_code == 2
    assert f"Error: Invalid value for {message}" in result.output


def test_what_is_in_force_can_be_fed_back(tmp_path: Path) -> None:
    path = written(tmp_path, FILE)
    printed = run("--config", path, "--wait", "0.1").output
    again = run("--config", written(tmp_path, printed)).output
    assert parse_document(path, again) == parse_document(path, printed)


@given(
    st.one_of(
        st.booleans(),
        st.integers(-(2**62), 2**62),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc"])),
    )
)
def test_printed_values_are_toml(value: object) -> None:
    assert parse_document(Path("x.toml"), f"key = {toml_value(value)}") == {"key": value}


def test_help_lists_options_by_group() -> None:
    lines = run("--help").output.splitlines()
    titles = [line for line in lines if line in ("First:", "Second:", "Options:", "Other:")]
    assert titles == ["First:", "Second:", "Other:"]
    assert (
        lines.index("First:")
        < next(i for i, line in enumerate(lines) if "--port" in line)
        < lines.index("Second:")
    )
