"""A table as it is shown, and how figures are put into words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from acespec.bench.lab.tables import Row

NOTHING = "-"
FAILED = "failed"
SHOWN_RTT_MS = 50.0
"""What shows one round trip alone shows the one nearest to it."""
OURS = ("acespec_residual", "acespec_coupled", "auto", "race")


@dataclass(frozen=True)
class Text:
    """What stands in one place of a table."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class View:
    """A table to show: row headings are its first column."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    note: str = ""


def figure(row: Row, name: str, form: str = ".2f") -> str:
    """A measure in words: ``failed`` where the row is, a dash where it has no such thing."""
    if row["failed"]:
        return FAILED
    return NOTHING if row[name] is None else format(row[name], form)


def groups(rows: Iterable[Row], *names: str) -> dict[tuple[object, ...], list[Row]]:
    """Rows by what they have under ``names``, in the order first seen."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(name) for name in names), []).append(row)
    return found


def rate_text(bits_per_s: float) -> str:
    """``50 Kbps``."""
    for unit, size in (("Gbps", 1e9), ("Mbps", 1e6), ("Kbps", 1e3)):
        if bits_per_s >= size:
            return f"{bits_per_s / size:g} {unit}"
    return f"{bits_per_s:g} bps"


def pivot(
    title: str,
    rows: Sequence[Row],
    index: str,
    column: str,
    show: Callable[[Row], str],
    name_column: Callable[[float], str] = str,
    best: str | None = None,
    note: str = "",
) -> View:
    """Rows of a table by ``index``, columns by ``column``; the highest ``best`` of a column stands out."""
    columns = list(dict.fromkeys(row[column] for row in rows))
    top = {
        name: max((r[best] for r in rows if r[column] == name and r[best] is not None), default=None)
        for name in columns
        if best is not None
    }
    body = []
    for (name,), members in groups(rows, index).items():
        by_column = {row[column]: row for row in members}
        texts = [Text(str(name))]
        for each in columns:
            row = by_column.get(each)
            strong = row is not None and best is not None and row[best] is not None and row[best] == top[each]
            texts.append(Text(NOTHING if row is None else show(row), strong))
        body.append(tuple(texts))
    return View(title, (index, *(name_column(name) for name in columns)), tuple(body), note)


def conditions(row: Row) -> str:
    """What a group of rows shares, besides data set and devices."""
    parts = [row["profile"], row["dataset"]]
    if "rate_bps" in row:
        parts.append(rate_text(row["rate_bps"]))
    parts += [f"{name} {row[name]:g}" for name in ("temperature", "gamma") if name in row]
    return ", ".join(parts)


def shown_round_trip(rows: Iterable[Row]) -> float:
    """The round trip of ``rows`` that tables and figures of a single one show."""
    trips: set[float] = {row["rtt_ms"] for row in rows}
    return min(trips, key=lambda rtt_ms: (abs(rtt_ms - SHOWN_RTT_MS), rtt_ms))
