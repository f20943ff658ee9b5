"""Rows on disk: there whole or not at all, for every process, and bounded."""

from __future__ import annotations

import logging
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from acespec.bench.lab.row_file import RowFile
from acespec.errors import AcespecError


def test_what_was_put_is_found_at_once_and_by_others_when_flushed(tmp_path: Path) -> None:
    mine, theirs = RowFile(tmp_path / "rows.sqlite"), RowFile(tmp_path / "rows.sqlite")
    mine.put(b"key", b"row")
    assert mine.get(b"key") == b"row"
    assert theirs.get(b"key") is None
    mine.flush()
    assert theirs.get(b"key") == b"row"
    assert (mine.num_rows, mine.get(b"other")) == (1, None)
    theirs.put(b"key", b"a deeper row")
    theirs.close()
    assert mine.get(b"key") == b"a deeper row"
    assert mine.num_rows == 1
    mine.close()


def test_a_file_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "rows.sqlite"
    script = """
import os, signal, sys
from pathlib import Path
from acespec.bench.lab.row_file import RowFile
rows = RowFile(Path(sys.argv[1]))
rows.put(b"kept", b"1")
rows.flush()
rows.put(b"lost", b"2")
rows._database.execute("BEGIN IMMEDIATE")
rows._database.execute("INSERT INTO rows VALUES (x'00', x'00')")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    rows = RowFile(path)
    assert rows.get(b"kept") == b"1"
    assert rows.get(b"lost") is None
    assert rows.num_rows == 1
    rows.close()


def test_a_full_file_says_so_and_takes_no_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = RowFile(tmp_path / "rows.sqlite", max_bytes=100_000)
    with caplog.at_level(logging.WARNING):
        for number in range(40):
            rows.put(bytes([number]), bytes(8000))
            rows.flush()
    assert 100_000 <= rows.num_bytes < 120_000
    assert rows.num_rows < 20
    assert rows.get(bytes([39])) is None
    assert len(caplog.records) == 1
    assert "takes no more rows" in caplog.text
    rows.close()


def test_many_writes_reach_the_disk_without_being_asked_to(tmp_path: Path) -> None:
    rows, others = RowFile(tmp_path / "rows.sqlite"), RowFile(tmp_path / "rows.sqlite")
    for number in range(5000):
        rows.put(number.to_bytes(4, "little"), b"row")
    assert 0 < others.num_rows < 5000
    rows.close()
    assert others.num_rows == 5000
    others.close()


def test_what_is_no_store_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "rows.sqlite").write_bytes(b"this is no database, though it is long enough for one" * 100)
    with pytest.raises(AcespecError, match=r"cannot open the laboratory's .*name another folder"):
        RowFile(tmp_path / "rows.sqlite")
    (tmp_path / "a file").touch()
    with pytest.raises(AcespecError, match="cannot open"):
        RowFile(tmp_path / "a file" / "rows.sqlite")


def test_a_damaged_file_is_an_error_and_not_a_missing_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.sqlite"
    rows = RowFile(path)
    rows.put(b"key", b"row")
    rows.close()
    database = sqlite3.connect(path)
    database.execute("DROP TABLE rows")
    database.execute("CREATE TABLE rows (other BLOB)")
    database.commit()
    database.close()
    rows = RowFile(path)
    with pytest.raises(AcespecError, match="cannot read"):
        rows.get(b"key")
    rows.put(b"key", b"row")
    with pytest.raises(AcespecError, match="cannot write"):
        rows.flush()
