"""Progress of many parts: lines some seconds apart, and none for what is quick."""

from __future__ import annotations

from acespec.export.counted import SILENCE_S, Counted


def told(part_s: float, total: int) -> list[str]:
    """What is said of ``total`` parts that take ``part_s`` seconds each."""
    lines: list[str] = []
    now = [0.0]
    counted = Counted(lines.append, "parts", lambda: now[0])
    for done in range(1, total + 1):
        now[0] += part_s
        counted(done, total)
    return lines


def test_slow_parts_are_told_one_by_one_and_the_last_goes_without_saying() -> None:
    assert told(SILENCE_S, 3) == ["1 of 3 parts", "2 of 3 parts"]


def test_quick_parts_are_told_every_few_seconds() -> None:
    assert told(SILENCE_S / 4.0, 10) == ["4 of 10 parts", "8 of 10 parts"]


def test_what_is_quick_is_not_told() -> None:
    assert told(SILENCE_S / 100.0, 90) == []
