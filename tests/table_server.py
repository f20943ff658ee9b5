"""A verifier of a table as a process of its own: ``python tests/table_server.py --port 0``.

It is ready, and can be killed, in a fraction of the time a model takes; all but the model is the real server.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime

import click

from acespec.cloud_verifier.authentication import Presented
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.pacing import PacedRunner
from acespec.cloud_verifier.security import Security
from acespec.cloud_verifier.server import VerifierServer, serve_until_signal
from acespec.cloud_verifier.server_options import ServerOptions
from acespec.cloud_verifier.stop_signals import StopSignals
from acespec.cloud_verifier.tenants import ANONYMOUS, Quota, Tenant
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import ThreadRunner
from fake_draft import hashed_table
from fake_target import TableTargetEngine

VOCAB = 16
MAX_CONTEXT = 512


class BelievingAuthenticator:
    """Takes a token for the name of the tenant."""

    def __init__(self, quota: Quota) -> None:
        self._quota = quota

    def tenant(self, presented: Presented, now: datetime) -> Tenant:
        return Tenant(presented.bearer or ANONYMOUS.name, self._quota)


def table_server(*arguments: str) -> list[str]:
    """The command line of this server with ``arguments``."""
    return [sys.executable, __file__, *arguments]


@click.command()
@click.option("--port", default=0, show_default=True)
@click.option("--salt", default=1, show_default=True, help="Which table.")
@click.option("--forward-ms", default=0.0, show_default=True, help="What a forward takes at least.")
@click.option("--kv-tokens", default=2**62, help="Room for keys and values.  [default: no bound]")
@click.option("--limits", default="{}", show_default=True, help="Fields of Limits, as JSON.")
@click.option("--options", default="{}", show_default=True, help="Fields of ServerOptions, as JSON.")
@click.option("--quota", default="{}", show_default=True, help="Fields of every tenant's Quota, as JSON.")
def main(
    port: int, salt: int, forward_ms: float, kv_tokens: int, limits: str, options: str, quota: str
) -> None:
    """Serve a table until a signal comes. A client's token is its tenant's name."""
    engine = TableTargetEngine(hashed_table(VOCAB, salt), VOCAB, MAX_CONTEXT, kv_tokens)
    asyncio.run(
        serve(
            engine,
            forward_ms,
            Limits(**json.loads(limits)),
            ServerOptions(port=port, **json.loads(options)),
            BelievingAuthenticator(Quota(**json.loads(quota))),
        )
    )


async def serve(
    engine: TableTargetEngine,
    forward_ms: float,
    limits: Limits,
    options: ServerOptions,
    authenticator: BelievingAuthenticator,
) -> None:
    signals = StopSignals().queue()
    runner = PacedRunner(ThreadRunner("target"), forward_ms)
    security = Security(credentials=None, authenticator=authenticator)
    server = VerifierServer(Verifier(engine, runner, limits), options, security)
    try:
        await serve_until_signal(server, signals, 5.0, lambda address: click.echo(f"ready on {address}"))
    finally:
        runner.close()


if __name__ == "__main__":
    main()
