"""The ``acespec export`` command."""

from __future__ import annotations

from pathlib import Path

import click

from acespec.export.options import (
    DEFAULT_BUCKETS,
    DEFAULT_CONTEXT,
    PRECISIONS,
    ExportOptions,
    parse_buckets,
    parse_precision,
)


@click.command()
@click.argument("model")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of the bundle; replaced if it is one.",
)
@click.option(
    "--buckets",
    default=",".join(map(str, DEFAULT_BUCKETS)),
    show_default=True,
    help="Step widths the engine offers, with commas between.",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="fp32",
    show_default=True,
    help="How weights are stored. int4 keeps the head in int8.",
)
@click.option(
    "--context",
    type=click.IntRange(1),
    default=DEFAULT_CONTEXT,
    show_default=True,
    help="Positions the draft may use; cut to what the model knows.",
)
def export(model: str, out: Path, buckets: str, precision: str, context: int) -> None:
    """Export MODEL, a Hugging Face folder or the name of a fetched model, as a bundle for the edge.

    The graph is checked against PyTorch before the bundle appears.
    """
    from rich.console import Console

    from acespec.models.sources import resolve_model

    options = ExportOptions(parse_buckets(buckets), context, precision=parse_precision(precision))
    folder = resolve_model(model)
    from acespec.export.bundle import export_bundle  # after what may be refused at once: it loads torch

    console = Console(stderr=True)
    with console.status("starting") as status:

        def progress(stage: str) -> None:
            console.print(f"  {stage}", highlight=False)
            status.update(stage)

        bundle = export_bundle(folder, out, options, progress)
    megabytes = sum(file.stat().st_size for file in bundle.folder.iterdir()) / 1e6
    console.print(
        f"exported {bundle.manifest.model_name} to {bundle.folder} ({megabytes:.0f} MB)", highlight=False
    )
