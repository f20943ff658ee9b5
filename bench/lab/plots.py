"""Figures of an experiment's document, as PNG and SVG. What failed or was not measured is not drawn."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from acespec.bench.lab.document import Document
from acespec.bench.lab.experiments import ROUNDS
from acespec.bench.lab.race_views import best_rounds
from acespec.bench.lab.tables import Row
from acespec.bench.lab.view import OURS, groups, rate_text, shown_round_trip
from acespec.errors import AcespecError

Axes = Any
"""Matplotlib is optional, and not there when types are checked."""
Paint = Callable[[Axes], object]
Panel = tuple[str, Paint]
"""A title, and what draws below it."""
Figures = Iterator[tuple[str, list[Panel]]]
"""What a figure's file name ends in, and its panels side by side."""
PANEL_INCHES = (4.6, 3.6)


def check_drawing() -> None:
    """Raises ``AcespecError`` if matplotlib is missing: better before hours of measuring than behind them."""
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise AcespecError(
            f"drawing needs matplotlib, which cannot be imported ({error}); give --no-plots, or run: "
            "pip install 'acespec[plot]'"
        ) from None


def draw(document: Document, folder: Path) -> list[str]:
    """Draw the document's figures into ``folder``; returns the names of the SVG files, a PNG beside each.

    Raises ``AcespecError`` if one cannot be written.
    """
    names = []
    for suffix, panels in _FIGURES[document["experiment"]](document):
        if not panels:
            continue
        name = f"{document['experiment']}{suffix}"
        _save(panels, folder / name)
        names.append(f"{name}.svg")
    return names


def _save(panels: Sequence[Panel], path: Path) -> None:
    matplotlib = importlib.import_module("matplotlib")
    figure_module = importlib.import_module("matplotlib.figure")
    width, height = PANEL_INCHES
    figure = figure_module.Figure(figsize=(width * len(panels), height), layout="constrained")
    colours = matplotlib.colormaps["tab20"].colors
    named: dict[str, Any] = {}
    for axes, (title, paint) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.set_prop_cycle(color=[*colours[::2], *colours[1::2]])  # strong ones first, then their pale twins
        paint(axes)
        axes.set_title(title, fontsize="medium")
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    if named:
        figure.legend(named.values(), named.keys(), loc="outside right upper", fontsize="small")
    try:
        with matplotlib.rc_context({"svg.hashsalt": path.name}):  # the same figure gives the same file
            figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None})
        figure.savefig(path.with_name(f"{path.name}.png"), dpi=150)
    except OSError as error:
        raise AcespecError(
            f"cannot draw into {path}.svg ({error.strerror}); choose another folder"
        ) from error


def _lines(
    axes: Axes, rows: Sequence[Row], x: str, y: str, series: str, labels: Mapping[str, str] | None = None
) -> None:
    """A line for each of ``series``; AceSpec's are drawn thicker."""
    for (name,), members in groups(rows, series).items():
        points = sorted((row[x], row[y]) for row in members if row[y] is not None)
        if points:
            ours = name in OURS
            style = {"linewidth": 2.2 if ours else 1.2, "linestyle": "-" if ours else "--"}
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=str(name), **style)
    for axis, text in (labels or {}).items():
        getattr(axes, f"set_{axis}label")(text)


def _bars(axes: Axes, rows: Sequence[Row], group: str, columns: Mapping[str, str], log: bool = False) -> None:
    """For each row a group of bars, one for each of ``columns`` (measure to label)."""
    width = 0.8 / len(columns)
    for place, (name, label) in enumerate(columns.items()):
        drawn = [(index, row[name]) for index, row in enumerate(rows) if row[name] is not None]
        if drawn:
            positions, values = zip(*drawn, strict=True)
            axes.bar([index + place * width for index in positions], values, width, label=label or None)
    axes.set_xticks([index + 0.4 - width / 2.0 for index in range(len(rows))])
    axes.set_xticklabels([row[group] for row in rows], rotation=40, ha="right", fontsize="small")
    if log:
        axes.set_yscale("symlog", linthresh=1.0)


def _slug(*parts: object) -> str:
    return "".join(f"-{part}" for part in parts if part is not None).replace("/", "_")


def _round_trips(document: Document) -> Figures:
    """Throughput over the round trip with the break-even, bytes and target forwards a token."""
    names = ("profile", "rate_bps", "temperature", "gamma")
    for place, rows in groups(document["rows"], *names).items():
        panels: list[Panel] = []
        sizes: list[Panel] = []
        forwards: list[Panel] = []
        for (dataset,), members in groups(rows, "dataset").items():
            marks = [
                entry["model_rtt_ms"]
                for entry in document["break_even"]
                if entry["dataset"] == dataset and tuple(entry.get(name) for name in names) == place
            ]
            panels.append(_over_round_trip(str(dataset), members, marks))
            trip = shown_round_trip(members)
            here = [row for row in members if row["rtt_ms"] == trip]
            sizes.append((f"{dataset}, {trip:g} ms", _bytes(here)))
            forwards.append((f"{dataset}, {trip:g} ms", _forwards(here)))
        slug = _slug(*place)
        yield f"-throughput{slug}", panels
        yield f"-bytes{slug}", sizes
        yield f"-forwards{slug}", forwards


def _over_round_trip(dataset: str, rows: Sequence[Row], break_evens: Sequence[float | None]) -> Panel:
    """``break_evens`` by the model are said in the title, and marked where the round trips reach."""
    longest = max(row["rtt_ms"] for row in rows)
    told = [f"{trip:.0f} ms" if trip is not None else "none" for trip in break_evens]

    def paint(axes: Axes) -> None:
        _lines(axes, rows, "rtt_ms", "tokens_per_s", "strategy", {"x": "round trip, ms", "y": "tokens/s"})
        for trip in break_evens:
            if trip is not None and trip <= longest:
                axes.axvline(trip, color="black", linestyle=":")
        axes.set_ylim(bottom=0)

    return "; ".join([dataset, *(f"break-even by the model: {trip}" for trip in told)]), paint


