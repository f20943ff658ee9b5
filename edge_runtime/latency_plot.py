"""A picture of a latency profile: milliseconds a step over the context, one line a bucket."""

from __future__ import annotations

import importlib
from pathlib import Path

from acespec.errors import AcespecError
from acespec.models.latency import LatencyProfile


def plot_latency(latency: LatencyProfile, title: str, file: Path) -> None:
    """Draw ``latency`` into ``file``, whose suffix says in which format.

    Raises ``AcespecError`` when matplotlib is missing, or when the file cannot be written or has an unknown
    suffix.
    """
    try:
        # Optional, so it is looked up by name; and not pyplot, which looks for a screen.
        figure_module = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise AcespecError(
            f"drawing needs matplotlib, which cannot be imported ({error}); in a clone of acespec, run: "
            "pip install '.[plot]'"
        ) from None
    figure = figure_module.Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for bucket in latency.buckets:
        points = sorted((p.context, p.median_ms) for p in latency.points if p.bucket == bucket)
        axes.plot(*zip(*points, strict=True), marker="o", label=f"{bucket} token{'s' if bucket > 1 else ''}")
    axes.set_xlabel("rows of context before the step")
    axes.set_ylabel("milliseconds a step (median)")
    axes.set_ylim(bottom=0)
    where = f"{latency.runs_on}, {latency.machine}, {latency.threads} threads"
    axes.set_title(f"{title}: {where}", fontsize="medium")
    axes.legend()
    axes.grid(alpha=0.3)
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:
        cause = " ".join(str(error).split())
        raise AcespecError(f"cannot draw into {file} ({cause}); choose another file") from None
