"""``acespec serve``. What needs torch is imported when the command runs, so that ``--help`` stays quick."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from acespec.compute import StepRunner, ThreadRunner
from acespec.options import THREADS, FiniteRange

if TYPE_CHECKING:
    from acespec.cloud_verifier.engine import TargetEngine
    from acespec.cloud_verifier.limits import Limits
    from acespec.cloud_verifier.server import ServerOptions


@click.command()
@click.option(
    "--model",
    required=True,
    metavar="MODEL",
    help="The target: a Hugging Face folder, or the name of a fetched model.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on (plaintext).")
@click.option(
    "--port", default=50051, show_default=True, type=click.IntRange(0, 65535), help="0 picks a free one."
)
@click.option(
    "--device", default="cpu", show_default=True, help="PyTorch device the target runs on, such as cuda."
)
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    type=click.Choice(["float32", "bf16", "fp16"]),
    help="Below float32, tokens that nearly tie may come out differently.",
)
@click.option("--threads", type=THREADS, help="CPU threads of a forward.  [default: PyTorch's choice]")
@click.option(
    "--pace-forward-ms",
    type=FiniteRange(0.0, 600_000.0),
    metavar="MS",
    help="Make every forward take at least this long, as a larger target would.",
)
@click.option("--max-sessions", default=256, show_default=True, type=click.IntRange(1))
def serve(
    model: str,
    host: str,
    port: int,
    device: str,
    dtype: str,
    threads: int | None,
    pace_forward_ms: float | None,
    max_sessions: int,
) -> None:
    """Serve a target model to edges, until SIGTERM or Ctrl-C.

    The connection is plaintext: beyond this machine, put a TLS proxy or a private network in front of it. One
    line on standard output tells when the server is ready, and its address.
    """
    # PyTorch's threads spin while they wait for one another. On two shared cores that made a forward on two
    # threads three times slower (252 ms against 85 ms for one token of a 135M model).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what fails is told below, in one line
    from acespec.cloud_verifier.limits import Limits
    from acespec.cloud_verifier.server import ServerOptions, check_address
    from acespec.models import resolve_model

    options = ServerOptions(host=host, port=port, max_streams=max_sessions + max_sessions // 4)
    limits = Limits(max_sessions=max_sessions)
    check_address(options)
    folder = resolve_model(model)
    from transformers.utils.logging import disable_progress_bar

    from acespec.cloud_verifier.transformers_engine import TransformersEngine

    if not sys.stderr.isatty():
        disable_progress_bar()  # type: ignore[no-untyped-call]
    engine = TransformersEngine.load(folder, device=device, dtype=dtype, threads=threads)
    pace = "" if pace_forward_ms is None else f", paced {pace_forward_ms:g} ms a forward"

    def announce(address: str) -> None:
        click.echo(f"acespec serve: ready on {address} (model {engine.info.name}, {dtype}{pace})")

    asyncio.run(run_server(engine, options, limits, pace_forward_ms, announce))


async def run_server(
    engine: TargetEngine,
    options: ServerOptions,
    limits: Limits,
    pace_forward_ms: float | None,
    on_ready: Callable[[str], None],
) -> None:
    """Serve ``engine`` from one worker thread until a signal comes."""
    from acespec.cloud_verifier.pacing import PacedRunner
    from acespec.cloud_verifier.server import VerifierServer, serve_until_signal
    from acespec.cloud_verifier.verifier import Verifier

    runner: StepRunner = ThreadRunner("target")
    if pace_forward_ms is not None:
        runner = PacedRunner(runner, pace_forward_ms)
    try:
        verifier = Verifier(engine, runner, limits)
        await serve_until_signal(VerifierServer(verifier, options), options.grace_s, on_ready)
    finally:
        runner.close()
