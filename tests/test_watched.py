"""Watched files: read again when they change, kept when what is new cannot be used."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from acespec.cloud_verifier.watched import WatchedFiles
from acespec.errors import AcespecError


class Numbers:
    """Reads whole numbers out of files, and counts how often."""

    def __init__(self, *paths: Path) -> None:
        self.reads = 0
        self._paths = paths

    def read(self) -> list[int]:
        self.reads += 1
        try:
            return [int(path.read_text()) for path in self._paths]
        except (OSError, ValueError) as error:
            raise AcespecError("no numbers") from error


def replace(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


def test_they_are_read_once_until_one_changes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    two.write_text("2")
    numbers = Numbers(one, two)
    watched = WatchedFiles([one, two], numbers.read)
    assert [watched.current(), watched.current(), numbers.reads] == [[1, 2], [1, 2], 1]
    replace(two, "3")
    assert [watched.current(), watched.current(), numbers.reads] == [[1, 3], [1, 3], 2]


def test_a_change_in_place_of_the_same_length_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_text("1")
    watched = WatchedFiles([path], Numbers(path).read)
    path.write_text("2")
    os.utime(path, ns=(1, 1))
    assert watched.current() == [2]


@pytest.mark.parametrize("broken", ["rubbish", None])
def test_what_cannot_be_read_is_logged_once_and_the_old_stays(
    broken: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "one"
    path.write_text("1")
    watched = WatchedFiles([path], Numbers(path).read)
    if broken is None:
        path.unlink()
    else:
        replace(path, broken)
    with caplog.at_level(logging.WARNING):
        assert [watched.current() for _ in range(3)] == [[1]] * 3
    (record,) = caplog.records
    assert "changed and cannot be used, the old content stays: no numbers" in record.getMessage()
    replace(path, "4")
    assert watched.current() == [4]


def test_the_first_reading_must_succeed(tmp_path: Path) -> None:
    with pytest.raises(AcespecError, match="no numbers"):
        WatchedFiles([tmp_path / "missing"], Numbers(tmp_path / "missing").read)
