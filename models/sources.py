"""Finding models: from what a user types to a folder on disk, or to the places it can be fetched from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from acespec.errors import AcespecError
from acespec.models.cache import models_folder
from acespec.models.catalog import MODELS, PinnedWheel

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names a model may have in the cache: one path component, never hidden."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class SourceKind(str, Enum):
    """The kinds of places a model can come from."""

    HUB = "hub"
    FOLDER = "folder"
    GGUF = "gguf"
    WHEEL = "wheel"


@dataclass(frozen=True)
class Source:
    """One place a model can come from."""

    kind: SourceKind
    origin: str
    """Hub id, path of a folder or file, or the requirement of a wheel."""
    wheel: PinnedWheel | None = None
    """What a wheel must be. ``origin`` is then its requirement, or the path of a copy of it."""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.origin}"


@dataclass(frozen=True)
class FetchPlan:
    """A model's name in the cache and the sources to try, in order."""

    name: str
    sources: tuple[Source, ...]
    any_source: bool = False
    """Whether a cached model of this name will do wherever it came from: nobody asked for a source."""


def resolve_model(name_or_path: str) -> Path:
    """The Hugging Face folder of a model that is on this machine already.

    A folder holding a ``config.json`` is taken as it is; anything else is looked up in the cache, by name or
    by the hub id of a known model. Never downloads. Raises ``AcespecError`` naming the command that brings a
    model which is not here.
    """
    folder = Path(name_or_path).expanduser()
    if (folder / "config.json").is_file():
        return folder.absolute()
    name = _known_name(name_or_path)
    if MODEL_NAME.fullmatch(name):
        cached = models_folder() / name
        if (cached / "config.json").is_file():
            return cached
    if folder.is_dir():
        raise AcespecError(f"{folder} is not a Hugging Face model folder: it has no config.json")
    if name in MODELS:
        command = MODELS[name].fetch_command
        raise AcespecError(f"the model {name_or_path} is not in {models_folder()}; run: {command}")
    raise AcespecError(
        f"there is no model {name_or_path!r}: neither a folder nor a name in {models_folder()}; "
        f"run: acespec models fetch {name_or_path}"
    )


def plan_fetch(
    name_or_source: str,
    kind: SourceKind | None = None,
    origin: str | None = None,
    name: str | None = None,
) -> FetchPlan:
    """Decide where a model is fetched from and what it is called. Touches no network.

    ``name_or_source`` is a known name, a hub id, a folder or a ``.gguf`` file. ``kind`` None is automatic:
    for a known name its pinned wheel first (small, checked against a sha256), then the hub; for anything
    else what it looks like. ``origin`` replaces the place while ``name_or_source`` stays the name. Raises
    ``AcespecError`` for what cannot be understood.
    """
    known = MODELS.get(_known_name(name_or_source))
    if known is not None and known.derived is not None:
        raise AcespecError(
            f"{known.name} is not fetched but derived from {known.derived.target}; run: {known.fetch_command}"
        )
    wheel = known.wheel if known is not None else None
    if origin is not None:
        sources = [_source(origin, kind, wheel)]
    elif known is not None and known.name == name_or_source:
        sources = _known_sources(known.name, kind)
    else:
        sources = [_source(name_or_source, kind, wheel)]
    chosen = name or (known.name if known is not None else _derived_name(name_or_source))
    if not MODEL_NAME.fullmatch(chosen):
        raise AcespecError(
            f"{chosen!r} cannot name a model; choose letters, digits, '.', '_' and '-' with --name"
        )
    any_source = known is not None and known.name == name_or_source and kind is None and origin is None
    return FetchPlan(chosen, tuple(sources), any_source)


def _known_name(name_or_hub_id: str) -> str:
    """The name of the known model with this hub id; else what was given."""
    for model in MODELS.values():
        if model.hub_id is not None and model.hub_id.lower() == name_or_hub_id.lower():
            return model.name
    return name_or_hub_id


def _known_sources(name: str, kind: SourceKind | None) -> list[Source]:
    """A known model's own sources in the order they are tried, or the one of ``kind``."""
    known = MODELS[name]
    sources = []
    if known.wheel is not None:
        sources.append(Source(SourceKind.WHEEL, known.wheel.requirement, known.wheel))
    if known.hub_id is not None:
        sources.append(Source(SourceKind.HUB, known.hub_id))
    if kind is not None:
        sources = [source for source in sources if source.kind is kind]
    if not sources:
        assert kind is not None, f"{name} has no source"
        raise AcespecError(f"{name} has no {kind.value} of its own; say where one is with --from")
    return sources


def _source(origin: str, kind: SourceKind | None, wheel: PinnedWheel | None) -> Source:
    """The source ``origin`` names, of ``kind`` or of the kind it looks like."""
    kind = kind or _kind_of(origin)
    if kind is SourceKind.HUB:
        if not HUB_ID.fullmatch(origin):
            raise AcespecError(f"{origin!r} is not a hub id; it looks like owner/name")
        return Source(kind, origin)
    path = Path(origin).expanduser()
    if kind is SourceKind.FOLDER and not path.is_dir():
        raise AcespecError(f"there is no folder {path}")
    if kind is not SourceKind.FOLDER and not path.is_file():
        raise AcespecError(f"there is no file {path}")
    if kind is not SourceKind.WHEEL:
        return Source(kind, str(path.absolute()))
    if wheel is None:
        named = ", ".join(name for name, model in MODELS.items() if model.wheel is not None)
        raise AcespecError(f"a wheel can only be the source of: {named}; for another model name a .gguf file")
    return Source(kind, str(path.absolute()), wheel)


def _kind_of(origin: str) -> SourceKind:
    path = Path(origin).expanduser()
    if path.is_dir():
        return SourceKind.FOLDER
    by_suffix = {".gguf": SourceKind.GGUF, ".whl": SourceKind.WHEEL}
    if path.suffix.lower() in by_suffix:
        return by_suffix[path.suffix.lower()]
    if HUB_ID.fullmatch(origin):
        return SourceKind.HUB
    fetchable = ", ".join(name for name, model in MODELS.items() if model.derived is None)
    raise AcespecError(
        f"{origin!r} is no known model, folder, .gguf file or hub id (owner/name); known models: {fetchable}"
    )


def _derived_name(origin: str) -> str:
    """What a model is called when nobody says: the last part of where it comes from, in lower case."""
    path = Path(origin).expanduser()
    return (path.stem if path.suffix.lower() == ".gguf" else path.absolute().name).lower()
