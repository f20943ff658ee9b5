"""Files that only their owner may read, and that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from acespec.errors import AcespecError

PRIVATE = 0o600
PUBLIC = 0o644


def read_file(path: Path) -> bytes:
    """Raises ``AcespecError``, one line, if ``path`` cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise AcespecError(f"cannot read {path} ({error.strerror or error})") from error


def write_whole(path: Path, content: bytes, mode: int = PRIVATE, *, replace: bool = False) -> None:
    """Write ``content`` beside ``path`` and rename it, with ``mode`` from the first moment on.

    A file that is replaced passes on its mode and, if this user may do that, its owner. Raises
    ``AcespecError``, one line, if it cannot be written, or if one is there and ``replace`` is not set.
    """
    if not replace:
        refuse_to_overwrite(path)
    old = path.stat() if path.exists() else None
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                if old is not None:
                    pass_on(old, handle)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
    except OSError as error:
        raise AcespecError(
            f"cannot write {path} ({error.strerror or error}); choose another place"
        ) from error


def refuse_to_overwrite(path: Path) -> None:
    if os.path.lexists(path):
        raise AcespecError(
            f"{path} is there already and stays as it is; move it away or choose another place"
        )


def pass_on(old: os.stat_result, handle: int) -> None:
    """Give the open file ``handle`` the owner and mode of ``old``: a service may have to go on reading it."""
    with contextlib.suppress(PermissionError):
        os.fchown(handle, old.st_uid, old.st_gid)
    os.fchmod(handle, stat.S_IMODE(old.st_mode))
