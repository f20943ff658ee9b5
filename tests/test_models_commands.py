"""``acespec models`` as a user meets it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from acespec.errors import AcespecError
from acespec.models.commands import models, parse_layers
from model_folder import write_model_folder

HIDE_TORCH = """
import sys
sys.modules.update(torch=None, transformers=None)
from acespec.cli import main
main()
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACESPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(models, arguments, catch_exceptions=False)


def run_without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDE_TORCH, "models", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_names_the_cache_folder_and_needs_no_torch(cache: Path) -> None:
    finished = run_without_torch("fetch", "--help")
    assert finished.returncode == 0, finished.stderr
    assert str(cache) in finished.stdout
    assert "ACESPEC_CACHE" in finished.stdout


def test_fetch_prints_the_folder_and_says_when_it_is_cached(cache: Path, tmp_path: Path) -> None:
    write_model_folder(tmp_path / "tiny")
    first = invoke("fetch", str(tmp_path / "tiny"))
    assert first.stdout.strip() == str(cache / "models" / "tiny")
    assert "fetching from folder" in first.stderr
    again = invoke("fetch", str(tmp_path / "tiny"))
    assert again.stdout == first.stdout
    assert f"tiny is in the cache already, from folder {tmp_path / 'tiny'}" in again.stderr


def test_an_error_is_one_line_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    finished = run_without_torch("fetch", str(tmp_path / "empty"))
    assert finished.returncode == 1
    errors = [line for line in finished.stderr.splitlines() if line.startswith("acespec: error: ")]
    assert len(errors) == 1
    assert f"folder {tmp_path / 'empty'}: it has no config.json" in errors[0]
    assert "Traceback" not in finished.stderr


def test_a_hub_that_cannot_be_reached(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and never listening: connections are refused
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        finished = run_without_torch("fetch", "some-org/some-model")
    assert finished.returncode == 1
    last = finished.stderr.splitlines()[-1]
    assert "some-model could not be fetched; hub some-org/some-model: the hub cannot be reached" in last
    assert not list(cache.rglob("*.json"))


def test_derive_draft_without_torch(cache: Path, tmp_path: Path) -> None:
    write_model_folder(tmp_path / "tiny", num_layers=4)
    tiny = str(tmp_path / "tiny")
    finished = run_without_torch("derive-draft", tiny, "-o", "small", "--skip-layers", "2,1")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == str(cache / "models" / "small")
    config = json.loads((cache / "models" / "small" / "config.json").read_text())
    assert config["num_hidden_layers"] == 2


def test_derive_draft_to_a_path(tmp_path: Path) -> None:
    write_model_folder(tmp_path / "tiny")
    output = tmp_path / "out" / "small"
    invoke("derive-draft", str(tmp_path / "tiny"), "-o", str(output), "--skip-layers", "0")
    assert (output / "config.json").is_file()


@pytest.mark.parametrize(
    "options", [[], ["--skip-layers", "1", "--num-skip", "1"], ["--num-skip", "0"], ["--num-skip", "x"]]
)
def test_derive_draft_wants_exactly_one_choice(tmp_path: Path, options: list[str]) -> None:
    write_model_folder(tmp_path / "tiny")
    assert invoke("derive-draft", str(tmp_path / "tiny"), "-o", "small", *options).exit_code == 2


def test_derive_draft_refuses_to_overwrite_before_it_searches(cache: Path, tmp_path: Path) -> None:
    write_model_folder(tmp_path / "tiny")
    write_model_folder(cache / "models" / "small")
    with pytest.raises(AcespecError, match="exists already"):
        invoke("derive-draft", str(tmp_path / "tiny"), "-o", "small", "--num-skip", "1")


def test_derive_draft_again_is_no_error_if_it_is_the_same_draft(cache: Path, tmp_path: Path) -> None:
    write_model_folder(tmp_path / "tiny")
    command = ("derive-draft", str(tmp_path / "tiny"), "-o", "small", "--skip-layers")
    first, again = invoke(*command, "1,2"), invoke(*command, "2,1")
    assert first.stdout == again.stdout
    assert "is there already" in again.stderr
    with pytest.raises(AcespecError, match="exists already"):
        invoke(*command, "1,3")
    write_model_folder(tmp_path / "tiny", seed=1)
    with pytest.raises(AcespecError, match="exists already"):
        invoke(*command, "1,2")


def test_fetch_does_not_pass_off_a_cached_model_as_one_from_elsewhere(cache: Path, tmp_path: Path) -> None:
    write_model_folder(tmp_path / "one" / "tiny")
    write_model_folder(tmp_path / "two" / "tiny", seed=1)
    invoke("fetch", str(tmp_path / "one" / "tiny"))
    with pytest.raises(AcespecError, match=r"in the cache from folder .*one.*, not from .*two.*--name"):
        invoke("fetch", str(tmp_path / "two" / "tiny"))
    other = invoke("fetch", str(tmp_path / "two" / "tiny"), "--name", "tiny-two")
    assert other.stdout.strip() == str(cache / "models" / "tiny-two")


@pytest.mark.parametrize("text", ["", "1,", "a", "1;2", "-1", "1,1", "²"])
def test_layers_that_cannot_be_read(text: str) -> None:
    with pytest.raises(AcespecError, match="--skip-layers"):
        parse_layers(text)


def test_layers_are_sorted() -> None:
    assert parse_layers("22, 10,14") == (10, 14, 22)


def test_list_shows_known_models_pairs_and_what_is_cached(cache: Path, tmp_path: Path) -> None:
    write_model_folder(tmp_path / "my-own-model", num_layers=7)
    invoke("fetch", str(tmp_path / "my-own-model"))
    finished = run_without_torch("list")
    assert finished.returncode == 0, finished.stderr
    rows = finished.stdout.splitlines()
    assert any("smollm2-135m" in row and " no " in row for row in rows)
    assert any("my-own-model" in row and " yes " in row and " 7 " in row for row in rows)
    for pair in ("smollm2-demo", "qwen3-0.6b-32b", "qwen3-1.7b-32b", "llama-3.2-1b-3.1-70b"):
        assert pair in finished.stdout
    assert str(cache) in finished.stdout
