"""Who a client is: a bearer token, a JSON web token or a certificate becomes a tenant, or nothing does."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from acespec.cloud_verifier.tenants import ANONYMOUS, Tenant
from acespec.cloud_verifier.tenants_file import TenantsFile, TokenEntry, token_hash

AUTHORIZATION = "authorization"
MAX_BEARER_LENGTH = 4096
"""Characters; a longer token is refused before anything is computed from it."""


class AuthenticationError(Exception):
    """Why a client was not let in. For the log alone: the client learns nothing of it."""


@dataclass(frozen=True)
class Presented:
    """What a client shows with its stream. Nothing of it has been believed yet but the certificate."""

    bearer: str | None = None
    """The token of ``authorization: Bearer TOKEN``."""
    names: tuple[str, ...] = ()
    """The common name in the client's certificate, then its alternative names. TLS has checked it."""

    def required_bearer(self) -> str:
        """Raises ``AuthenticationError`` where there is none."""
        if self.bearer is None:
            raise AuthenticationError("no bearer token was sent")
        return self.bearer


class Authenticator(Protocol):
    """Decides who a client is."""

    def tenant(self, presented: Presented, now: datetime) -> Tenant:
        """The tenant, at the time ``now`` (aware). Raises ``AuthenticationError``."""


class AnyoneAuthenticator:
    """Lets everybody in as one tenant: a server without authentication."""

    def tenant(self, presented: Presented, now: datetime) -> Tenant:  # noqa: ARG002 - nobody is asked
        return ANONYMOUS


class TokenAuthenticator:
    """Tokens of which a file holds the hashes. The file is asked for anew with every stream."""

    def __init__(self, tenants: Callable[[], TenantsFile]) -> None:
        self._tenants = tenants

    def tenant(self, presented: Presented, now: datetime) -> Tenant:
        tenants = self._tenants()
        token = find_token(tenants.tokens, presented.required_bearer())
        if token is None:
            raise AuthenticationError("the token is not one of the file's")
        if token.expires is not None and now >= token.expires:
            raise AuthenticationError(f"token {token.id} of {token.tenant!r} expired at {token.expires}")
        return tenants.tenant(token.tenant)


def find_token(tokens: Iterable[TokenEntry], token: str) -> TokenEntry | None:
    """The entry of ``token``. Every entry is compared in constant time, so that time tells nothing of any."""
    digest = token_hash(token)
    found = None
    for entry in tokens:
        if hmac.compare_digest(entry.sha256, digest):
            found = entry
    return found


class CertificateAuthenticator:
    """The name in the client's certificate is the tenant: its common name, or else the first alternative."""

    def __init__(self, tenants: Callable[[], TenantsFile]) -> None:
        self._tenants = tenants

    def tenant(self, presented: Presented, now: datetime) -> Tenant:  # noqa: ARG002 - TLS has checked the dates
        if not presented.names:
            raise AuthenticationError("the client's certificate bears no name, or there is none")
        try:
            return self._tenants().tenant(presented.names[0])
        except ValueError as error:
            raise AuthenticationError(f"the certificate's name cannot be a tenant's: {error}") from error


def presented_by(
    metadata: Iterable[tuple[str, str | bytes]], auth_context: Mapping[str, Iterable[bytes]]
) -> Presented:
    """What a gRPC call shows. Raises ``AuthenticationError`` for an authorization that is malformed.

    ``auth_context`` is gRPC's, of the connection: the client cannot write to it.
    """
    values = [value for key, value in metadata if key == AUTHORIZATION]
    if len(values) > 1:
        raise AuthenticationError(f"{len(values)} authorizations were sent")
    bearer = bearer_token(values[0]) if values else None
    names = [
        *auth_context.get("x509_common_name", ()),
        *auth_context.get("x509_subject_alternative_name", ()),
    ]
    return Presented(bearer, tuple(name.decode("utf-8", "replace") for name in names if name))


def bearer_token(value: str | bytes) -> str:
    """The token in the value of an ``authorization`` (RFC 6750, section 2.1)."""
    if len(value) > MAX_BEARER_LENGTH or not isinstance(value, str):
        raise AuthenticationError(f"the authorization is no text of at most {MAX_BEARER_LENGTH} characters")
    scheme, _, token = value.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise AuthenticationError("the authorization is not 'Bearer TOKEN'")
    return token.strip()
