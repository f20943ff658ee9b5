"""A file of rows by key: SQLite, so that several processes may fill it and none ever sees half a row."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from acespec.errors import AcespecError

logger = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 4 << 30
_WRITES_HELD = 2048
_PAGE_BYTES = 1 << 14
"""Draft rows at temperature 1 have 3 KiB: in pages of 4 KiB a quarter of the file would be empty."""
_WAIT_S = 60.0


class RowFile:
    """Rows on disk. What was put is found at once, and is on disk after ``flush``.

    A file that has reached ``max_bytes`` takes no more: a warning says so, and rows are computed again when
    they are wanted again. Raises ``AcespecError`` if it cannot be opened, read or written.
    """

    def __init__(self, path: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._held: dict[bytes, bytes] = {}
        self._full = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
            self._database.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, data BLOB NOT NULL)"
            )
        except (OSError, sqlite3.Error) as error:
            raise self._failed("open", error) from error

    def get(self, key: bytes) -> bytes | None:
        """The row of ``key``, or None."""
        held = self._held.get(key)
        if held is not None:
            return held
        try:
            found = self._database.execute("SELECT data FROM rows WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise self._failed("read", error) from error
        return None if found is None else found[0]

    def put(self, key: bytes, data: bytes) -> None:
        """Keep ``data`` under ``key``, in place of what was there."""
        if not self._full:
            self._held[key] = data
            if len(self._held) >= _WRITES_HELD:
                self.flush()

    def flush(self) -> None:
        """Write what was put since the last time: all of it or nothing."""
        if not self._held:
            return
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", self._held.items())
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed("write", error) from error
        self._held.clear()
        if self.num_bytes >= self._max_bytes:
            self._full = True
            logger.warning("%s has reached %d MiB and takes no more rows", self.path, self._max_bytes >> 20)

    @property
    def num_bytes(self) -> int:
        """Size of the file's content."""
        (pages,) = self._database.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = self._database.execute("PRAGMA page_size").fetchone()
        return int(pages * page_bytes)

    @property
    def num_rows(self) -> int:
        """Rows on disk."""
        (count,) = self._database.execute("SELECT count(*) FROM rows").fetchone()
        return int(count)

    def close(self) -> None:
        """Write what is held and close the file."""
        self.flush()
        self._database.close()

    def _failed(self, verb: str, error: Exception) -> AcespecError:
        return AcespecError(
            f"cannot {verb} the laboratory's {self.path}: {error}; name another folder for it"
        )
