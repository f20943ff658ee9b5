"""The ``acespec validate`` command: what a bundle's own engine, and PyTorch, say of its graphs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from acespec.edge_runtime.runtimes import Provider, open_engine, runtime_options
from acespec.errors import AcespecError
from acespec.options import THREADS, Runtime

if TYPE_CHECKING:
    from acespec.edge_runtime.engine import DraftEngine
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
@click.option("--threads", type=THREADS, default=1, show_default=True, help="Threads of ONNX Runtime.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the random tokens.")
@runtime_options
def validate(
    bundle: Path, model: str | None, threads: int, seed: int, runtime: Runtime, provider: Provider | None
) -> None:
    """Check BUNDLE: its files, its graphs' interfaces, and what they compute.

    Trees must give the logits of their branches run alone, prompts in wide steps those of single steps, and a
    kept branch must go on as if it were alone. Exits with status 1, naming file, bucket and row of failures.
    """
    from acespec.models.manifest import load_bundle

    loaded = load_bundle(bundle)
    source = None if model is None else source_of(loaded, model)
    click.echo(f"{len(loaded.manifest.file_sha256)} files have the manifest's hashes")
    failures = 0
    for variant in runnable(loaded, runtime, provider):
        click.echo(f"graph {variant.name} on {runtime}")
        engine = open_graph(loaded, variant, threads, runtime, provider)
        for finding in findings(loaded, variant, engine, seed, source):
            failures += not finding.passed
            click.echo(line(finding, variant), err=not finding.passed)
    if failures:
        raise AcespecError(f"{failures} checks of {bundle} failed; export it again, or try another --runtime")
    click.echo("all checks passed")


def source_of(bundle: Bundle, model: str) -> Path:
    """The folder of ``model``. Raises ``AcespecError`` unless ``bundle`` was exported from it."""
    from acespec.models.fingerprint import check_source
    from acespec.models.sources import resolve_model

    folder = resolve_model(model)
    check_source(bundle, folder)
    return folder


def runnable(bundle: Bundle, runtime: Runtime, provider: Provider | None) -> list[GraphVariant]:
    """The bundle's graphs that ``runtime`` runs. Raises ``AcespecError`` when there is none."""
    if runtime != "onnxruntime":
        kinds = ["native", "portable"]
    else:
        kinds = ["portable", "ort"] if provider in (None, "auto", "cpu") else ["portable"]
    found = [variant for variant in bundle.manifest.graphs if variant.name in kinds]
    if not found:
        names = ", ".join(variant.name for variant in bundle.manifest.graphs)
        raise AcespecError(
            f"{runtime} runs none of the graphs of {bundle.folder} ({names}); choose a --runtime"
        )
    # TensorRT's engine chooses the graph by TensorRT's version, and holds one.
    return found if runtime == "onnxruntime" else found[:1]


def open_graph(
    bundle: Bundle, variant: GraphVariant, threads: int, runtime: Runtime, provider: Provider | None
) -> DraftEngine:
    """The engine that runs ``variant``. Raises ``AcespecError`` where its interface is not the manifest's.

    ONNX Runtime is told not to round the activations of weight-only graphs: rounding would hide small faults.
    """
    if runtime != "onnxruntime":
        return open_engine(bundle, threads, runtime, provider).engine
    from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine

    return OnnxRuntimeEngine(
        bundle, threads, accuracy_level=1, provider=provider or "auto", graph=variant.name
    )


def findings(
    bundle: Bundle, variant: GraphVariant, engine: DraftEngine, seed: int, source: Path | None
) -> Iterator[Finding]:
    """Run the checks, last the comparison with PyTorch's logits of the model in ``source``."""
    from acespec.edge_runtime.validation import compare_with_reference, validate_engine
    from acespec.models.tolerances import run_tolerance

    tolerance = run_tolerance(bundle.manifest)
    windows = [mask.window for mask in variant.masks if mask.window is not None]
    yield from validate_engine(engine, tolerance, windows, seed)
    if source is not None:
        from acespec.export.reference import reference_logits

        probe, expected = reference_logits(source, bundle)
        yield compare_with_reference(engine, probe, expected, tolerance)


def line(finding: Finding, variant: GraphVariant) -> str:
    """A finding in words; of a failed one the file, the bucket and the row."""
    if finding.passed:
        step = f"{finding.check:<11}{finding.bucket:>5} wide behind {finding.context:>4}"
        difference = f"differ by at most {finding.difference:.1e} (allowed {finding.allowed:.1e})"
        return f"  {step}: {finding.rows:>4} rows {difference}"
    if finding.check == "prefill" and variant.prefill is not None:
        file = variant.prefill.file
    else:
        file = variant.bucket_files[finding.bucket]
    return (
        f"  FAILED {file}, bucket {finding.bucket}, row {finding.row} behind {finding.context}: "
        f"{WHAT[finding.check]} by {finding.difference:.2e} in a logit, allowed are {finding.allowed:.1e}"
    )
