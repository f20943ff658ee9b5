"""Tables by strategy and round trip: who is how fast, who wins, who loses, and what it costs the link."""

from __future__ import annotations

from collections.abc import Sequence

from acespec.bench.lab.document import Document
from acespec.bench.lab.tables import Row
from acespec.bench.lab.view import (
    NOTHING,
    OURS,
    Text,
    View,
    conditions,
    figure,
    groups,
    pivot,
    shown_round_trip,
)

NEEDS_NO_DEVICE = "colocated"
GREEDY = "pipesd and e2sci are greedy at any temperature, and e2sci's text is nearly the target's."


def round_trip_views(document: Document) -> list[View]:
    """Table 1 and sweeps: throughput by strategy and round trip, who wins, who loses, and traffic."""
    shared = ("profile", "dataset", "rate_bps", "temperature", "gamma")
    grouped = list(groups(document["rows"], *shared).values())
    shown = [
        pivot(
            f"Tokens a second (relative to cloud-only): {conditions(rows[0])}",
            rows,
            "strategy",
            "rtt_ms",
            _speed,
            lambda rtt_ms: f"{rtt_ms:g} ms",
            best="tokens_per_s",
        )
        for rows in grouped
    ]
    shown += [
        _baseline_wins(document["rows"], shared),
        _baseline_wins(document["rows"], shared, (NEEDS_NO_DEVICE,)),
        _lowest(document["rows"]),
        _break_even(document),
    ]
    return shown + [_traffic(rows) for rows in grouped]


def _baseline_wins(rows: Sequence[Row], shared: Sequence[str], without: Sequence[str] = ()) -> View:
    """Where the fastest strategy but for ``without`` is none of AceSpec's."""
    body = []
    for members in groups(rows, *shared, "rtt_ms").values():
        measured = [
            row for row in members if row["tokens_per_s"] is not None and row["strategy"] not in without
        ]
        ours = [row for row in measured if row["strategy"] in OURS]
        if not ours:
            continue
        first, best = (max(some, key=lambda row: row["tokens_per_s"]) for some in (measured, ours))
        if first["strategy"] not in OURS:
            texts = (
                f"{conditions(first)}, {first['rtt_ms']:g} ms",
                first["strategy"],
                _speed(first),
                figure(first, "inexact_share", ".1%"),
                best["strategy"],
                _speed(best),
            )
            body.append(tuple(map(Text, texts)))
    header = ("where", "fastest", "tokens/s", "inexact tokens", "best of AceSpec", "tokens/s")
    title = "Where a baseline is fastest"
    if without:
        title += f", {' and '.join(without)} left out"
    return View(title, header, tuple(body), GREEDY if body else "Nowhere, of the points that were measured.")


def _lowest(rows: Sequence[Row]) -> View:
    body = []
    for (name,), members in groups(rows, "strategy").items():
        known = [row for row in members if row["speedup"] is not None]
        if known:
            least = min(known, key=lambda row: row["speedup"])
            where = f"{conditions(least)}, {least['rtt_ms']:g} ms"
            body.append((Text(str(name)), Text(figure(least, "speedup", ".3f")), Text(where)))
    return View("Lowest speedup of each strategy", ("strategy", "speedup", "where"), tuple(body))


def _break_even(document: Document) -> View:
    def trip(value: float | None) -> str:
        return NOTHING if value is None else f"{value:.0f} ms"

    body = tuple(
        (
            Text(conditions(entry)),
            Text(format(entry["acceptance"], ".2f")),
            Text(trip(entry["model_rtt_ms"])),
            Text(" to ".join(trip(end) for end in entry["measured_between"])),
        )
        for entry in document["break_even"]
    )
    note = (
        "The model of time is told the measured acceptance; measured, it lies between two of the round trips "
        f"({NOTHING} where no end was seen)."
    )
    header = ("where", "acceptance", "by the model", "measured")
    return View("Round trip up to which acespec_coupled beats the cloud alone", header, body, note)


_TRAFFIC = (
    ("payload up", "payload_up_per_token", ".1f"),
    ("payload down", "payload_down_per_token", ".1f"),
    ("wire up", "wire_up_per_token", ".1f"),
    ("wire down", "wire_down_per_token", ".1f"),
    ("target forwards", "target_forwards_per_token", ".3f"),
    ("acceptance", "acceptance", ".3f"),
    ("hit rate", "hit_rate", ".3f"),
    ("TTFT, ms", "ttft_ms", ".0f"),
    ("edge idle", "edge_idle_share", ".0%"),
    ("inexact", "inexact_share", ".1%"),
)


def _traffic(rows: Sequence[Row]) -> View:
    shown = shown_round_trip(rows)
    body = tuple(
        (Text(row["strategy"]), *(Text(figure(row, name, form)) for _, name, form in _TRAFFIC))
        for row in rows
        if row["rtt_ms"] == shown
    )
    title = f"Bytes and target forwards a token: {conditions(rows[0])}, {shown:g} ms"
    note = "Bytes of the whole run, the prompt's too, over its generated tokens."
    return View(title, ("strategy", *(heading for heading, _, _ in _TRAFFIC)), body, note)


def _speed(row: Row) -> str:
    if row["failed"] or row["speedup"] is None:
        return figure(row, "tokens_per_s")
    return f"{row['tokens_per_s']:.2f} ({row['speedup']:.2f}x)"
