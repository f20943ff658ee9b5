"""Where to listen: who could reach it, and whether it is free. All before a large model is loaded."""

from __future__ import annotations

import ipaddress
import logging
import socket
from dataclasses import dataclass

from acespec.cloud_verifier.security_settings import SecuritySettings
from acespec.errors import AcespecError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endpoint:
    """A host resolved, once: what is checked is what is listened on, whatever a name server says later."""

    host: str
    """As it was given."""
    address: str
    """Numeric, without brackets."""

    @property
    def loopback(self) -> bool:
        """Whether this machine alone can reach it. The unspecified address is every address there is."""
        return ipaddress.ip_address(self.address.partition("%")[0]).is_loopback


def authority(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve(host: str, port: int, purpose: str = "", *, free: bool = True) -> Endpoint:
    """The first address of ``host`` if it can be listened on now. Raises ``AcespecError`` if it cannot.

    The options that are named in the error begin with ``purpose``. ``free`` False asks of the address alone:
    the port may be in use.
    """
    if not host:
        raise AcespecError("the host to listen on is empty; 127.0.0.1 is this machine, 0.0.0.0 every address")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port if free else 0, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise cannot_listen(host, port, error.strerror or str(error), purpose) from error
    return Endpoint(host, str(address[0]))


def cannot_listen(host: str, port: int, reason: str, purpose: str = "") -> AcespecError:
    return AcespecError(
        f"cannot listen on {host} port {port} ({reason}); "
        f"choose another --{purpose}port, 0 for any that is free, or another --{purpose}host"
    )


def check_exposure(endpoint: Endpoint, settings: SecuritySettings) -> None:
    """Raise ``AcespecError`` if others could reach an unprotected verifier; only warn if that is meant."""
    if endpoint.loopback:
        return
    lacking = []
    if settings.tls is None:
        lacking.append("TLS (--tls-cert, --tls-key)")
    if settings.authentication == "none":
        lacking.append("authentication (--tokens, --jwt-key or --tls-client-ca)")
    if not lacking:
        return
    what = f"{endpoint.host} can be reached from other machines, and there is no {' and no '.join(lacking)}"
    if not settings.insecure:
        raise AcespecError(f"{what}; add them, or --insecure if something else protects the port")
    logger.warning("%s: whoever reaches it can use it", what)
