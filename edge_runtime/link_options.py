"""The command line options that say how to reach a verifier and what to do in an outage."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from acespec.edge_runtime.address import host_of
from acespec.edge_runtime.outage import OnOutage, OutageSettings
from acespec.options import FiniteRange

if TYPE_CHECKING:  # it brings gRPC, which only a generation needs
    from acespec.edge_runtime.remote import RemoteSettings

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path, dir_okay=False)
SECONDS = FiniteRange(0.0, min_open=True)


def checked_address(_context: click.Context, _option: click.Parameter, address: str) -> str:
    """Raises ``AcespecError`` before anything is loaded or looked up."""
    host_of(address)
    return address


SERVER = click.option(
    "--server", required=True, metavar="HOST:PORT", callback=checked_address, help="The verifier's address."
)
OPTIONS = {
    "connect_timeout_s": click.option(
        "--connect-timeout",
        "connect_timeout_s",
        type=SECONDS,
        default=OutageSettings.first_timeout_s,
        show_default=True,
        metavar="SECONDS",
        help="How long to try to reach the verifier for the first time.",
    ),
    "on_outage": click.option(
        "--on-outage",
        type=click.Choice([o.value for o in OnOutage]),
        help="When the verifier is lost: wait for it, go on drafting provisional text, or fail. Given "
        "explicitly, wait and draft hold for the first connection too.  [default: wait]",
    ),
    "outage_timeout_s": click.option(
        "--outage-timeout",
        "outage_timeout_s",
        type=SECONDS,
        default=OutageSettings.timeout_s,
        show_default=True,
        metavar="SECONDS",
        help="How long an outage may last.",
    ),
    "tls": click.option("--tls", is_flag=True, help="Use TLS; the --tls-... options imply it."),
    "tls_ca": click.option(
        "--tls-ca",
        type=FILE,
        help="CAs that the verifier's certificate may come from.  [default: the system's]",
    ),
    "tls_cert": click.option(
        "--tls-cert", type=FILE, help="Certificate of this edge, if the verifier asks for one."
    ),
    "tls_key": click.option("--tls-key", type=FILE, help="Private key of --tls-cert."),
    "tls_server_name": click.option(
        "--tls-server-name", help="Name in the verifier's certificate, if not that of its address."
    ),
    "token_file": click.option(
        "--token-file",
        type=FILE,
        help="File with the token that says who you are.  [default: ACESPEC_TOKEN in the environment]",
    ),
    "keepalive_s": click.option(
        "--keepalive",
        "keepalive_s",
        type=FiniteRange(1.0, 86_400.0),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Silence after which the connection is probed.",
    ),
    "pad_sizes": click.option(
        "--pad-sizes", is_flag=True, help="Pad messages, so that their sizes tell nothing."
    ),
}
"""By the names their values are passed under."""


def link_options(command: Command) -> Command:
    """Give ``command`` these options; it is passed ``server``, and as ``link`` the others by name."""

    @wraps(command)
    def collected(**options: Any) -> Any:
        return command(link={name: options.pop(name) for name in OPTIONS}, **options)

    for option in reversed([SERVER, *OPTIONS.values()]):
        collected = option(collected)
    return collected  # type: ignore[return-value]


def outage_settings(link: dict[str, Any]) -> OutageSettings:
    """What the options say of outages."""
    explicit = link["on_outage"] in (OnOutage.WAIT.value, OnOutage.DRAFT.value)
    timeout_s = link["outage_timeout_s"]
    return OutageSettings(
        on_outage=OnOutage(link["on_outage"] or OnOutage.WAIT),
        timeout_s=timeout_s,
        first_timeout_s=max(timeout_s, link["connect_timeout_s"]) if explicit else link["connect_timeout_s"],
    )


def remote_settings(link: dict[str, Any]) -> RemoteSettings:
    """All that the options say. Raises ``AcespecError`` for what cannot be used."""
    # gRPC writes lines of its own about failed handshakes, which are reported here in one.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from acespec.edge_runtime.channel_security import ChannelSecurity, read_token, token_of_environment
    from acespec.edge_runtime.grpc_transport import LinkSettings
    from acespec.edge_runtime.remote import RemoteSettings

    tls_options = (link["tls_ca"], link["tls_cert"], link["tls_key"], link["tls_server_name"])
    token_file = link["token_file"]
    security = ChannelSecurity(
        tls=link["tls"] or any(option is not None for option in tls_options),
        ca=link["tls_ca"],
        certificate=link["tls_cert"],
        key=link["tls_key"],
        server_name=link["tls_server_name"],
        token=token_of_environment(os.environ) if token_file is None else read_token(token_file),
    )
    security.credentials()  # what is wrong with the files is said before a model is loaded
    return RemoteSettings(
        LinkSettings(security, keepalive_s=link["keepalive_s"]), outage_settings(link), link["pad_sizes"]
    )
