"""The options of ``acespec serve``: where each ends up, and that what is written of them is true."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from acespec.cloud_verifier.commands import serve
from acespec.cloud_verifier.config_file import configurable
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.security_settings import JwtSettings, SecuritySettings, TlsFiles
from acespec.cloud_verifier.serve_options import PREFIX
from acespec.cloud_verifier.serve_settings import ServeSettings, TargetSettings, serve_settings
from acespec.cloud_verifier.server_options import ServerOptions
from acespec.cloud_verifier.tenants_file import new_token, token_hash
from acespec.errors import AcespecError
from acespec.wire import Eagerness
from pki import LONG_AGO, now, write_pki

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "verifier.md"
EXAMPLE = ROOT / "deploy" / "verifier.toml"


def settings_of(*arguments: str) -> ServeSettings:
    """What the command makes of ``arguments``."""
    ctx = serve.make_context("serve", ["--model", "m", *arguments])
    return serve_settings(ctx.params)


def security_of(*arguments: str) -> SecuritySettings:
    return settings_of(*arguments).security


@pytest.mark.parametrize("kind", [Limits, ServerOptions])
def test_every_bound_is_an_option_with_its_default_and_reaches_its_field(kind: Any) -> None:
    part = {Limits: "limits", ServerOptions: "server"}[kind]
    assert getattr(settings_of(), part) == kind()
    for field in dataclasses.fields(kind):
        key = field.name.removesuffix("_s")
        name = "--" + key.replace("_", "-")
        value: Any = {
            "host": "::1",
            "pad_sizes": True,
            "max_chain": 62,
            "max_context": 99,
            "race_eagerness": Eagerness.COST,
        }.get(key)
        if value is None:
            assert isinstance(field.default, int | float)
            value = field.default + 1
        arguments = [name] if value is True else [name, getattr(value, "value", str(value))]
        changed = {"max_streams": 321} if key == "max_sessions" and kind is ServerOptions else {}
        assert getattr(settings_of(*arguments), part) == dataclasses.replace(
            kind(), **{field.name: value, **changed}
        )


def test_the_race_can_be_switched_off() -> None:
    assert settings_of("--race-eagerness", "off").limits.race_eagerness is None


def test_streams_follow_sessions_unless_told_otherwise() -> None:
    assert settings_of("--max-sessions", "8").server.max_streams == 10
    assert settings_of("--max-sessions", "1").server.max_streams == 2
    assert settings_of("--max-sessions", "8", "--max-streams", "9").server.max_streams == 9


def test_a_bound_that_another_rules_out_is_one_line() -> None:
    with pytest.raises(AcespecError, match="token_budget must be above max_chain"):
        settings_of("--token-budget", "63")


def test_the_target_s_options_reach_it() -> None:
    arguments = ("--device", "cuda", "--dtype", "bf16", "--kv-memory", "4GiB", "--threads", "3")
    assert settings_of(*arguments, "--tp", "2", "--pace-forward-ms", "7").target == TargetSettings(
        model="m",
        device="cuda",
        dtype="bf16",
        device_map=None,
        tp=2,
        kv_memory=4 * 2**30,
        threads=3,
        pace_forward_ms=7.0,
    )
    assert settings_of("--device-map", "auto").target.device_map == "auto"
    with pytest.raises(AcespecError, match="--tp and --device-map are two ways"):
        settings_of("--tp", "2", "--device-map", "auto")


def test_a_spread_target_needs_torchrun() -> None:
    assert "start them with: torchrun" in refused("--tp", "2")


TLS = ("--tls-cert", "c", "--tls-key", "k")
JWT = ("--jwt-key", "j", "--jwt-algorithm", "ES256")


@pytest.mark.parametrize(
    ("arguments", "authentication"),
    [
        ((), "none"),
        (TLS, "none"),
        ((*TLS, "--tls-client-ca", "a"), "certificate"),
        (("--tokens", "t"), "token"),
        ((*TLS, "--tls-client-ca", "a", "--tokens", "t"), "token"),
        (JWT, "jwt"),
        ((*JWT, "--tokens", "t"), "jwt"),
        ((*JWT, "--tokens", "t", "--auth", "token"), "token"),
        ((*TLS, "--tls-client-ca", "a", "--tokens", "t", "--auth", "certificate"), "certificate"),
        (("--tokens", "t", "--auth", "none"), "none"),
    ],
)
def test_files_imply_how_clients_are_told_apart(arguments: tuple[str, ...], authentication: str) -> None:
    assert security_of(*arguments).authentication == authentication


def test_what_security_is_told() -> None:
    arguments = (
        *TLS,
        "--tls-client-ca",
        "a",
        *JWT,
        "--jwt-audience",
        "x",
        "--jwt-issuer",
        "y",
        "--tokens",
        "t",
    )
    assert security_of(*arguments, "--jwt-tenant-claim", "org", "--insecure") == SecuritySettings(
        tls=TlsFiles(Path("c"), Path("k"), Path("a")),
        authentication="jwt",
        tokens=Path("t"),
        jwt=JwtSettings(Path("j"), "ES256", "x", "y", "org"),
        insecure=True,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tls-cert", "c"), "TLS needs --tls-key"),
        (("--tls-key", "k"), "TLS needs --tls-cert"),
        (("--tls-client-ca", "a"), "TLS needs --tls-cert"),
        (("--auth", "token"), "--auth token needs --tokens"),
        (("--auth", "jwt"), "--auth jwt needs --jwt-key"),
        ((*TLS, "--auth", "certificate"), "--auth certificate needs --tls-client-ca"),
        (("--jwt-key", "j"), "--jwt-key needs --jwt-algorithm"),
        (("--jwt-audience", "a"), "JWTs need --jwt-key"),
        (("--jwt-algorithm", "ES256"), "JWTs need --jwt-key"),
    ],
)
def test_what_lacks_its_other_half_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(AcespecError, match=message):
        security_of(*arguments)


# --print-config: everything but the model is checked


def printed(*arguments: object) -> Result:
    return CliRunner().invoke(
        serve, ["--print-config", "--port", "0", *(str(argument) for argument in arguments)]
    )


def refused(*arguments: object) -> str:
    """The one line the command ends with, before any model."""
    result = printed("--model", "no-such-model", *arguments)
    assert isinstance(result.exception, AcespecError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


def write_tenants(folder: Path) -> Path:
    file = folder / "tenants.toml"
    file.write_text(f'[tenants.acme]\n[[tokens]]\ntenant = "acme"\nsha256 = "{token_hash(new_token())}"\n')
    return file


def test_a_protected_server_may_listen_everywhere(tmp_path: Path) -> None:
    write_pki(tmp_path)
    protection = ("--tls-cert", tmp_path / "server.pem", "--tls-key", tmp_path / "server.key")
    tokens = ("--tokens", write_tenants(tmp_path))
    everywhere = ("--host", "0.0.0.0")  # noqa: S104 - what is tested
    result = printed("--model", "no-such-model", *everywhere, *protection, *tokens)
    assert result.exit_code == 0, result.output
    assert f'tls_key = "{tmp_path}/server.key"  # command line' in result.output
    assert "PRIVATE" not in result.output
    assert "there is no authentication" in refused(*everywhere, *protection)
    assert "there is no TLS" in refused(*everywhere, *tokens)
    assert printed("--model", "no-such-model", *everywhere, "--insecure").exit_code == 0


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        (
            "--tokens",
            "[tenants.acme]\nmax_session = 1\n",
            "tenants.acme.max_session: Extra inputs are not permitted",
        ),
        (
            "--tokens",
            "[tenants.acme]\nmax_sessions = 0\n",
            "tenants.acme.max_sessions: Input should be greater",
        ),
        ("--tokens", '[[tokens]]\ntenant = "x"\nsha256 = "abc"\n', "tokens.0.sha256: String should match"),
        (
            "--tokens",
            f'[[tokens]]\ntenant = "x"\nsha256 = "{"a" * 64}"\n',
            "belongs to 'x', who is not under [tenants]",
        ),
        ("--tokens", '[tenants."a\\nb"]\n', "1 to 128 printable characters"),
        ("--tokens", "[default]\nkv_bytes = true\n", "default.kv_bytes"),
        ("--tls-client-ca", "rubbish", "holds no certificate in PEM"),
    ],
)
def test_a_file_that_will_not_do_is_told_before_the_model(
    option: str, content: str, message: str, tmp_path: Path
) -> None:
    write_pki(tmp_path)
    file = tmp_path / "bad.toml"
    file.write_text(content)
    tls = ("--tls-cert", tmp_path / "server.pem", "--tls-key", tmp_path / "server.key")
    line = refused(*tls, option, file)
    assert str(file) in line
    assert message in line


def test_an_expired_certificate_is_told_before_the_model(tmp_path: Path) -> None:
    write_pki(tmp_path, made=now() - LONG_AGO)
    line = refused("--tls-cert", tmp_path / "server.pem", "--tls-key", tmp_path / "server.key")
    assert "has expired" in line


# What is written


def documented() -> list[tuple[str, str, str]]:
    """Option, key and default of each row of the reference."""
    text = REFERENCE.read_text(encoding="utf-8")
    return re.findall(r"^\| `(--[\w-]+)` \| (?:`(\w+)` )?\| ?(.*?) ?\| .+ \|$", text, re.MULTILINE)


def test_the_reference_lists_every_option_with_its_key_and_default() -> None:
    keys = configurable(serve)
    rows = documented()
    assert [option for option, _, _ in rows] == [option.opts[0] for option in serve.params]
    for (name, key, default), option in zip(rows, serve.params, strict=True):
        assert isinstance(option, click.Option)
        assert key == (option.name if option.name in keys else "")
        told = re.search(r"\[default: (.*)\]", option.help or "")
        if told is not None:
            assert default == told[1], name
        elif option.is_flag:
            assert default == "off", name
        elif option.show_default:
            value = option.default
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            assert default == f"`{shown}`", name
        else:
            assert default == "", name


def test_what_the_reference_mentions_exists() -> None:
    text = REFERENCE.read_text(encoding="utf-8") + (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    known = set(configurable(serve))
    for variable in re.findall(rf"{PREFIX}_([A-Z_]+)", text):
        assert variable.lower() in known | {"config"}
    for note in re.findall(r"^\*\*(.*?)\*\*", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE):
        assert set(re.findall(r"`(\w+)`", note)) <= known


def test_the_example_file_is_accepted() -> None:
    settings = serve_settings(serve.make_context("serve", ["--config", str(EXAMPLE)]).params)
    assert settings.security.tls is not None
    assert settings.security.authentication == "token"
    assert not settings.security.insecure
