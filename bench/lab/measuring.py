"""A command's work from prompts to files: find the models, run the points, write what they gave."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from acespec.bench.lab.bench_options import REAL
from acespec.bench.lab.cases import Encode, PromptCase, load_cases
from acespec.bench.lab.document import Document, Origin, document
from acespec.bench.lab.experiment import Experiment, Point, Scope, points
from acespec.bench.lab.lab_pair import LabPair
from acespec.bench.lab.laboratory import Laboratory
from acespec.bench.lab.markdown import to_markdown
from acespec.bench.lab.plots import check_drawing, draw
from acespec.bench.lab.report import REPORT_FILE, read_document, write_report
from acespec.bench.lab.results_store import ResultsStore
from acespec.bench.lab.runner import Outcome, Runs, execute
from acespec.errors import AcespecError
from acespec.models import DEMO_PAIR, Pair, pair
from acespec.private_files import PUBLIC, write_whole

EXPERIMENTS = ("table1", "table2", "fig5", "fig6", "fig7", "sweep", "race")
"""Those in virtual time, in the order of the report; behind them stands the one in wall-clock time."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What every command that measures is asked for."""

    output: Path
    prompts: tuple[Path, ...]
    limit: int | None
    max_new_tokens: int
    seeds: tuple[int, ...]
    end_tokens: bool
    fresh: bool
    plots: bool
    command: str

    def scope(self, encode: Encode) -> Scope:
        """What every cell is run on. Raises ``AcespecError`` for files of prompts that will not do."""
        return Scope(
            cases=read_prompts(self.prompts, encode, self.limit),
            seeds=self.seeds,
            max_new_tokens=self.max_new_tokens,
            end_tokens=self.end_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class Settings(Asked):
    """What a command in virtual time was asked for, besides its experiment."""

    store: Path | None
    part: tuple[int, int] | None


@dataclass(frozen=True)
class Bench:
    """The models to measure with."""

    pair: Pair
    models: LabPair
    encode: Encode


def demo_bench(say: Callable[[str], None]) -> Bench:
    """The demo pair, made if it is not in the cache yet."""
    from acespec.bench.demo import prepare
    from acespec.bench.lab.cases import chat_encoder
    from acespec.bench.lab.lab_pair import real_pair
    from acespec.models import resolve_model

    chosen = pair(DEMO_PAIR)
    bundle = prepare(say)
    models = real_pair(chosen.name, bundle, resolve_model(chosen.target))
    return Bench(chosen, models, chat_encoder(bundle))


def bench_of(draft: Path | None, target: str | None) -> Callable[[Callable[[str], None]], Bench]:
    """The demo pair, or with the settings that are recommended for it other models of one vocabulary.

    What is returned raises ``AcespecError`` for models that are not there or do not go together.
    """
    if draft is None and target is None:
        return demo_bench
    return lambda say: _named_bench(say, draft, target)


def _named_bench(say: Callable[[str], None], draft: Path | None, target: str | None) -> Bench:
    from acespec.bench.demo import prepare
    from acespec.bench.lab.cases import chat_encoder
    from acespec.bench.lab.lab_pair import real_pair
    from acespec.models import resolve_model
    from acespec.models.manifest import load_bundle

    recommended = pair(DEMO_PAIR)
    bundle = prepare(say) if draft is None else load_bundle(draft)
    folder = resolve_model(recommended.target if target is None else target)
    manifest = bundle.manifest
    chosen = replace(
        recommended,
        name=f"{manifest.model_name}+{folder.name}",
        target=folder.name,
        draft=manifest.model_name,
        buckets=tuple(sorted({bucket for graph in manifest.graphs for bucket in graph.buckets})),
    )
    models = real_pair(chosen.name, bundle, folder)
    if models.identity.vocabulary_hash != manifest.vocabulary_hash:
        raise AcespecError(
            f"{chosen.draft} and {chosen.target} have different vocabularies: they are no pair"
        )
    return Bench(chosen, models, chat_encoder(bundle))


def measure(
    experiment_for: Callable[[Pair], Experiment],
    settings: Settings,
    open_bench: Callable[[Callable[[str], None]], Bench],
) -> None:
    """Measure an experiment with the models of ``open_bench``, and write its files; of a part, none.

    Raises ``AcespecError`` if it cannot begin or write, and, once all is written, if points failed.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    if settings.plots and settings.part is None:
        check_drawing()
    bench = open_bench(console.print)
    experiment = experiment_for(bench.pair)
    scope = settings.scope(bench.encode)
    to_run = points(experiment, scope)
    if settings.part is not None:
        which, count = settings.part
        mine = set(scope.cases[which - 1 :: count])
        to_run = [point for point in to_run if point.case in mine]
    make_folder(settings.output)
    with (
        Laboratory(bench.models, settings.store) as laboratory,
        ResultsStore(settings.output, bench.models.identity.key) as store,
    ):
        outcomes = run_points(laboratory, to_run, store, experiment.title, console, fresh=settings.fresh)
    if settings.part is None:
        origin = Origin(settings.command, bench.pair, bench.models.identity)
        write_files(document(experiment, scope, outcomes, origin), settings.output, settings.plots, console)
    check_failures(outcomes)


def check_failures(outcomes: Sequence[Outcome]) -> None:
    """Raises ``AcespecError`` if runs failed."""
    num_failed = sum(outcome.result is None for outcome in outcomes)
    if num_failed:
        raise AcespecError(
            f"{num_failed} of {len(outcomes)} runs failed and are shown as failed, with their reasons; the "
            "same command tries them again"
        )


def read_prompts(paths: tuple[Path, ...], encode: Encode, limit: int | None) -> tuple[PromptCase, ...]:
    """The prompts of all files. Raises ``AcespecError`` for two data sets, or prompts in one, of one name."""
    cases: list[PromptCase] = []
    for path in paths:
        new = load_cases(path, encode, limit)
        if any(case.dataset == path.stem for case in cases):
            raise AcespecError(f"two data sets are called {path.stem}; rename one of the files")
        if len({case.id for case in new}) < len(new):
            raise AcespecError(f"{path} has an id twice; make them differ, or leave them out")
        cases += new
    return tuple(cases)


def make_folder(folder: Path) -> None:
    """Raises ``AcespecError`` if there can be none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AcespecError(f"cannot make {folder} ({error.strerror}); name another --output") from error


def write_files(content: Document, folder: Path, plots: bool, console: Console) -> None:
    """The experiment's files, and the report on all that lie in ``folder``."""
    name = content["experiment"]
    content["plots"] = draw(content, folder) if plots else []
    text = json.dumps(content, indent=1, allow_nan=False)
    write_whole(folder / f"{name}.json", text.encode(), PUBLIC, replace=True)
    write_whole(folder / f"{name}.md", to_markdown(content).encode(), PUBLIC, replace=True)
    present = [path for each in (*EXPERIMENTS, REAL) if (path := folder / f"{each}.json").is_file()]
    report = write_report(folder, [read_document(path) for path in present])
    write_whole(folder / REPORT_FILE, report, PUBLIC, replace=True)
    for file in (f"{name}.json", f"{name}.md", *content["plots"], REPORT_FILE):
        console.print(str(folder / file), soft_wrap=True)


def run_points(
    runs: Runs, to_run: list[Point], store: ResultsStore, title: str, console: Console, *, fresh: bool
) -> list[Outcome]:
    """Run the points behind a progress bar; reasons of failures are shown as they come."""
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    with shown as progress:
        task = progress.add_task(title, total=len(to_run))

        begun: set[PromptCase] = set()

        def advance(outcome: Outcome) -> None:
            case = outcome.point.case
            if case not in begun and not console.is_terminal:  # no bar is drawn into a file
                done = int(progress.tasks[task].completed)
                console.print(f"{done} of {len(to_run)}: {case.dataset}/{case.id}", soft_wrap=True)
            begun.add(case)
            progress.advance(task)
            if outcome.failure is not None:
                where = f"{outcome.point.cell.strategy.name} on {case.dataset}/{case.id}"
                console.print(f"failed: {where}: {outcome.failure}", soft_wrap=True)

        return execute(runs, to_run, store, advance, fresh=fresh)
