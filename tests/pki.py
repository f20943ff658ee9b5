"""Certificates for tests, in folders as ``acespec certs`` leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from acespec.certificates import Identity, make_ca, make_client, make_server


def now() -> datetime:
    return datetime.now(timezone.utc)


def write_pki(
    folder: Path,
    *,
    clients: Sequence[str] = (),
    hosts: Sequence[str] = ("localhost", "127.0.0.1"),
    made: datetime | None = None,
    ca: Identity | None = None,
) -> Identity:
    """A server's files and its clients', valid for a day from ``made``; returns the authority."""
    made = made or now()
    folder.mkdir(exist_ok=True)
    if ca is None:
        ca = make_ca(made, days=1)
        ca.write(folder, "ca")
    make_server(ca, hosts, made, days=1).write(folder, "server")
    for name in clients:
        make_client(ca, name, made, days=1).write(folder, name)
    return ca


LONG_AGO = timedelta(days=30)
