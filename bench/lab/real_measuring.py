"""``acespec bench --real``: from prompts to files, in wall-clock time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from acespec.bench.lab.document import Document, Origin
from acespec.bench.lab.experiment import Point, points
from acespec.bench.lab.lab_pair import PairIdentity
from acespec.bench.lab.machine_times import THREADS, MachineTimes, keep_times, kept_times, measure_machine
from acespec.bench.lab.measuring import (
    Asked,
    Bench,
    check_failures,
    demo_bench,
    make_folder,
    run_points,
    write_files,
)
from acespec.bench.lab.plots import check_drawing
from acespec.bench.lab.real_experiment import (
    Links,
    Repeats,
    check_strategies,
    differing_texts,
    medians,
    real_document,
    real_experiment,
)
from acespec.bench.lab.real_laboratory import RealLaboratory
from acespec.bench.lab.results_store import ResultsStore
from acespec.bench.processes import Service, paced_verifier
from acespec.edge_runtime import DraftModel
from acespec.errors import AcespecError


@dataclass(frozen=True, kw_only=True)
class RealSettings(Asked):
    """What the command was asked for."""

    strategies: tuple[str, ...]
    links: Links
    repeats: int
    paced: bool
    pace_forward_ms: float | None
    """Instead of the pair's own target step."""


@dataclass(frozen=True)
class RealBench:
    """A pair to run for real, its draft loaded."""

    bench: Bench
    draft: DraftModel
    measure: Callable[[], MachineTimes]
    """Times both models here."""
    serve: Callable[[float | None], Service]
    """The verifier, not started; told how slow each forward is at least, in ms."""

    @property
    def identity(self) -> PairIdentity:
        return self.bench.models.identity

    def pace(self, paced: bool, forward_ms: float | None) -> float | None:
        """How slow a forward is at least."""
        if not paced:
            return None
        return self.bench.pair.target_step_ms if forward_ms is None else forward_ms


def demo_real_bench(say: Callable[[str], None]) -> RealBench:
    """The demo pair on this machine, made if it is not in the cache yet."""
    from acespec.bench.demo import prepare
    from acespec.edge_runtime.draft_model import load_draft

    bench = demo_bench(say)
    draft, target = load_draft(prepare(say), THREADS), bench.pair.target

    def measure() -> MachineTimes:
        say("timing both models' steps on this machine")
        return measure_machine(draft.engine, bench.models.identity, target)

    return RealBench(bench, draft, measure, lambda pace_ms: paced_verifier(target, THREADS, pace_ms))


def measure_real(
    settings: RealSettings, open_bench: Callable[[Callable[[str], None]], RealBench]
) -> Document:
    """Run everything ``settings.repeats`` times in turns, and write files with the medians.

    Raises ``AcespecError`` if it cannot begin or write, and, once all is written, if runs failed, or if a
    text differs from cloud-only decoding's that must be the same.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    if settings.plots:
        check_drawing()
    real = open_bench(console.print)
    pair, identity = real.bench.pair, real.identity
    check_strategies(pair, settings.strategies)
    scope = settings.scope(real.bench.encode)
    make_folder(settings.output)
    times = None if settings.fresh else kept_times(settings.output, identity)
    if times is None:
        times = real.measure()
        keep_times(settings.output, times)
    pace_ms = real.pace(settings.paced, settings.pace_forward_ms)
    experiment = real_experiment(pair, settings.strategies, times.profiles(pace_ms), settings.links)
    repeats = run_repeats(
        real,
        points(experiment, scope),
        pace_ms,
        settings.output,
        settings.repeats,
        console,
        fresh=settings.fresh,
    )
    origin = Origin(settings.command, pair, identity)
    content = real_document(experiment, scope, repeats, origin, times, pace_ms)
    write_files(content, settings.output, settings.plots, console)
    check_texts(repeats)
    check_failures(medians(repeats))
    return content


def run_repeats(
    real: RealBench,
    to_run: Sequence[Point],
    pace_ms: float | None,
    folder: Path,
    num_repeats: int,
    console: Console,
    *,
    fresh: bool = False,
) -> Repeats:
    """Run all points once, then all again: what else the machine does hits every strategy alike."""
    key = real.identity.key
    with ExitStack() as stack:
        stack.callback(real.draft.runner.close)
        laboratory = stack.enter_context(RealLaboratory(real.identity, real.draft, real.serve(pace_ms)))
        repeats = []
        for number in range(num_repeats):
            title = f"Wall clock, {number + 1} of {num_repeats}"
            with ResultsStore(folder, f"wall/{number}/{key}") as store:
                repeats.append(run_points(laboratory, list(to_run), store, title, console, fresh=fresh))
        return repeats


def check_texts(repeats: Repeats) -> None:
    """Raises ``AcespecError`` if a coupled strategy's text is not cloud-only decoding's."""
    differing = differing_texts(repeats)
    if differing:
        first = differing[0]
        raise AcespecError(
            f"{len(differing)} of the texts that must be those of cloud-only decoding are not; the first: "
            f"{first.cell.strategy.name} on {first.case.dataset}/{first.case.id}"
        )
