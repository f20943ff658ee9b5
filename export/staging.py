"""Folders that appear whole or not at all, however the work on them ends."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from acespec.errors import AcespecError
from acespec.models.manifest import MANIFEST_FILE

DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""What a disk may answer in the middle of the work."""


@contextlib.contextmanager
def replaced_bundle(final: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``final`` that takes its place when the block succeeds.

    When it fails or is interrupted, ``final`` stays as it was and nothing is left behind. Raises
    ``AcespecError`` when ``final`` exists and is neither a bundle nor an empty folder, and when the disk
    takes no more.
    """
    final = Path(os.path.realpath(final))  # a link goes on pointing to the bundle
    if final.exists() and not (final / MANIFEST_FILE).is_file() and not _is_empty_folder(final):
        raise AcespecError(f"{final} exists and is not a bundle; choose another folder or remove it")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{final.name}.partial-", dir=final.parent))
    except OSError as error:
        raise AcespecError(
            f"cannot write beside {final} ({error.strerror}); choose another folder"
        ) from error
    old = staging.with_name(f"{staging.name}.old")
    try:
        yield staging
        staging.chmod(0o755)  # mkdtemp closes its folders to other users
        if final.exists():
            final.rename(old)
        staging.rename(final)
    except OSError as error:
        if error.errno not in DISK_FAULTS:
            raise
        raise AcespecError(
            f"cannot write {final} ({error.strerror}); make room there or choose another folder"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if old.exists() and not final.exists():
            old.rename(final)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def ended_by_signal() -> Iterator[None]:
    """Let SIGTERM unwind the block as Ctrl-C does: what it began is cleared away. For the main thread."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)  # what a shell reports of a process that a signal ended

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
