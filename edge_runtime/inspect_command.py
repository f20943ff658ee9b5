"""The ``acespec inspect`` command: a bundle as tables, as JSON, or its latencies as a picture."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from acespec.edge_runtime.plan_files import engines_folder
from acespec.edge_runtime.plan_report import BuiltPlan, built_plans
from acespec.errors import AcespecError
from acespec.models.bundle_report import BundleReport, VariantReport, report_bundle, weights_format
from acespec.models.latency import LatencyProfile
from acespec.models.manifest import load_bundle


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.png",
    help="Draw the latency profile into FILE.png (or .svg, .pdf).",
)
def inspect(bundle: Path, as_json: bool, plot: Path | None) -> None:
    """Show what BUNDLE holds, how much memory it takes, and how long its steps take.

    Every file is compared with its hash first. Memory is computed from shapes; what an engine's own workspace
    takes comes on top.
    """
    report = report_bundle(load_bundle(bundle))
    plans = built_plans(engines_folder(bundle), report.manifest)
    if as_json:
        click.echo(json.dumps(as_dict(report, plans), indent=1))
    else:
        # What a bundle calls things is not markup, whatever brackets it has.
        show(report, plans, Console(highlight=False, markup=False))
    if plot is not None:
        from acespec.edge_runtime.latency_plot import plot_latency

        latency = report.manifest.latency
        if latency is None:
            raise AcespecError(f"{bundle} has no latency profile; measure one with: acespec profile {bundle}")
        plot_latency(latency, report.manifest.model_name, plot)


def as_dict(report: BundleReport, plans: Sequence[BuiltPlan]) -> dict[str, Any]:
    """What ``--json`` prints."""
    manifest = report.manifest
    about = {"model_name", "precision", "quantization", "num_layers", "num_kv_heads", "head_dim"}
    about |= {"vocab_size", "max_context", "vocabulary_hash", "source_fingerprint", "latency"}
    described: dict[str, Any] = dataclasses.asdict(report)
    described["manifest"] = manifest.model_dump(mode="json", include=about)
    described["plans"] = [dataclasses.asdict(plan) for plan in plans]
    return {**described.pop("manifest"), **_plain(described)}


def _plain(value: Any) -> Any:
    """``value`` with its models as dictionaries."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def show(report: BundleReport, plans: Sequence[BuiltPlan], console: Console) -> None:
    """Print the report."""
    manifest = report.manifest
    console.print(
        Text(printable(manifest.model_name), "bold"),
        f": {weights_format(manifest)}, {manifest.num_layers} layers, {manifest.vocab_size:,} tokens, "
        f"context {manifest.max_context:,}, {size(report.total_bytes)}",
        sep="",
    )
    for variant in report.variants:
        console.print(variant_table(variant))
        console.print(interface_table(variant))
        console.print(step_table(variant))
        console.print(memory_table(variant))
    console.print(files_table(report))
    if plans:
        console.print(plans_table(plans))
    if manifest.latency is None:
        console.print("No latency profile; measure one with: acespec profile BUNDLE")
    else:
        console.print(latency_table(manifest.latency))
        console.print(latency_note(manifest.latency))


def variant_table(variant: VariantReport) -> Table:
    """Which graph runs a step of which width."""
    title = f"graph {variant.name}, opset {variant.opset}, layout {variant.layout}"
    table = _table(title, ">width", "file", "logits")
    logits = "all" if variant.top_k is None else f"largest {variant.top_k}"
    for width, file in variant.bucket_files.items():
        table.add_row(str(width), file, f"{logits}, every row")
    if variant.prefill is not None:
        table.add_row(f"prompt {variant.prefill.width}", variant.prefill.file, f"{logits}, last row")
    windows = [f"{m.name} {'full' if m.window is None else f'{m.window} positions'}" for m in variant.masks]
    table.caption = f"masks: {', '.join(windows)}"
    return table


def interface_table(variant: VariantReport) -> Table:
    """Inputs and outputs, tensors that differ in the layer alone in one line."""
    table = _table("interface", "", "name", "type", "shape")
    for kind, tensors in (("in", variant.inputs), ("out", variant.outputs)):
        for tensor in tensors:
            table.add_row(kind, tensor.name, tensor.dtype, f"[{', '.join(map(str, tensor.shape))}]")
    return table


def step_table(variant: VariantReport) -> Table:
    """Buffers of a step, by width."""
    table = _table("buffers of a step", ">width", ">logits", ">masks", ">new rows", ">together")
    for step in variant.steps:
        parts = (step.logits_bytes, step.mask_bytes, step.new_rows_bytes, step.total_bytes)
        table.add_row(f"{'prompt ' if step.prefill else ''}{step.width}", *map(size, parts))
    return table


def memory_table(variant: VariantReport) -> Table:
    """Memory of each layout."""
    table = _table("memory", "layout", ">engines", ">weights", ">context", ">tree rows", ">step", ">together")
    widest = max(step.total_bytes for step in variant.steps)
    for layout in variant.layouts:
        parts = (layout.weights_bytes, variant.context_bytes, variant.tree_bytes, widest, layout.total_bytes)
        table.add_row(layout.layout, str(layout.engines), *map(size, parts))
    table.caption = f"{variant.context_rows:,} rows of context, {variant.tree_rows:,} of the tree"
    return table


def files_table(report: BundleReport) -> Table:
    """Every file of the bundle."""
    table = _table("files", "file", ">size")
    for file in report.files:
        table.add_row(file.name, size(file.size_bytes))
    return table


def plans_table(plans: Sequence[BuiltPlan]) -> Table:
    """TensorRT plans beside the bundle."""
    table = _table("TensorRT plans", "file", ">size", "of", "for", ">widths", ">rows", "")
    for plan in plans:
        widths = ",".join(map(str, plan.widths))
        capability = f"compute {plan.compute_capability}"
        table.add_row(
            plan.file, size(plan.size_bytes), plan.runtime, capability, widths, str(plan.rows), plan.fault
        )
    return table


def latency_table(latency: LatencyProfile) -> Table:
    """Milliseconds of a step, buckets down and contexts across."""
    contexts = sorted({point.context for point in latency.points})
    times_ms = {(point.bucket, point.context): point.median_ms for point in latency.points}
    table = _table("milliseconds a step", ">tokens", *(f">at {context:,} rows" for context in contexts))
    for bucket in latency.buckets:
        cells = [times_ms.get((bucket, context)) for context in contexts]
        table.add_row(str(bucket), *("-" if cell is None else f"{cell:.2f}" for cell in cells))
    return table


def latency_note(latency: LatencyProfile) -> str:
    """Where it was measured, and how long the steps that feed a prompt take."""
    prompts = [f"; a prompt's {p.bucket} tokens at once: {p.median_ms:.2f} ms" for p in latency.prefill]
    return printable(f"{latency.runs_on} on {latency.machine}, {latency.threads} threads{''.join(prompts)}")


def printable(text: str) -> str:
    """``text`` without what would move the cursor or colour a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _table(title: str, *columns: str) -> Table:
    """A table without rows; columns whose name begins with ``>`` are aligned to the right."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left")
    return table


def size(count: int) -> str:
    """Bytes as people read them, in powers of 1024."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"