def _bytes(rows: Sequence[Row]) -> Paint:
    columns = {
        "payload_up_per_token": "payload up",
        "payload_down_per_token": "payload down",
        "wire_up_per_token": "wire up",
        "wire_down_per_token": "wire down",
    }

    def paint(axes: Axes) -> None:
        _bars(axes, rows, "strategy", columns, log=True)
        axes.set_ylabel("bytes a token")

    return paint


def _forwards(rows: Sequence[Row]) -> Paint:
    def paint(axes: Axes) -> None:
        _bars(axes, rows, "strategy", {"target_forwards_per_token": ""})
        axes.set_ylabel("target forwards a token")

    return paint


def _allocations(document: Document) -> Figures:
    for (profile,), rows in groups(document["rows"], "profile").items():
        shown = {"hit_rate": "hit rate", "tokens_per_s": "tokens/s", "ttft_ms": "TTFT, ms"}
        yield _slug(profile), [(label, _by_dataset(rows, measure)) for measure, label in shown.items()]


def _by_dataset(rows: Sequence[Row], measure: str) -> Paint:
    """Groups of bars by data set, one bar for each allocation."""
    wide = []
    for (dataset,), members in groups(rows, "dataset").items():
        wide.append({"dataset": dataset, **{row["allocation"]: row[measure] for row in members}})
    columns = {row["allocation"]: row["allocation"] for row in rows}
    return lambda axes: _bars(axes, wide, "dataset", columns)


def _bandwidth(document: Document) -> Figures:
    for (profile, counted), rows in groups(document["rows"], "profile", "counted").items():
        panels: list[Panel] = [
            (str(dataset), _over_rate(members)) for (dataset,), members in groups(rows, "dataset").items()
        ]
        yield _slug(profile, counted), panels


def _over_rate(rows: Sequence[Row]) -> Paint:
    def paint(axes: Axes) -> None:
        _lines(axes, rows, "rate_bps", "tokens_per_s", "strategy", {"x": "bits a second", "y": "tokens/s"})
        axes.set_xscale("log")
        axes.invert_xaxis()
        axes.set_ylim(bottom=0)

    return paint


def _strategies(document: Document) -> Figures:
    """Throughput by strategy, a figure for each link, a panel for each data set."""
    for rows in groups(document["rows"], "profile", "rate_bps", "rtt_ms").values():
        profile, rate, trip = rows[0]["profile"], rate_text(rows[0]["rate_bps"]), f"{rows[0]['rtt_ms']:g}"
        panels: list[Panel] = [
            (f"{dataset}, {trip} ms, tokens/s", _speeds(members))
            for (dataset,), members in groups(rows, "dataset").items()
        ]
        yield _slug(profile, rate.replace(" ", ""), f"{trip}ms"), panels


def _speeds(rows: Sequence[Row]) -> Paint:
    return lambda axes: _bars(axes, rows, "strategy", {"tokens_per_s": ""})


def _over(x: str, series: str, label: str, *measures: tuple[str, str]) -> Callable[[Document], Figures]:
    """Lines over ``x``: a figure for each measure and pair of devices, a panel for each data set."""

    def make(document: Document) -> Figures:
        for (profile,), rows in groups(document["rows"], "profile").items():
            for measure, name in measures:
                panels: list[Panel] = [
                    (str(dataset), _line_panel(members, x, measure, series, label, name))
                    for (dataset,), members in groups(rows, "dataset").items()
                ]
                yield _slug(measure.replace("_", "-"), profile), panels

    return make


def _line_panel(rows: Sequence[Row], x: str, y: str, series: str, x_label: str, y_label: str) -> Paint:
    return lambda axes: _lines(axes, rows, x, y, series, {"x": x_label, "y": y_label})


def _race(document: Document) -> Figures:
    """Throughput over the round trip, and target forwards a token: of rounds, the fastest at each."""
    measures = {"tokens_per_s": "tokens/s", "target_forwards_per_token": "target forwards a token"}
    for (profile,), rows in groups(document["rows"], "profile").items():
        shown = {dataset: _with_best_rounds(some) for (dataset,), some in groups(rows, "dataset").items()}
        for measure, label in measures.items():
            panels: list[Panel] = [
                (str(dataset), _line_panel(some, "rtt_ms", measure, "way", "round trip, ms", label))
                for dataset, some in shown.items()
            ]
            yield _slug(measure.replace("_", "-"), profile), panels


def _with_best_rounds(rows: Sequence[Row]) -> list[Row]:
    """``rows`` with one line of rounds: the fastest at each round trip."""
    shown = [row for row in rows if not row["way"].startswith(ROUNDS)]
    best = [best_rounds(here) for here in groups(rows, "rtt_ms").values()]
    return shown + [{**row, "way": f"best {ROUNDS}"} for row in best if row is not None]


_FIGURES: dict[str, Callable[[Document], Figures]] = {
    "table1": _round_trips,
    "table2": _allocations,
    "fig5": _bandwidth,
    "fig6": _over(
        "budget", "allocation", "budget, nodes a step", ("hit_rate", "hit rate"), ("tokens_per_s", "tokens/s")
    ),
    "fig7": _over(
        "temperature", "strategy", "temperature", ("hit_rate", "hit rate"), ("tokens_per_s", "tokens/s")
    ),
    "sweep": _round_trips,
    "race": _race,
    "real": _strategies,
}
