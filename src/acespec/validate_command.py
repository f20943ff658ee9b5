"""The ``acespec validate`` command: what a bundle's own engine, and PyTorch, say of its graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acespec.errors import AcespecError
from acespec.options import THREADS

if TYPE_CHECKING:
    from acespec.edge_runtime.engine import DraftEngine
    from acespec.edge_runtime.trt_module import TensorRtRuntime
    from acespec.edge_runtime.validation import Finding
    from acespec.models.manifest import Bundle, GraphVariant

WHAT = {
    "prefill": "a prompt in wide steps differs from one fed token by token",
    "tree": "a tree step differs from its branches fed alone",
    "compaction": "the step after a kept branch differs from one after the branch alone",
    "pytorch": "the logits differ from PyTorch's",
}


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--model", help="Folder or name of the model it was exported from: compare with PyTorch, too.")
@click.option(
    "--runtime",
    type=click.Choice(["onnxruntime", "tensorrt", "tensorrt-rtx"]),
    default="onnxruntime",
    show_default=True,
    help="What runs the graphs.",
)
@click.option("--threads", type=THREADS, default=1, show_default=True, help="Threads of ONNX Runtime.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the random tokens.")
def validate(bundle: Path, model: str | None, runtime: str, threads: int, seed: int) -> None:
    """Check BUNDLE: its files, its graphs' interfaces, and what they compute.

    Trees must give the logits of their branches run alone, prompts in wide steps those of single steps, and a
    kept branch must go on as if it were alone. Exits with status 1 naming file, bucket and row of every failure.
    """
    from acespec.models.manifest import load_bundle

    loaded = load_bundle(bundle)
    click.echo(f"{len(loaded.manifest.file_sha256)} files have the manifest's hashes")
    failures = 0
    for variant in runnable(loaded, runtime):
        click.echo(f"graph {variant.name} on {runtime}")
        for finding in findings(loaded, variant, runtime, threads, seed, model):
            failures += not finding.passed
            click.echo(line(finding, variant), err=not finding.passed)
    if failures:
        raise AcespecError(f"{failures} checks of {bundle} failed; export it again, or try another --runtime")
    click.echo("all checks passed")


def runnable(bundle: Bundle, runtime: str) -> list[GraphVariant]:
    """The bundle's graphs that ``runtime`` runs. Raises ``AcespecError`` when there is none."""
    kinds = ("portable", "ort") if runtime == "onnxruntime" else ("portable", "native")
    found = [variant for variant in bundle.manifest.graphs if variant.name in kinds]
    if not found:
        names = ", ".join(variant.name for variant in bundle.manifest.graphs)
        raise AcespecError(
            f"{runtime} runs none of the graphs of {bundle.folder} ({names}); choose a --runtime"
        )
    # TensorRT chooses by its version; its engine holds one graph.
    return found if runtime == "onnxruntime" else found[:1]


def findings(
    bundle: Bundle, variant: GraphVariant, runtime: str, threads: int, seed: int, model: str | None
) -> Iterator[Finding]:
    """Open the engine, which compares every graph's interface with the manifest, and run the checks."""
    from acespec.edge_runtime.validation import compare_with_reference, validate_engine
    from acespec.models.tolerances import run_tolerance

    tolerance = run_tolerance(bundle.manifest)
    windows = [mask.window for mask in variant.masks if mask.window is not None]
    with ExitStack() as stack:
        engine = open_engine(bundle, variant, runtime, threads, stack)
        yield from validate_engine(engine, tolerance, windows, seed)
        if model is not None:
            from acespec.export.reference import reference_logits
            from acespec.models.sources import resolve_model

            probe, expected = reference_logits(resolve_model(model), bundle)
            yield compare_with_reference(engine, probe, expected, tolerance)


def open_engine(
    bundle: Bundle, variant: GraphVariant, runtime: str, threads: int, stack: ExitStack
) -> DraftEngine:
    """The engine that runs ``variant``; ``stack`` closes it where it must be.

    ONNX Runtime is told not to round the activations of weight-only graphs: rounding would hide small faults.
    """
    if runtime == "onnxruntime":
        from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine

        return OnnxRuntimeEngine(bundle, threads, accuracy_level=1, graph=variant.name)
    from acespec.edge_runtime.trt_engine import open_tensorrt_engine

    tensorrt: TensorRtRuntime = "tensorrt-rtx" if runtime == "tensorrt-rtx" else "tensorrt"
    return stack.enter_context(open_tensorrt_engine(bundle, tensorrt))


def line(finding: Finding, variant: GraphVariant) -> str:
    """A finding in words; of a failed one the file, the bucket and the row."""
    if finding.passed:
        return (
            f"  {finding.check:<11}{finding.bucket:>5} wide behind {finding.context:>4}: {finding.rows:>4} rows "
            f"differ by at most {finding.difference:.1e} (allowed {finding.allowed:.1e})"
        )
    if finding.check == "prefill" and variant.prefill is not None:
        file = variant.prefill.file
    else:
        file = variant.bucket_files[finding.bucket]
    return (
        f"  FAILED {file}, bucket {finding.bucket}, row {finding.row} behind {finding.context}: "
        f"{WHAT[finding.check]} by {finding.difference:.2e} in a logit, allowed are {finding.allowed:.1e}"
    )
