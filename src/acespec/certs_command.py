"""The ``acespec certs`` command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from acespec.errors import AcespecError

CA, SERVER = "ca", "server"


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name or address that edges reach the server at; may be given again.",
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="NAME",
    help="Make a client's certificate, for mTLS; may be given again. NAME is the tenant.",
)
@click.option(
    "--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="How long they are valid."
)
def certs(directory: Path, hosts: tuple[str, ...], clients: tuple[str, ...], days: int) -> None:
    """Make a certificate authority for development in DIRECTORY, and certificates signed by it.

    Where DIRECTORY has an authority, that one signs; nothing is overwritten. Keys are ECDSA P-256, readable
    by their owner alone. For more than development use a real authority: this one cannot revoke.
    """
    from datetime import datetime, timezone

    from acespec.certificates import make_ca, make_client, make_server, read_identity
    from acespec.private_files import refuse_to_overwrite

    if not hosts and not clients:
        raise click.UsageError("nothing to make: name a --host of the server, or a --client")
    now = datetime.now(timezone.utc).replace(microsecond=0)
    new_ca = None
    ca = read_identity(directory, CA)
    if ca is None:
        ca = new_ca = make_ca(now, days)
    made = {CA: new_ca} if new_ca is not None else {}
    if hosts:
        made[SERVER] = make_server(ca, hosts, now, days)
    made |= {name: make_client(ca, name, now, days) for name in clients}
    for name in made:
        for ending in ("key", "pem"):
            refuse_to_overwrite(directory / f"{name}.{ending}")
    make_directory(directory)
    for name, identity in made.items():
        identity.write(directory, name)
    ends = min(identity.certificate.not_valid_after_utc for identity in made.values())
    for line in report(directory, hosts, clients, f"{ends:%Y-%m-%d}"):
        click.echo(line)


def make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AcespecError(
            f"cannot make {directory} ({error.strerror or error}); choose another directory"
        ) from error


def report(directory: Path, hosts: Sequence[str], clients: Sequence[str], ends: str) -> Iterator[str]:
    """What was made, and what to pass to whom."""
    ca, server = f"{directory / CA}.pem", directory / SERVER
    if hosts:
        mutual = f" --tls-client-ca {ca}" if clients else ""
        yield f"server certificate for {', '.join(hosts)}, valid until {ends}; on the server:"
        yield f"  acespec serve --tls-cert {server}.pem --tls-key {server}.key{mutual}"
    for client in (directory / name for name in clients):
        yield f"client certificate of {client.name}, valid until {ends}; on that edge, with the three files:"
        yield f"  acespec generate --tls-ca {ca} --tls-cert {client}.pem --tls-key {client}.key"
    if not clients:
        yield f"on the edges, with {ca} copied there:"
        yield f"  acespec generate --tls-ca {ca}"
    yield f"keep {directory / CA}.key to yourself: who has it can pass for the server and for every client"
