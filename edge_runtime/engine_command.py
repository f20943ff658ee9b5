"""The ``acespec engine`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from acespec.edge_runtime.trt_module import TensorRtRuntime

if TYPE_CHECKING:
    from acespec.edge_runtime.plan_builder import BuildTarget

MEBIBYTE = 1 << 20


@click.group()
def engine() -> None:
    """Compile a bundle for this device."""


@engine.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--runtime",
    type=click.Choice(get_args(TensorRtRuntime)),
    default="tensorrt",
    show_default=True,
    help="What shall run the plans.",
)
@click.option(
    "--engines",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of the plans.  [default: $ACESPEC_ENGINES, or engines, in the bundle]",
)
@click.option(
    "--compute-capability",
    metavar="X.Y",
    help="Device to build for, tensorrt-rtx only: needs no GPU.  [default: this machine's]",
)
@click.option("--force", is_flag=True, help="Build also what is built already.")
@click.option(
    "--workspace",
    type=click.IntRange(1, 1 << 20),
    metavar="MIB",
    help="Most scratch memory of a layer.  [default: all there is]",
)
def build(
    bundle: Path,
    runtime: TensorRtRuntime,
    engines: Path | None,
    compute_capability: str | None,
    force: bool,
    workspace: int | None,
) -> None:
    """Build the TensorRT plans of BUNDLE, on the device that will run them.

    A plan belongs to one TensorRT, one kind of device and one graph. Those that are up to date are kept.
    """
    from rich.console import Console

    from acespec.edge_runtime.plan_builder import PlanBuilder
    from acespec.edge_runtime.plan_files import PlanFolder, engines_folder
    from acespec.models.manifest import load_bundle

    target = build_target(runtime, compute_capability)
    console = Console(stderr=True, markup=False)  # paths may have brackets
    with console.status("reading the bundle") as status:

        def progress(stage: str) -> None:
            console.print(f"  {stage}", highlight=False)
            status.update(stage)

        loaded = load_bundle(bundle)
        folder = PlanFolder(engines or engines_folder(bundle))
        variant, keys = target.plan_keys(loaded)
        workspace_bytes = None if workspace is None else workspace * MEBIBYTE
        builder = PlanBuilder(loaded, target, folder, workspace_bytes, progress)
        sizes = [len(builder.read_or_build(variant, key, force)) for key in keys]
    for key, size in zip(keys, sizes, strict=True):
        widths = ", ".join(str(step.width) for step in key.steps)
        console.print(f"{folder.plan_path(key)}: {size / 1e6:.0f} MB, widths {widths}", highlight=False)


def build_target(runtime: TensorRtRuntime, compute_capability: str | None) -> BuildTarget:
    """What to build with and for. Raises ``AcespecError`` when it is not here or cannot build for others."""
    from acespec.edge_runtime.cuda import CudaError, load_cuda
    from acespec.edge_runtime.plan_builder import BuildTarget
    from acespec.edge_runtime.plan_key import architecture
    from acespec.edge_runtime.trt_module import TensorRtError, load_tensorrt

    if compute_capability is not None:
        architecture(compute_capability)
        if runtime == "tensorrt":
            raise TensorRtError(
                "TensorRT builds for the device it runs on; leave --compute-capability out, and build there"
            )
    tensorrt = load_tensorrt(runtime)
    if compute_capability is None:
        try:
            compute_capability = load_cuda().compute_capability()
        except CudaError as error:
            if runtime == "tensorrt":
                raise
            raise CudaError(f"{error}; without a GPU, name a device with --compute-capability") from None
    return BuildTarget(tensorrt, runtime, compute_capability)
