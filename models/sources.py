"""Finding models: from what a user types to a folder on disk."""

from __future__ import annotations

import re
from pathlib import Path

from acespec.errors import AcespecError
from acespec.models.cache import models_folder
from acespec.models.catalog import MODELS

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names a model may have in the cache: one path component, never hidden."""


def resolve_model(name_or_path: str) -> Path:
    """The Hugging Face folder of a model that is on this machine already.

    A folder holding a ``config.json`` is taken as it is; anything else is looked up by name in the cache.
    Never downloads. Raises ``AcespecError`` naming the command that brings a model which is not here.
    """
    folder = Path(name_or_path).expanduser()
    if (folder / "config.json").is_file():
        return folder.absolute()
    if MODEL_NAME.fullmatch(name_or_path):
        cached = models_folder() / name_or_path
        if (cached / "config.json").is_file():
            return cached
    if folder.is_dir():
        raise AcespecError(f"{folder} is not a Hugging Face model folder: it has no config.json")
    if name_or_path in MODELS:
        command = MODELS[name_or_path].fetch_command
        raise AcespecError(f"the model {name_or_path} is not in {models_folder()}; run: {command}")
    raise AcespecError(
        f"there is no model {name_or_path!r}: neither a folder nor a name in {models_folder()}; "
        f"run: acespec models fetch {name_or_path}"
    )
