"""The race's tables: how fast each way is and at what price, and how it compares with the best rounds."""

from __future__ import annotations

from collections.abc import Sequence

from acespec.bench.lab.document import Document
from acespec.bench.lab.experiments import ROUNDS
from acespec.bench.lab.strategies import BASELINE
from acespec.bench.lab.tables import Row
from acespec.bench.lab.view import NOTHING, Text, View, figure, groups, pivot


def race_views(document: Document) -> list[View]:
    """Speed by way and round trip, then ratios to what the race is to beat."""
    return [_ratios(document["rows"]), *map(_speeds, groups(document["rows"], "profile", "dataset").values())]


def best_rounds(rows: Sequence[Row]) -> Row | None:
    """The fastest rounds of one place; None if none was measured."""
    rounds = [row for row in rows if row["way"].startswith(ROUNDS) and row["tokens_per_s"] is not None]
    return max(rounds, key=lambda row: row["tokens_per_s"], default=None)


def _speeds(rows: Sequence[Row]) -> View:
    return pivot(
        f"Tokens a second (relative to cloud-only; target forwards a token): {rows[0]['profile']}, "
        f"{rows[0]['dataset']}",
        rows,
        "way",
        "rtt_ms",
        _speed,
        lambda rtt_ms: f"{rtt_ms:g} ms",
        best="tokens_per_s",
    )


def _speed(row: Row) -> str:
    speed = figure(row, "tokens_per_s")
    if row["speedup"] is None:
        return speed
    return f"{speed} ({row['speedup']:.2f}x; {figure(row, 'target_forwards_per_token')})"


def _ratios(rows: Sequence[Row]) -> View:
    header = (
        *("devices", "data set", "round trip", "race", "auto", "best rounds"),
        *("race / best rounds", "auto / best of all", "race / colocated", "forwards: race", "best rounds"),
    )
    body = []
    for (profile, dataset, rtt_ms), members in groups(rows, "profile", "dataset", "rtt_ms").items():
        by_way = {row["way"]: row for row in members}
        race, auto, alone = (by_way[way] for way in ("race", "auto", BASELINE))
        rounds = best_rounds(members)
        best = max(row["tokens_per_s"] or 0.0 for row in (race, alone, rounds) if row is not None)
        told = NOTHING if rounds is None else f"{rounds['way']}: {figure(rounds, 'speedup')}x"
        texts = (
            *(str(profile), str(dataset), f"{rtt_ms:g} ms"),
            *(figure(race, "speedup"), figure(auto, "speedup"), told),
            _ratio(race, None if rounds is None else rounds["tokens_per_s"]),
            _ratio(auto, best),
            _ratio(race, by_way["colocated"]["tokens_per_s"]),
            figure(race, "target_forwards_per_token"),
            NOTHING if rounds is None else figure(rounds, "target_forwards_per_token"),
        )
        body.append(tuple(map(Text, texts)))
    note = (
        "Best rounds: the fastest of those measured, by gamma and, where it is fixed, budget. Best of all: "
        "the fastest of race, rounds and cloud-only."
    )
    return View("The race beside what it is to beat", header, tuple(body), note)


def _ratio(row: Row, reference: float | None) -> str:
    if row["tokens_per_s"] is None or not reference:
        return NOTHING
    return f"{row['tokens_per_s'] / reference:.3f}"
