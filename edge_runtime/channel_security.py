"""How a connection is secured: TLS, the certificates of both sides, and the token of the edge."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from acespec.edge_runtime.pem_files import read_certificates, read_pair
from acespec.errors import AcespecError
from acespec.private_files import read_file

TOKEN_VARIABLE = "ACESPEC_TOKEN"  # noqa: S105 - the name of an environment variable


@dataclass(frozen=True)
class ChannelSecurity:
    """What a channel is secured by. The default is plaintext without a token.

    Raises ``AcespecError`` for a half of what belongs together.
    """

    tls: bool = False
    ca: Path | None = None
    """PEM file of the CAs the server's certificate may come from; None: those the system trusts."""
    certificate: Path | None = None
    """PEM file of the edge's own certificate, for servers that ask for one (mTLS)."""
    key: Path | None = None
    """PEM file of its private key."""
    server_name: str | None = None
    """The name the server's certificate must be for, if not that of the address."""
    token: str | None = field(default=None, repr=False)
    """Says which tenant the edge belongs to."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise AcespecError("a client's certificate needs its key: give both --tls-cert and --tls-key")
        if self.token is not None:
            check_token(self.token, "the token")
        if not self.tls and (self.ca or self.certificate or self.server_name):
            raise AcespecError("certificates are of use with TLS only: give --tls as well")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What is sent with every stream."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def check_host(self, host: str) -> None:
        """Raise ``AcespecError`` if a token would cross a network where everyone can read it."""
        if self.token is not None and not self.tls and not is_loopback(host):
            raise AcespecError(
                f"a token is not sent to {host} in plaintext, where others could read it: use --tls "
                "(or a tunnel that ends on this machine)"
            )

    def credentials(self) -> grpc.ChannelCredentials | None:
        """gRPC's credentials; None for plaintext. Raises ``AcespecError`` for files that cannot be used."""
        if not self.tls:
            return None
        authorities = None if self.ca is None else read_certificates(self.ca)
        if self.certificate is None or self.key is None:
            return grpc.ssl_channel_credentials(authorities)
        certificate, key = read_pair(self.certificate, self.key)
        return grpc.ssl_channel_credentials(authorities, key, certificate)

    def channel_options(self) -> list[tuple[str, str]]:
        """gRPC's settings that go with it."""
        return [] if self.server_name is None else [("grpc.ssl_target_name_override", self.server_name)]


def is_loopback(host: str) -> bool:
    """Whether ``host``, as written in an address, never leaves this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """The token in the file at ``path``. Raises ``AcespecError`` if there is none."""
    return check_token(read_file(path).decode("utf-8", "replace").strip(), str(path))


def token_of_environment(environment: Mapping[str, str]) -> str | None:
    """The token in ``ACESPEC_TOKEN``; None if that is unset or empty.

    Raises ``AcespecError``, naming the variable, if what it holds cannot be one.
    """
    token = environment.get(TOKEN_VARIABLE, "")
    return check_token(token, f"what the environment variable {TOKEN_VARIABLE} holds") if token else None


def check_token(token: str, where: str) -> str:
    """Return ``token``. Raises ``AcespecError``, which does not repeat it, if it cannot be one."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise AcespecError(f"{where} is no token: a token is one line of printable ASCII without spaces")
    return token
