"""Where AceSpec keeps what it fetched and built: one folder, named by the user or by the platform."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from acespec.errors import AcespecError

CACHE_VARIABLE = "ACESPEC_CACHE"
"""Environment variable that moves the cache folder."""


def cache_folder() -> Path:
    """The cache folder: ``$ACESPEC_CACHE`` where it is set, else the platform's folder for user caches.

    Nothing is created by asking.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("acespec", appauthor=False))


def models_folder() -> Path:
    """Hugging Face model folders, fetched or derived, one per name."""
    return cache_folder() / "models"


def bundles_folder() -> Path:
    """Exported engine bundles."""
    return cache_folder() / "bundles"


def downloads_folder() -> Path:
    """Files on their way into a model folder; may be deleted at any time."""
    return cache_folder() / "downloads"


def make_folder(folder: Path) -> None:
    """Make a folder of the cache where it is missing. Raises ``AcespecError`` where none can be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AcespecError(
            f"cannot make the cache folder {folder} ({error.strerror}); "
            f"name another place in the variable {CACHE_VARIABLE}"
        ) from None


@contextlib.contextmanager
def complete_or_absent(final: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``final`` when the block ends, and vanishes if it fails.

    Whoever finds ``final`` finds it whole: an interrupt or an error inside the block leaves nothing behind.
    When another process finished the same folder first, its result is kept and this one is dropped.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{final.name}.partial-", dir=final.parent))
    try:
        yield staging
        staging.chmod(0o755)  # mkdtemp's folders are closed to other users; a cache may be shared
        try:
            staging.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
