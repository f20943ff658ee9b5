"""A pair of tables to run for real: its verifier is a process, ``python -m real_world``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import click

from acespec.bench.lab.machine_times import MachineTimes
from acespec.bench.lab.real_measuring import RealBench
from acespec.bench.processes import Service
from acespec.compute import ThreadRunner
from acespec.edge_runtime import DraftModel
from acespec.models.latency import machine_name
from bench_world import table_bench
from lab_world import BUCKETS, draft_engine, identity, target_engine

STEP_MS, FORWARD_MS = 0.1, 0.2
"""Made up: nothing that is tested depends on them."""


def table_times(**changes: object) -> MachineTimes:
    facts = MachineTimes(
        machine=machine_name(),
        draft_fingerprint=identity().draft_fingerprint,
        target_fingerprint=identity().target_fingerprint,
        draft=tuple((bucket, STEP_MS) for bucket in BUCKETS),
        target=((1, FORWARD_MS), (8, FORWARD_MS)),
        num_layers=1,
        hidden_size=1,
    )
    return facts.model_copy(update=changes)


def table_real_bench(say: Callable[[str], None] = lambda _: None) -> RealBench:
    """``PYTHONPATH`` must let another process find this module."""
    engine = draft_engine()
    draft = DraftModel(engine, lambda _: dict.fromkeys(engine.buckets, STEP_MS), ThreadRunner("draft"))

    def measure() -> MachineTimes:
        say("timing")
        return table_times()

    return RealBench(table_bench(), draft, measure, lambda _: Service(module="real_world"))


async def _serve() -> None:
    """Serve the pair's target until SIGTERM."""
    from acespec.cloud_verifier.server import VerifierServer, serve_until_signal
    from acespec.cloud_verifier.server_options import ServerOptions
    from acespec.cloud_verifier.stop_signals import StopSignals
    from acespec.cloud_verifier.verifier import Verifier

    runner = ThreadRunner("target")
    server = VerifierServer(Verifier(target_engine(), runner), ServerOptions(port=0))
    try:
        await serve_until_signal(
            server, StopSignals().queue(), 5.0, lambda address: click.echo(f"ready on {address}")
        )
    finally:
        runner.close()


if __name__ == "__main__":
    asyncio.run(_serve())
