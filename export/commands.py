"""The ``acespec export`` command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from acespec.export.arguments import BITS, BLOCK_NAMES, HEAD_BITS, ExportArguments, export_options
from acespec.export.options import (
    DEFAULT_BUCKETS,
    DEFAULT_CONTEXT,
    DEFAULT_PREFILL,
    GRAPHS,
    LAYOUTS,
    PRECISIONS,
)
from acespec.export.staging import ended_by_signal
from acespec.models.manifest import DEFAULT_TREE_ROWS
from acespec.options import RUNTIMES

if TYPE_CHECKING:
    from acespec.export.evaluate import EvaluationRow
    from acespec.models.manifest import Bundle


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
    "--runtime",
    type=click.Choice(RUNTIMES),
    default="onnxruntime",
    show_default=True,
    help="What will run the bundle; decides the defaults below.",
)
@click.option(
    "--graph",
    type=click.Choice(["auto", *GRAPHS]),
    default="auto",
    show_default=True,
    help="portable: any runtime. ort: ONNX Runtime's fused operators. native: TensorRT 10.15 or later.",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    help="How weights are stored.  [default: int8 for onnxruntime, fp16 for TensorRT]",
)
@click.option(
    "--block",
    type=click.Choice(list(BLOCK_NAMES)),
    help="Weights of int8 or int4 that share a scale: so many inputs of an output, or all.",
)
@click.option(
    "--symmetric/--asymmetric",
    default=None,
    help="int8 and int4 without or with zero points. TensorRT knows none.",
)
@click.option("--head", type=click.Choice(list(HEAD_BITS)), help="The head's weights.  [default: int8]")
@click.option("--embeddings", type=click.Choice(list(BITS)), help="The token table.  [default: float]")
@click.option(
    "--activations",
    type=click.Choice(list(BITS)),
    help="int8: products of integers, with one scale a row; the ort graph alone.",
)
@click.option(
    "--buckets",
    default=",".join(map(str, DEFAULT_BUCKETS)),
    show_default=True,
    help="Step widths the engine offers, with commas between.",
)
@click.option(
    "--context",
    type=click.IntRange(1),
    default=DEFAULT_CONTEXT,
    show_default=True,
    help="Positions the draft may use; cut to what the model knows.",
)
@click.option(
    "--prefill-chunk",
    type=click.IntRange(1),
    default=DEFAULT_PREFILL,
    show_default=True,
    help="Tokens of a prompt fed at once; at least the widest bucket.",
)
@click.option(
    "--tree-rows",
    type=click.IntRange(1),
    default=DEFAULT_TREE_ROWS,
    show_default=True,
    help="Rows beyond the context, for the tree, where shapes are fixed.",
)
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="profiles",
    show_default=True,
    help="One graph for all buckets, or one with fixed shapes for each.",
)
@click.option(
    "--logits",
    default="full",
    show_default=True,
    metavar="full|topk:K",
    help="Logits that leave the graph: all, or a row's K largest and its log-sum-exp.",
)
@click.option(
    "--eval",
    "eval_file",
    type=click.Path(path_type=Path),
    metavar="FILE.jsonl",
    help='Compare the bundle with the unquantised model on prompts, one {"prompt": …} a line.',
)
@click.option(
    "--eval-prompts",
    type=click.IntRange(1),
    default=24,
    show_default=True,
    help="Prompts of the file to use.",
)
def export(model: str, out: Path, eval_file: Path | None, eval_prompts: int, **typed: Any) -> None:
    """Export MODEL, a Hugging Face folder or the name of a fetched model, as a bundle for the edge.

    The graph is checked against PyTorch before the bundle appears.
    """
    from rich.console import Console

    from acespec.models.sources import resolve_model

    options = export_options(ExportArguments(**typed))
    folder = resolve_model(model)
    # After what may be refused at once: these load torch.
    from acespec.export.bundle import export_bundle
    from acespec.export.evaluate import read_prompts, report_table

    prompts = None if eval_file is None else read_prompts(eval_file, eval_prompts)
    console = Console(stderr=True, markup=False)  # paths may have brackets
    with console.status("starting") as status, ended_by_signal():

        def progress(stage: str) -> None:
            console.print(f"  {stage}", highlight=False)
            status.update(stage)

        bundle = export_bundle(folder, out, options, progress)
        if prompts is not None:
            progress(f"comparing it with the unquantised model on {len(prompts)} prompts")
            console.print(report_table([_evaluated(bundle, folder, prompts)]))
    megabytes = sum(file.stat().st_size for file in bundle.folder.iterdir()) / 1e6
    console.print(
        f"exported {bundle.manifest.model_name} to {bundle.folder} ({megabytes:.0f} MB)", highlight=False
    )


def _evaluated(bundle: Bundle, model_folder: Path, prompts: list[str]) -> EvaluationRow:
    from acespec.export.bundle_draft import BundleDraft
    from acespec.export.evaluate import evaluate_bundle

    draft = BundleDraft(bundle)
    row = evaluate_bundle(bundle, model_folder, prompts, draft)
    return replace(row, step_ms=draft.step_ms)
