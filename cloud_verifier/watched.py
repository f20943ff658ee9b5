"""Files that may change while the verifier runs, and what was read from them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from acespec.errors import AcespecError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class WatchedFiles(Generic[T]):
    """What some files hold, read again when one of them has changed. Any thread may ask.

    They are looked at when asked for, so that nothing runs in between. A change that cannot be read is logged
    once and the last good content stays: half of a certificate and key replaced must not end the service.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read them for the first time; what ``read`` raises is raised."""
        self._paths = tuple(paths)
        self._read = read
        self._lock = threading.Lock()
        self._stamp = stamp_of(self._paths)  # before reading: a change in between is seen the next time
        self._content = read()

    def current(self) -> T:
        """The newest content that could be read."""
        with self._lock:
            stamp = stamp_of(self._paths)
            if stamp != self._stamp:
                self._stamp = stamp
                self._reread()
            return self._content

    def _reread(self) -> None:
        names = ", ".join(str(path) for path in self._paths)
        try:
            self._content = self._read()
        except AcespecError as error:
            logger.warning("%s changed and cannot be used, the old content stays: %s", names, error)
        else:
            logger.info("%s changed and was read again", names)


def stamp_of(paths: Sequence[Path]) -> tuple[tuple[int, int, int] | None, ...]:
    """What differs once a file was written or replaced; None for one that is not there."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - as quick as it gets: asked for with every stream
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
