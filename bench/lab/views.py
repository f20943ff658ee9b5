"""What of an experiment's document is shown as tables, in Markdown and in the report alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from acespec.bench.lab.document import Document
from acespec.bench.lab.race_views import race_views
from acespec.bench.lab.round_trip_views import round_trip_views
from acespec.bench.lab.tables import Row
from acespec.bench.lab.view import NOTHING, OURS, Text, View, figure, groups, pivot, rate_text

FEW_PROMPTS = 20
"""With fewer, a bootstrap's bounds hold the true value noticeably less often than they say."""


def views(document: Document) -> list[View]:
    """The tables of a document, failed points last."""
    shown = _VIEWS[document["experiment"]](document)
    failed = [row for row in document["rows"] if row["failed"]]
    return [*shown, failed_view(failed)] if failed else shown


def failed_view(rows: Sequence[Row]) -> View:
    """Which rows have no figures, and why."""
    labels = ("dataset", "profile", "counted", "rate_bps", "temperature", "gamma", "allocation", "budget")
    body = [
        (
            Text(", ".join(str(row[name]) for name in (*labels, "rtt_ms", "strategy", "way") if name in row)),
            Text(f"{row['failed']['runs']} of {row['runs']}"),
            Text("; ".join(row["failed"]["reasons"])),
        )
        for row in rows
    ]
    return View("Failed", ("point", "runs", "why"), tuple(body))


def _table2(document: Document) -> list[View]:
    columns = (
        ("TTFT, ms", "ttft_ms", ".1f"),
        ("hit rate", "hit_rate", ".3f"),
        ("tokens/s", "tokens_per_s", ".2f"),
        ("ready a hit", "ready_tokens_per_hit", ".2f"),
        ("acceptance", "acceptance", ".3f"),
        ("target forwards", "target_forwards_per_token", ".3f"),
    )
    shown = []
    for (profile,), rows in groups(document["rows"], "profile").items():
        body = tuple(
            (
                Text(row["allocation"]),
                Text(row["dataset"]),
                *(Text(figure(row, name, form)) for _, name, form in columns),
            )
            for row in sorted(rows, key=lambda row: _order(rows, row["allocation"]))
        )
        header = ("allocation", "dataset", *(heading for heading, _, _ in columns))
        shown.append(View(f"Allocation of branches: {profile}, {rows[0]['rtt_ms']:g} ms", header, body))
    return [*shown, _differences(document)]


def _order(rows: Sequence[Row], allocation: str) -> int:
    return list(dict.fromkeys(row["allocation"] for row in rows)).index(allocation)


def _differences(document: Document) -> View:
    body = []
    for row in document["differences"]:
        value, low, high = (row[f"difference{end}"] for end in ("", "_low", "_high"))
        bounds = NOTHING if low is None else f"{low:+.4g} to {high:+.4g}"
        texts = (
            f"{row['first']} - {row['second']}",
            row["dataset"],
            row["profile"],
            row["measure"],
            NOTHING if value is None else f"{value:+.4g}",
            bounds,
        )
        body.append(tuple(map(Text, texts)))
    level = document["settings"]["bounds"]["level"]
    header = ("difference", "dataset", "devices", "measure", "value", f"{level:.0%} bounds")
    few = min((row["prompts"] for row in document["rows"]), default=0) < FEW_PROMPTS
    note = f"Bounds over fewer than {FEW_PROMPTS} prompts are too narrow: take more." if few else ""
    return View("Differences over the same prompts and seeds", header, tuple(body), note)


def _real(document: Document) -> list[View]:
    """By strategy: how fast, how far apart the repeats are, what went over the link, and whose text it is."""
    columns = (
        ("tokens/s", "tokens_per_s", ".2f"),
        ("slowest", "tokens_per_s_slowest", ".2f"),
        ("fastest", "tokens_per_s_fastest", ".2f"),
        ("speedup", "speedup", ".2f"),
        ("TTFT, ms", "ttft_ms", ".0f"),
        ("target forwards", "target_forwards_per_token", ".3f"),
        ("payload up", "payload_up_per_token", ".1f"),
        ("payload down", "payload_down_per_token", ".1f"),
        ("wire up", "wire_up_per_token", ".1f"),
        ("wire down", "wire_down_per_token", ".1f"),
        ("edge idle", "edge_idle_share", ".2f"),
        ("cloud-only's text", "same_text", ".2f"),
    )
    header = ("strategy", *(heading for heading, _, _ in columns))
    shown = []
    for rows in groups(document["rows"], "profile", "dataset", "rate_bps", "rtt_ms").values():
        body = tuple(
            (Text(row["strategy"]), *(Text(figure(row, name, form)) for _, name, form in columns))
            for row in rows
        )
        where = f"{_place(rows[0])}, {rate_text(rows[0]['rate_bps'])}"
        shown.append(View(f"Wall clock: {where}", header, body, "Forwards and bytes are a token's."))
    return shown


def _fig5(document: Document) -> list[View]:
    shown = []
    for rows in groups(document["rows"], "profile", "dataset", "counted").values():
        where = f"{_place(rows[0])}, rate taken up by {rows[0]['counted']} bytes"
        shown.append(pivot(f"Tokens a second: {where}", rows, "strategy", "rate_bps", _plain, rate_text))
        own = [row for row in rows if row["strategy"] in OURS]
        if own:
            title = f"Share of the throughput at the highest rate (of the bound): {where}"
            shown.append(pivot(title, own, "strategy", "rate_bps", _shares, rate_text))
    return shown


def _place(row: Row) -> str:
    return f"{row['profile']}, {row['dataset']}, {row['rtt_ms']:g} ms"


def _plain(row: Row) -> str:
    return figure(row, "tokens_per_s")


def _shares(row: Row) -> str:
    if row["share_of_full"] is None:
        return figure(row, "share_of_full")
    return f"{row['share_of_full']:.3f} ({row['share_of_bound']:.3f})"


def _by(index: str, column: str, *shown: tuple[str, str, str]) -> Callable[[Document], list[View]]:
    """Tables of measures (heading, name, format) by two labels, for each data set and pair of devices."""

    def make(document: Document) -> list[View]:
        found = []
        for rows in groups(document["rows"], "profile", "dataset").values():
            for heading, name, form in shown:
                title = f"{heading}: {_place(rows[0])}"
                show = _shower(name, form)
                found.append(pivot(title, rows, index, column, show))
        return found

    return make


def _shower(name: str, form: str) -> Callable[[Row], str]:
    return lambda row: figure(row, name, form)


_VIEWS: dict[str, Callable[[Document], list[View]]] = {
    "table1": round_trip_views,
    "table2": _table2,
    "fig5": _fig5,
    "fig6": _by(
        "budget",
        "allocation",
        ("Hit rate", "hit_rate", ".3f"),
        ("Tokens ready at a hit", "ready_tokens_per_hit", ".2f"),
        ("Tokens a second", "tokens_per_s", ".2f"),
    ),
    "fig7": _by(
        "temperature",
        "strategy",
        ("Hit rate", "hit_rate", ".3f"),
        ("Acceptance", "acceptance", ".3f"),
        ("Tokens a second", "tokens_per_s", ".2f"),
        ("Speedup over cloud-only", "speedup", ".2f"),
    ),
    "sweep": round_trip_views,
    "race": race_views,
    "real": _real,
}
