"""The ``acespec profile`` command."""

from __future__ import annotations

from pathlib import Path

import click

from acespec.edge_runtime.runtimes import Provider, runtime_options
from acespec.options import THREADS, Runtime


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--threads", type=THREADS, default=1, show_default=True, help="Threads of the engine.")
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True, help="Steps a median is of.")
@runtime_options
def profile(bundle: Path, threads: int, repeats: int, runtime: Runtime, provider: Provider | None) -> None:
    """Measure BUNDLE's steps on this machine and store the latencies in its manifest.

    Run it on the device, with the machine as busy as it will be.
    """
    from rich.console import Console

    from acespec.edge_runtime.profiler import measure_engine, measure_prefill
    from acespec.edge_runtime.runtimes import open_engine
    from acespec.models.latency import LatencyProfile, machine_name
    from acespec.models.manifest import check_writable, load_bundle, write_manifest

    console = Console(stderr=True, markup=False)  # paths may have brackets
    with console.status("loading the bundle") as status:
        loaded = load_bundle(bundle)
        check_writable(bundle)
        opened = open_engine(loaded, threads, runtime, provider)
        points = []
        for point in measure_engine(opened.engine, repeats):
            points.append(point)
            line = f"bucket {point.bucket:4d}, context {point.context:5d}: {point.median_ms:8.2f} ms"
            status.update(line)
            console.print(f"  {line}", highlight=False)
        prefill = measure_prefill(opened.engine, repeats)
        line = f"prompt, {prefill.bucket:4d} tokens at once: {prefill.median_ms:8.2f} ms"
        console.print(f"  {line}", highlight=False)
    latency = LatencyProfile(
        machine=machine_name(),
        threads=threads,
        runs_on=opened.runs_on,
        points=tuple(points),
        prefill=(prefill,),
    )
    write_manifest(bundle, loaded.manifest.model_copy(update={"latency": latency}))
    console.print(f"stored in {bundle}", highlight=False)
