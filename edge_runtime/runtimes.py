"""Which runtime computes a draft's steps, and opening an engine on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import click

from acespec.edge_runtime.engine import DraftEngine
from acespec.errors import AcespecError
from acespec.models.manifest import Bundle
from acespec.options import RUNTIMES, Runtime

Provider = Literal["auto", "cpu", "cuda", "tensorrt"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)
"""Of ONNX Runtime. ``auto`` is CUDA where it runs, else the CPU."""


@dataclass(frozen=True)
class OpenedEngine:
    """An engine, and what it runs on."""

    engine: DraftEngine
    runs_on: str
    """The runtime, and ONNX Runtime's provider behind a slash: ``onnxruntime/cpu``, ``tensorrt``."""


def open_engine(
    bundle: Bundle, threads: int, runtime: Runtime = "onnxruntime", provider: Provider | None = None
) -> OpenedEngine:
    """Load the bundle's engine. ``threads`` and ``provider`` (by default ``auto``) are for ONNX Runtime.

    Raises ``AcespecError`` if the bundle cannot be run here.
    """
    # Only the runtime asked for is imported: the others may not be installed.
    if runtime == "onnxruntime":
        from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine

        engine = OnnxRuntimeEngine(bundle, threads, provider=provider or "auto")
        return OpenedEngine(engine, f"{runtime}/{engine.provider}")
    if provider is not None:
        raise AcespecError(
            f"{runtime} has no providers; leave out --provider, or choose --runtime onnxruntime"
        )
    from acespec.edge_runtime.trt_engine import open_tensorrt_engine

    return OpenedEngine(open_tensorrt_engine(bundle, runtime), runtime)


def runtime_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command ``--runtime`` and ``--provider``."""
    runtime = click.option(
        "--runtime",
        type=click.Choice(RUNTIMES),
        default="onnxruntime",
        show_default=True,
        envvar="ACESPEC_RUNTIME",
        show_envvar=True,
        help="What computes the draft's steps.",
    )
    provider = click.option(
        "--provider",
        type=click.Choice(PROVIDERS),
        help="What ONNX Runtime computes on.  [default: auto, CUDA where it runs and else the CPU]",
    )
    return runtime(provider(command))
