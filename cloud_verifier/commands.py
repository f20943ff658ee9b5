"""``acespec serve``. What needs torch is imported when the command runs, so that ``--help`` stays quick."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from acespec.cloud_verifier.config_file import effective
from acespec.cloud_verifier.option_groups import GroupedCommand
from acespec.cloud_verifier.serve_options import PREFIX, serve_options
from acespec.cloud_verifier.serve_settings import ServeSettings, TargetSettings, serve_settings
from acespec.cloud_verifier.stop_signals import StopSignals
from acespec.cloud_verifier.tensor_parallel import serve_over_ranks, tensor_parallel_world
from acespec.compute import StepRunner, ThreadRunner
from acespec.logs import write_json

if TYPE_CHECKING:
    from acespec.cloud_verifier.engine import TargetEngine, TargetInfo
    from acespec.cloud_verifier.observer import Observer
    from acespec.cloud_verifier.security import Security


@click.command(cls=GroupedCommand, context_settings={"auto_envvar_prefix": PREFIX})
@serve_options
@click.pass_context
def serve(ctx: click.Context, /, print_config: bool, **values: Any) -> None:
    """Serve a target model to edges, until SIGTERM or Ctrl-C.

    Every option can also be a line of the --config file (max_sessions = 64), or a variable
    (ACESPEC_SERVE_MAX_SESSIONS). One line on standard output tells when the server is ready, and its address.
    """
    # PyTorch's threads spin while they wait for one another. On two shared cores that made a forward on two
    # threads three times slower (252 ms against 85 ms for one token of a 135M model).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what fails is told below, in one line
    settings = serve_settings(values)
    if settings.log_format == "json":
        write_json()
    world = tensor_parallel_world(settings.target.tp)
    listens = world is None or world.rank == 0  # the others serve no edges
    if print_config:
        if listens:
            checked(settings)
        click.echo("\n".join(effective(ctx)))
        return
    signals = StopSignals()
    security = None
    if listens:
        settings, security = checked(settings, starting=True)

    def load() -> TargetEngine:
        return load_target(settings.target)

    def run(engine: TargetEngine) -> None:
        asyncio.run(run_server(engine, settings, security, signals))

    if world is None:
        run(load())
    else:
        serve_over_ranks(world, settings.target.device, load, run)


def checked(settings: ServeSettings, *, starting: bool = False) -> tuple[ServeSettings, Security]:
    """The settings with a numeric host, and what protects the server. Raises ``AcespecError``.

    ``starting``: the ports are to be listened on now, and must be free; else a server may be using them.
    """
    from acespec.cloud_verifier.addresses import check_exposure, resolve
    from acespec.cloud_verifier.security import read_security

    endpoint = resolve(settings.server.host, settings.server.port, free=starting)
    if settings.metrics_port is not None:
        resolve(settings.metrics_host, settings.metrics_port, "metrics-", free=starting)
    check_exposure(endpoint, settings.security)
    security = read_security(settings.security)
    return replace(settings, server=replace(settings.server, host=endpoint.address)), security


def load_target(target: TargetSettings) -> TargetEngine:
    """The target in memory. Raises ``AcespecError``."""
    from acespec.models import resolve_model

    folder = resolve_model(target.model)
    from transformers.utils.logging import disable_progress_bar

    from acespec.cloud_verifier.transformers_engine import TransformersEngine

    if not sys.stderr.isatty():
        disable_progress_bar()  # type: ignore[no-untyped-call]
    return TransformersEngine.load(
        folder,
        device=target.device,
        dtype=target.dtype,
        threads=target.threads,
        kv_memory_bytes=target.kv_memory,
        device_map=target.device_map,
        tp=target.tp > 1,
    )


async def run_server(
    engine: TargetEngine, settings: ServeSettings, security: Security | None, signals: StopSignals
) -> None:
    """Serve ``engine`` from one worker thread until a signal comes. Those that come later do nothing."""
    from acespec.cloud_verifier.pacing import PacedRunner
    from acespec.cloud_verifier.server import VerifierServer, serve_until_signal, settle_memory
    from acespec.cloud_verifier.verifier import Verifier

    arrived = signals.queue()
    target = settings.target
    runner: StepRunner = ThreadRunner("target")
    facts = [f"model {engine.info.name}", target.dtype]
    if target.pace_forward_ms is not None:
        runner = PacedRunner(runner, target.pace_forward_ms)
        facts.append(f"paced {target.pace_forward_ms:g} ms a forward")
    try:
        with observed(engine.info, settings) as (observer, metrics_address):
            if metrics_address is not None:
                facts.append(f"metrics on http://{metrics_address}/metrics")
            verifier = Verifier(engine, runner, settings.limits, observer)
            settle_memory()
            server = VerifierServer(verifier, settings.server, security, observer)
            await serve_until_signal(
                server,
                arrived,
                settings.server.drain_timeout_s,
                lambda address: click.echo(f"acespec serve: ready on {address} ({', '.join(facts)})"),
            )
    finally:
        signals.ignore()
        runner.close()


@contextmanager
def observed(info: TargetInfo, settings: ServeSettings) -> Iterator[tuple[Observer, str | None]]:
    """What listens to the verifier, as far as it is wanted, and the address that metrics are served at."""
    from acespec.cloud_verifier.observer import Observers
    from acespec.cloud_verifier.tracing import tracing_observer

    traces = tracing_observer()
    observers = [] if traces is None else [traces]
    if settings.metrics_port is None:
        yield Observers(*observers), None
        return
    from acespec.cloud_verifier.metrics import PrometheusObserver
    from acespec.cloud_verifier.metrics_server import serve_metrics

    metrics = PrometheusObserver(info)
    server = serve_metrics(settings.metrics_host, settings.metrics_port, metrics.registry)
    try:
        yield Observers(*observers, metrics), server.address
    finally:
        server.stop()
