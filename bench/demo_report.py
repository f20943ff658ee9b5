"""What the demo puts on the screen."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from acespec.bench.demo import PAIR, Comparison, DemoOptions, Run
from acespec.edge_runtime.statistics import GenerationMetrics

Figure = Callable[[Comparison, Run], str]


def introduce(console: Console, options: DemoOptions) -> None:
    """Say what is about to run, and what is real about it."""
    console.print(
        f"Target [bold]{PAIR.target}[/] in a verifier process, draft [bold]{PAIR.draft}[/] in this one, "
        f"between them a link with a round trip of {options.round_trip_ms:g} ms."
    )
    if options.pace_forward_ms is None:
        console.print("The verifier runs as fast as this machine does.")
    else:
        console.print(
            f"The verifier is [bold]paced[/]: each forward takes at least {options.pace_forward_ms:g} ms, "
            "as Llama-3.1-70B on four A100s in the AceSpec paper. A target as small as this one runs faster "
            "here than the large ones people have in the cloud; --no-pace shows the bare machine."
        )
    sampling = options.sampling
    console.print(
        f"\nPrompt: [italic]{options.prompt}[/]\n"
        f"Temperature {sampling.temperature:g}, top-p {sampling.top_p:g}, seed {options.seed}, "
        f"at most {options.max_new_tokens} tokens."
    )


def verdict(comparison: Comparison) -> str:
    """One line: are the texts the same, and how fast did they come."""
    if not comparison.identical:
        return "[bold red]The texts differ[/]: that is a bug, please report it with this screen."
    rounds, race = comparison.speedup(comparison.rounds), comparison.speedup(comparison.race)
    count = len(comparison.cloud_only.result.tokens)
    line = (
        f"[bold green]The texts are identical[/], all {count} tokens. Rounds were [bold]{rounds:.2f} times[/]"
        f" as fast as cloud-only decoding, the race [bold]{race:.2f} times[/]."
    )
    if comparison.options.pace_forward_ms is None and rounds < 1.0:
        line += (
            " Rounds are expected to lose unpaced: a forward of so small a target takes less time than the "
            "round trip and the drafting. Speculation pays where the target's step is long."
        )
    return line


def comparison_table(comparison: Comparison) -> Table:
    """The figures of all runs, side by side."""
    runs = {"rounds": comparison.rounds, "race": comparison.race, "cloud only": comparison.cloud_only}
    table = Table("", *runs, title="One answer, three ways", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, figure in FIGURES.items():
        table.add_row(name, *(figure(comparison, run) for run in runs.values()))
    return table


def time_table(metrics: GenerationMetrics) -> Table:
    """Where the edge's time went in rounds."""
    table = Table("", "ms", "share", title="Where the edge's time went (rounds)", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    spent = {
        "reading the prompt": metrics.prefill_ms,
        f"drafting chains ({metrics.draft_steps} steps)": metrics.draft_ms,
        f"growing the tree while a verdict is under way ({metrics.growth_steps} steps)": metrics.growth_ms,
        "waiting for the cloud": metrics.waiting_ms,
        "its own work between model steps": metrics.own_ms,
    }
    for name, milliseconds in spent.items():
        table.add_row(name, f"{milliseconds:,.0f}", f"{milliseconds / metrics.total_ms:.1%}")
    table.add_section()
    table.add_row("from request to last token", f"{metrics.total_ms:,.0f}", "")
    return table


def _metric(format_metrics: Callable[[GenerationMetrics], str | None]) -> Figure:
    return lambda _, run: format_metrics(run.result.metrics) or "-"


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"


def _milliseconds(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f} ms"


def _decimal(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


FIGURES: dict[str, Figure] = {
    "tokens/s": _metric(lambda metrics: f"{metrics.tokens_per_s:.2f}"),
    "relative to cloud only": lambda comparison, run: f"{comparison.speedup(run):.2f}",
    "time to first token": _metric(lambda metrics: _milliseconds(metrics.time_to_first_token_ms)),
    "drafted tokens accepted": _metric(lambda metrics: _percent(metrics.acceptance)),
    "tokens accepted a round": _metric(lambda metrics: _decimal(metrics.accepted_per_round)),
    "rounds answered by the tree": _metric(lambda metrics: _percent(metrics.hit_rate)),
    "target forwards per token": _metric(lambda metrics: f"{metrics.target_forwards_per_token:.2f}"),
    "message bytes up per token": _metric(lambda metrics: f"{metrics.bytes_up_per_token:.1f}"),
    "message bytes down per token": _metric(lambda metrics: f"{metrics.bytes_down_per_token:.1f}"),
    "TCP bytes up per token": lambda _, run: f"{run.traffic.up / len(run.result.tokens):.1f}",
    "TCP bytes down per token": lambda _, run: f"{run.traffic.down / len(run.result.tokens):.1f}",
}
