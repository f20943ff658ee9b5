"""Figures draw what was measured, and nothing where nothing was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acespec.bench.lab import plots
from acespec.bench.lab.tables import Row
from acespec.errors import AcespecError

matplotlib_figure = pytest.importorskip("matplotlib.figure")  # the device has none

TRIPS = (10.0, 50.0, 200.0)
COSTS = (
    "payload_up_per_token",
    "payload_down_per_token",
    "wire_up_per_token",
    "wire_down_per_token",
    "target_forwards_per_token",
)


def row(strategy: str, rtt_ms: float, tokens_per_s: float | None) -> Row:
    costs = dict.fromkeys(COSTS, None if tokens_per_s is None else 2.0)
    return {
        "dataset": "d",
        "profile": "p",
        "rtt_ms": rtt_ms,
        "strategy": strategy,
        "tokens_per_s": tokens_per_s,
        **costs,
    }


def document(model_rtt_ms: float | None) -> dict[str, Any]:
    speeds = {"autoregressive": (6.0, 6.0, 6.0), "acespec_coupled": (12.0, None, 5.0)}
    rows = [row(n, t, s) for n, each in speeds.items() for t, s in zip(TRIPS, each, strict=True)]
    mark = {"dataset": "d", "profile": "p", "strategy": "acespec_coupled", "model_rtt_ms": model_rtt_ms}
    return {"experiment": "table1", "rows": rows, "break_even": [mark]}


def painted(content: dict[str, Any], suffix: str) -> tuple[str, Any]:
    figure = matplotlib_figure.Figure()
    panels = dict(plots._FIGURES[content["experiment"]](content))
    ((title, paint),) = panels[f"{suffix}-p"]
    axes = figure.subplots()
    paint(axes)
    return title, axes


def lines(axes: Any) -> dict[str, list[tuple[float, float]]]:
    return {
        line.get_label(): [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]
        for line in axes.lines
    }


def test_throughput_over_the_round_trip_has_a_point_for_each_row_with_figures() -> None:
    title, axes = painted(document(130.0), "-throughput")
    drawn = lines(axes)
    assert drawn["autoregressive"] == [(10.0, 6.0), (50.0, 6.0), (200.0, 6.0)]
    assert drawn["acespec_coupled"] == [(10.0, 12.0), (200.0, 5.0)]
    assert title == "d; break-even by the model: 130 ms"
    assert [x for points in drawn.values() for x, _ in points].count(130.0) == 2  # both ends of one mark


@pytest.mark.parametrize(("model", "told"), [(700.0, "700 ms"), (None, "none")])
def test_a_break_even_out_of_sight_is_told_alone(model: float | None, told: str) -> None:
    title, axes = painted(document(model), "-throughput")
    assert title.endswith(told)
    assert set(lines(axes)) == {"autoregressive", "acespec_coupled"}


def test_costs_are_those_of_the_round_trip_shown_and_a_failed_one_has_no_bar() -> None:
    title, axes = painted(document(None), "-forwards")
    assert title == "d, 50 ms"
    assert [bar.get_height() for bar in axes.patches] == [2.0]
    _, axes = painted(document(None), "-bytes")
    assert [bar.get_height() for bar in axes.patches] == [2.0] * 4


def test_a_figure_is_the_same_file_every_time(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    names = []
    for folder in folders:
        folder.mkdir()
        names.append(plots.draw(document(130.0), folder))
    assert names[0] == names[1] == ["table1-throughput-p.svg", "table1-bytes-p.svg", "table1-forwards-p.svg"]
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes()


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(AcespecError, match="choose another folder"):
        plots.draw(document(130.0), tmp_path / "nowhere")
