"""Turns the settings of a verifier's protection into the objects that protect it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from acespec.cloud_verifier.authentication import (
    AnyoneAuthenticator,
    Authenticator,
    CertificateAuthenticator,
    TokenAuthenticator,
)
from acespec.cloud_verifier.jwt_authentication import JwtAuthenticator, read_jwt_key
from acespec.cloud_verifier.security_settings import JwtSettings, SecuritySettings
from acespec.cloud_verifier.tenants_file import TenantsFile, read_tenants
from acespec.cloud_verifier.tls import server_credentials
from acespec.cloud_verifier.watched import WatchedFiles


@dataclass(frozen=True)
class Security:
    """What protects a server."""

    credentials: grpc.ServerCredentials | None
    """None: plaintext."""
    authenticator: Authenticator


def read_security(settings: SecuritySettings) -> Security:
    """Read and check every file named. Raises ``AcespecError``, one line, for the first that will not do.

    All of them are watched: a change counts for the next connection or stream.
    """
    credentials = None if settings.tls is None else server_credentials(settings.tls)
    return Security(credentials, authenticator_of(settings))


def authenticator_of(settings: SecuritySettings) -> Authenticator:
    tenants = tenants_of(settings)
    if settings.authentication == "token":
        return TokenAuthenticator(tenants)
    if settings.authentication == "jwt":
        assert settings.jwt is not None
        return jwt_authenticator(settings.jwt, tenants)
    if settings.authentication == "certificate":
        return CertificateAuthenticator(tenants)
    return AnyoneAuthenticator()


def tenants_of(settings: SecuritySettings) -> Callable[[], TenantsFile]:
    path = settings.tokens
    if path is None:
        nobody = TenantsFile()
        return lambda: nobody
    return WatchedFiles([path], lambda: read_tenants(path)).current


def jwt_authenticator(settings: JwtSettings, tenants: Callable[[], TenantsFile]) -> JwtAuthenticator:
    return JwtAuthenticator(
        settings, WatchedFiles([settings.key], lambda: read_jwt_key(settings)).current, tenants
    )
