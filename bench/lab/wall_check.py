"""Wall clock against virtual clock: the same strategies, prompts, seeds and link, run both ways.

The virtual clock is given what single steps and forwards take on this machine, measured beforehand, and the
relay's link. What it knows nothing of makes the difference: gRPC and the way between processes and threads,
connecting, the edge's own work between steps, and what two models on one machine cost each other. Run as
``make check-wall`` on a machine that does nothing else; the last line on standard output is one JSON object.
Exit status 1 if a throughput differs by more than is aimed at, a run fails, or a text is not what it must be.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table as ScreenTable

from acespec.bench.lab.bench_options import ListOf
from acespec.bench.lab.cases import PromptCase
from acespec.bench.lab.experiment import Experiment, Point, Scope, points
from acespec.bench.lab.laboratory import Laboratory
from acespec.bench.lab.machine_times import MachineTimes
from acespec.bench.lab.measures import MEASURES, THROUGHPUT, TTFT, Measure
from acespec.bench.lab.measuring import check_failures, run_points
from acespec.bench.lab.real_experiment import (
    Links,
    medians,
    must_be_equal,
    real_experiment,
)
from acespec.bench.lab.real_measuring import RealBench, check_texts, demo_real_bench, run_repeats
from acespec.bench.lab.results_store import ResultsStore
from acespec.bench.lab.runner import Outcome
from acespec.errors import AcespecError
from acespec.options import FiniteRange

AIM = 0.15
"""How far the virtual clock's throughput may be from the wall clock's, relative to it."""
FORWARDS = next(measure for measure in MEASURES if measure.name == "target_forwards_per_token")
TABLE_WIDTH = 110
PROMPTS = (
    "Explain to a curious child why the sky is blue during the day and red at sunset.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
)


@dataclass(frozen=True)
class CheckSettings:
    """What is run both ways."""

    prompts: tuple[str, ...] = PROMPTS
    max_new_tokens: int = 64
    repeats: int = 3
    links: Links = field(default_factory=Links)
    paced: bool = True


@dataclass(frozen=True)
class Compared:
    """One strategy over one link by both clocks."""

    strategy: str
    rtt_ms: float
    wall_tokens_per_s: float
    virtual_tokens_per_s: float
    wall_ttft_ms: float
    virtual_ttft_ms: float
    wall_forwards_per_token: float
    virtual_forwards_per_token: float
    """Where these are equal, times differ; where they are not, so do the chains that were drafted."""
    difference: float
    """Virtual over wall throughput, minus 1."""
    equal_texts: float | None
    """Share of texts that are the same by both clocks; None where the text depends on how chains fall."""


def check(
    settings: CheckSettings, real: RealBench, folder: Path, console: Console, store: Path | None = None
) -> tuple[MachineTimes, list[Compared]]:
    """Run everything both ways; returns the steps' times, too, that the virtual clock was given.

    ``folder`` takes what is measured, ``store`` what the models say (by default as ``Laboratory`` has it).
    Raises ``AcespecError`` if a run fails or a text is not as it must be.
    """
    times = real.measure()
    show_times(times, console)
    pace_ms = real.pace(settings.paced, None)
    experiment = real_experiment(real.bench.pair, (), times.profiles(pace_ms), settings.links)
    to_run = points(experiment, _scope(settings, real))
    repeats = run_repeats(real, to_run, pace_ms, folder, settings.repeats, console, fresh=True)
    wall = medians(repeats)
    check_failures(wall)
    check_texts(repeats)
    virtual = run_virtually(real, to_run, folder, console, store)
    check_failures(virtual)
    return times, [compare(name, rtt_ms, wall, virtual) for rtt_ms, name in _rows(experiment)]


def run_virtually(
    real: RealBench, to_run: Sequence[Point], folder: Path, console: Console, store: Path | None
) -> list[Outcome]:
    """The same points in virtual time. Rows the store lacks are computed by the models."""
    models = real.bench.models
    with Laboratory(models, store) as laboratory, ResultsStore(folder, models.identity.key) as results:
        return run_points(laboratory, list(to_run), results, "Virtual clock", console, fresh=True)


def compare(strategy: str, rtt_ms: float, wall: Sequence[Outcome], virtual: Sequence[Outcome]) -> Compared:
    """The outcomes of one strategy over one link by both clocks, of the same points."""
    mine = [
        (real, simulated)
        for real, simulated in zip(wall, virtual, strict=True)
        if real.point.cell.labels["strategy"] == strategy and real.point.cell.labels["rtt_ms"] == rtt_ms
    ]
    by_wall, by_virtual = zip(*mine, strict=True)
    wall_speed, virtual_speed = _measured(THROUGHPUT, by_wall), _measured(THROUGHPUT, by_virtual)
    equal = [
        real.result.tokens == simulated.result.tokens
        for real, simulated in mine
        if must_be_equal(real.point) and real.result is not None and simulated.result is not None
    ]
    return Compared(
        strategy,
        rtt_ms,
        wall_speed,
        virtual_speed,
        _measured(TTFT, by_wall),
        _measured(TTFT, by_virtual),
        _measured(FORWARDS, by_wall),
        _measured(FORWARDS, by_virtual),
        difference=virtual_speed / wall_speed - 1.0,
        equal_texts=sum(equal) / len(equal) if equal else None,
    )


def report(compared: Sequence[Compared], times: MachineTimes, settings: CheckSettings) -> dict[str, Any]:
    """What was found, as JSON has it."""
    return {
        "worst_difference": max((entry.difference for entry in compared), key=abs),
        "aim": AIM,
        "within_aim": all(abs(entry.difference) <= AIM for entry in compared),
        "rows": [asdict(entry) for entry in compared],
        "machine": times.machine,
        "draft_ms": times.draft,
        "target_ms": times.target,
        "settings": asdict(settings),
    }


def show(compared: Sequence[Compared], console: Console) -> None:
    """The comparison as a table."""
    table = ScreenTable(title="Wall clock against virtual clock")
    table.add_column("strategy", no_wrap=True)
    for name in ("RTT ms", "tokens/s", "virtual", "difference", "TTFT ms", "virtual", "forwards", "virtual"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("same text", justify="right")
    for entry in compared:
        table.add_row(
            entry.strategy,
            f"{entry.rtt_ms:g}",
            f"{entry.wall_tokens_per_s:.2f}",
            f"{entry.virtual_tokens_per_s:.2f}",
            f"{entry.difference:+.1%}",
            f"{entry.wall_ttft_ms:.0f}",
            f"{entry.virtual_ttft_ms:.0f}",
            f"{entry.wall_forwards_per_token:.3f}",
            f"{entry.virtual_forwards_per_token:.3f}",
            "-" if entry.equal_texts is None else f"{entry.equal_texts:.0%}",
        )
    console.print(table)


def show_times(times: MachineTimes, console: Console) -> None:
    """What the virtual clock is given."""
    for name, points_ms in (("draft steps", times.draft), ("target forwards", times.target)):
        figures = ", ".join(f"{width}: {each:.1f}" for width, each in points_ms)
        console.print(f"{name}, ms by tokens: {figures}", soft_wrap=True)


def _scope(settings: CheckSettings, real: RealBench) -> Scope:
    cases = tuple(
        PromptCase("built-in", str(index), tuple(real.bench.encode(text)))
        for index, text in enumerate(settings.prompts)
    )
    return Scope(cases, max_new_tokens=settings.max_new_tokens)


def _rows(experiment: Experiment) -> list[tuple[float, str]]:
    return [(float(cell.labels["rtt_ms"]), str(cell.labels["strategy"])) for cell in experiment.cells]


def _measured(measure: Measure, outcomes: Sequence[Outcome]) -> float:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    value = measure.of({str(index): [result] for index, result in enumerate(results)})
    assert value is not None, "checked before: no run failed"
    return value


@click.command()
@click.option("--rtt", "rtts", type=ListOf(FiniteRange(min=0.0)), default="50", show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--prompts", type=click.IntRange(1, len(PROMPTS)), default=len(PROMPTS), show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--no-pace", is_flag=True, help="Let the verifier run as fast as this machine does.")
def main(rtts: tuple[float, ...], max_new_tokens: int, prompts: int, repeats: int, no_pace: bool) -> None:
    """Compare the wall clock with the virtual clock."""
    console = Console(stderr=True, highlight=False, markup=False, width=TABLE_WIDTH)
    settings = CheckSettings(PROMPTS[:prompts], max_new_tokens, repeats, Links(rtts), not no_pace)
    try:
        real = demo_real_bench(console.print)
        with tempfile.TemporaryDirectory(prefix="acespec-wall-") as folder:
            times, compared = check(settings, real, Path(folder), console)
    except AcespecError as error:
        raise click.ClickException(str(error)) from error
    show(compared, console)
    found = report(compared, times, settings)
    click.echo(json.dumps(found))
    if not found["within_aim"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
