"""The verifier's server process of `make bench-verifier`: ``python -m acespec.bench.verifier_server``."""

from __future__ import annotations

import asyncio
import os

import click

from acespec.bench.verifier_script import CHAIN, ROUND_TOKENS
from acespec.bench.verifier_zero_cost import ZeroCostEngine
from acespec.cloud_verifier.engine import TargetEngine
from acespec.cloud_verifier.limits import Limits
from acespec.compute import ThreadRunner
from acespec.models import resolve_model

SERVER = "acespec.bench.verifier_server"
"""This module, which is run as a process of its own."""
ONE_BY_ONE = "--one-by-one"
KV_MEMORY_BYTES = 2**29
"""Enough for the benchmark's sessions, and for two servers on a small machine."""


def load_engine(model: str | None, threads: int | None) -> TargetEngine:
    """The model at float32, or the target that costs nothing."""
    if model is None:
        return ZeroCostEngine()
    from acespec.cloud_verifier.transformers_engine import TransformersEngine

    return TransformersEngine.load(
        resolve_model(model), dtype="float32", threads=threads, kv_memory_bytes=KV_MEMORY_BYTES
    )


async def serve(engine: TargetEngine, limits: Limits) -> None:
    """Serve until SIGTERM."""
    from acespec.cloud_verifier.server import VerifierServer, serve_until_signal, settle_memory
    from acespec.cloud_verifier.server_options import ServerOptions
    from acespec.cloud_verifier.stop_signals import StopSignals
    from acespec.cloud_verifier.verifier import Verifier

    signals = StopSignals().queue()
    runner = ThreadRunner("target")
    options = ServerOptions(port=0, max_streams=2 * limits.max_sessions)
    try:
        settle_memory()
        server = VerifierServer(Verifier(engine, runner, limits), options)
        await serve_until_signal(
            server, signals, options.drain_timeout_s, lambda address: click.echo(f"ready on {address}")
        )
    finally:
        runner.close()


@click.command()
@click.option("--model", help="Serve this model; by default a target that costs nothing.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads of a forward.")
@click.option("--max-sessions", type=click.IntRange(1), default=256, show_default=True)
@click.option(ONE_BY_ONE, is_flag=True, help="Let a forward hold one round of the benchmark and no more.")
def main(model: str | None, threads: int | None, max_sessions: int, one_by_one: bool) -> None:
    """Serve on a free port of this machine and write a line with "ready on HOST:PORT"."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `acespec serve` does
    limits = Limits(max_sessions=max_sessions)
    if one_by_one:
        limits = Limits(max_sessions=max_sessions, max_chain=CHAIN, token_budget=ROUND_TOKENS)
    asyncio.run(serve(load_engine(model, threads), limits))


if __name__ == "__main__":
    main()
