"""What `acespec export` makes for ONNX Runtime's CPU against onnxruntime-genai's own int4 build of the model.

Both run in this process, on the same threads, in turns. Our steps go through the edge's engine, whose own
work counts; genai's graph is run bare. Run as ``make bench-export``; the last line is one JSON object.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from acespec.bench.genai_baseline import GenaiSteps, build_genai_model
from acespec.bench.step_times import Step, StepTimes, engine_steps, measure_steps
from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine
from acespec.edge_runtime.ort_session import SessionSettings
from acespec.errors import AcespecError
from acespec.models.files import read_tensors, weight_files
from acespec.models.manifest import Bundle, load_bundle
from acespec.models.sources import resolve_model

WIDTHS = (1, 4, 16, 32, 64)
ROUND_WIDTHS = (1, 16)
"""A tree round is as many steps of the first width as of the second."""
CONTEXT = 512
SHORT_CONTEXT, SHORT_BUFFER, LONG_BUFFER = 256, 512, 4096
GENAI = "genai int4"
PRECISIONS = ("int8", "int4")
DEFAULT, LIKE_GENAI = PRECISIONS


@dataclass(frozen=True)
class Export:
    """One run of the export in a process of its own."""

    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Figures:
    """What the benchmark finds, by medians."""

    one_token_speed_ratio: float
    """genai's time for a one-token step over our int4 bundle's: above 1, ours is faster."""
    one_token_speed_ratio_int8: float
    tree_round_time_ratio: float
    """Our default bundle's time for a tree round over genai's: below 1, ours is faster."""
    step32_over_step1: float
    context_cost_ratio: float
    """A step at 256 rows of 4,096 over one at 256 of 512, tree round, default bundle."""
    export_seconds: float
    export_peak_over_weights: float
    """Of the default bundle; the export's peak memory over the model's weights in float32."""


def export_in_child(model: str, precision: str, out: Path) -> Export:
    """Export a bundle of every width. Raises ``AcespecError`` when that fails."""
    command = [sys.executable, "-m", "acespec", "export", model, "-o", str(out), "--precision", precision]
    command += ["--buckets", ",".join(map(str, WIDTHS)), "--context", str(LONG_BUFFER)]
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=sys.stderr)
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        raise AcespecError(f"the export to {precision} failed; see above")
    return Export(time.perf_counter() - start, usage.ru_maxrss * 1024)


def float32_bytes(model_folder: Path) -> int:
    """Size of a model's weights in float32."""
    tensors = (tensor for file in weight_files(model_folder) for tensor in read_tensors(file))
    return 4 * sum(math.prod(tensor.shape) for tensor in tensors)


def context_cost(bundle: Bundle, settings: SessionSettings, repetitions: int) -> float:
    """Time of a tree round behind `SHORT_CONTEXT` rows of `LONG_BUFFER`, over one of `SHORT_BUFFER`."""
    steps = {
        str(rows): engine_steps(_engine(bundle, settings, rows), SHORT_CONTEXT)
        for rows in (SHORT_BUFFER, LONG_BUFFER)
    }
    times = measure_steps(steps, ROUND_WIDTHS, repetitions)
    return tree_round(times, str(LONG_BUFFER)) / tree_round(times, str(SHORT_BUFFER))


def tree_round(times: StepTimes, name: str) -> float:
    """Milliseconds of a tree round per pair of its steps."""
    return sum(times.median(name, width) for width in ROUND_WIDTHS)


def _engine(bundle: Bundle, settings: SessionSettings, max_context: int) -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(
        bundle, threads=settings.threads, spin=settings.spin, max_context=max_context, tree_rows=64
    )


def compare(
    bundles: dict[str, Bundle], genai_graph: Path, settings: SessionSettings, repetitions: int
) -> StepTimes:
    """Step times of every bundle and of genai's graph behind `CONTEXT` tokens."""
    genai = GenaiSteps(genai_graph, bundles[DEFAULT].manifest, WIDTHS, CONTEXT, settings)
    steps: dict[str, Step] = {GENAI: genai.step}
    for name, bundle in bundles.items():
        steps[name] = engine_steps(_engine(bundle, settings, 2 * CONTEXT), CONTEXT)
    return measure_steps(steps, WIDTHS, repetitions)


def print_times(console: Console, times: StepTimes) -> None:
    """Medians and minima of every engine and width, and ours over genai's."""
    table = Table(title=f"Milliseconds a step behind {CONTEXT} tokens: median (least); ratio to {GENAI}")
    table.add_column("tokens", justify="right")
    for name in times.by_width:
        table.add_column(name, justify="right")
    for width in WIDTHS:
        cells = [f"{times.median(GENAI, width):.2f} ({times.least(GENAI, width):.2f})"]
        for name in times.by_width:
            if name != GENAI:
                median, least = times.median(name, width), times.least(name, width)
                cells.append(f"{median:.2f} ({least:.2f}) x{times.ratio(name, GENAI, width):.2f}")
        table.add_row(str(width), *cells)
    console.print(table)


@click.command()
@click.option("--genai", type=click.Path(path_type=Path), required=True, help="Folder genai is installed in.")
@click.option("--model", default="smollm2-135m", show_default=True, help="A fetched model's name or folder.")
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--spin/--no-spin", default=True, show_default=True, help="Let waiting threads stay busy.")
@click.option("--repetitions", type=click.IntRange(1), default=40, show_default=True)
def main(genai: Path, model: str, threads: int, spin: bool, repetitions: int) -> None:
    """Compare exported bundles with onnxruntime-genai's int4 build of the same model."""
    console = Console(width=110)
    settings = SessionSettings(threads=threads, spin=spin)
    model_folder = resolve_model(model)
    with tempfile.TemporaryDirectory(prefix="acespec-bench-") as scratch:
        console.print(f"Building {GENAI} of {model_folder.name}")
        genai_graph = build_genai_model(genai, model_folder, Path(scratch) / "genai")
        exports, bundles = {}, {}
        for precision in PRECISIONS:
            console.print(f"Exporting {precision}")
            exports[precision] = export_in_child(model, precision, Path(scratch) / precision)
            bundles[precision] = load_bundle(Path(scratch) / precision)
        times = compare(bundles, genai_graph, settings, repetitions)
        cost = context_cost(bundles[DEFAULT], settings, repetitions)
    print_times(console, times)
    figures = Figures(
        one_token_speed_ratio=times.median(GENAI, 1) / times.median(LIKE_GENAI, 1),
        one_token_speed_ratio_int8=times.median(GENAI, 1) / times.median(DEFAULT, 1),
        tree_round_time_ratio=tree_round(times, DEFAULT) / tree_round(times, GENAI),
        step32_over_step1=times.median(DEFAULT, 32) / times.median(DEFAULT, 1),
        context_cost_ratio=cost,
        export_seconds=exports[DEFAULT].seconds,
        export_peak_over_weights=exports[DEFAULT].peak_bytes / float32_bytes(model_folder),
    )
    click.echo(json.dumps({name: round(figure, 3) for name, figure in asdict(figures).items()}))


if __name__ == "__main__":
    main()
