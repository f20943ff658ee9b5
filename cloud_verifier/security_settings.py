"""How a verifier is told to protect itself: files and choices, nothing read yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from acespec.errors import AcespecError

Authentication = Literal["none", "token", "jwt", "certificate"]
AUTHENTICATIONS: tuple[Authentication, ...] = get_args(Authentication)
JwtAlgorithm = Literal["RS256", "ES256", "EdDSA", "HS256"]
JWT_ALGORITHMS: tuple[JwtAlgorithm, ...] = get_args(JwtAlgorithm)


@dataclass(frozen=True)
class TlsFiles:
    """Where the PEM files are."""

    certificate: Path
    """The server's, followed by those between it and its CA."""
    key: Path
    """Its private key, not encrypted."""
    client_ca: Path | None = None
    """The CAs that clients' certificates must come from (mTLS); None asks for no certificate."""


@dataclass(frozen=True)
class JwtSettings:
    """What a JSON web token must be. All of it is the verifier's choice; the token has no say."""

    key: Path
    """Public key in PEM; for HS256 the file's bytes, but for white space around them, are the secret."""
    algorithm: JwtAlgorithm
    audience: str | None = None
    """Must be among the token's ``aud``; None: the token may have no ``aud``."""
    issuer: str | None = None
    """Must be the token's ``iss``; None: any."""
    tenant_claim: str = "sub"
    """The claim that names the tenant."""


@dataclass(frozen=True)
class SecuritySettings:
    """Who may connect, and how."""

    tls: TlsFiles | None = None
    authentication: Authentication = "none"
    tokens: Path | None = None
    """Tenants with their quotas, and for ``token`` their tokens."""
    jwt: JwtSettings | None = None
    insecure: bool = False
    """Whether to listen beyond this machine although TLS or authentication is missing."""


def security_settings(values: Mapping[str, Any]) -> SecuritySettings:
    """What the options (by key) ask for. Raises ``AcespecError`` for one that lacks another."""
    tls = tls_files(values["tls_cert"], values["tls_key"], values["tls_client_ca"])
    jwt = jwt_settings(values)
    tokens = values["tokens"]
    authentication = values["auth"] or implied_authentication(tls, tokens, jwt)
    if authentication == "token" and tokens is None:
        raise AcespecError("--auth token needs --tokens; make that file with: acespec token new")
    if authentication == "jwt" and jwt is None:
        raise AcespecError("--auth jwt needs --jwt-key and --jwt-algorithm")
    if authentication == "certificate" and (tls is None or tls.client_ca is None):
        raise AcespecError("--auth certificate needs --tls-client-ca, the CA that signed the clients'")
    return SecuritySettings(tls, authentication, tokens, jwt, values["insecure"])


def tls_files(certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    if certificate is not None and key is not None:
        return TlsFiles(certificate, key, client_ca)
    if certificate is None and key is None and client_ca is None:
        return None
    missing = "--tls-cert" if certificate is None else "--tls-key"
    raise AcespecError(f"TLS needs {missing} too; for development make one with: acespec certs")


def jwt_settings(values: Mapping[str, Any]) -> JwtSettings | None:
    key, algorithm = values["jwt_key"], values["jwt_algorithm"]
    audience, issuer = values["jwt_audience"], values["jwt_issuer"]
    if key is None:
        if algorithm is not None or audience is not None or issuer is not None:
            raise AcespecError("JWTs need --jwt-key, the key they are checked with")
        return None
    if algorithm is None:
        raise AcespecError(
            f"--jwt-key needs --jwt-algorithm ({', '.join(JWT_ALGORITHMS)}): a token must not choose it"
        )
    return JwtSettings(key, algorithm, audience, issuer, values["jwt_tenant_claim"])


def implied_authentication(
    tls: TlsFiles | None, tokens: Path | None, jwt: JwtSettings | None
) -> Authentication:
    """What the files that were given are for."""
    if jwt is not None:
        return "jwt"
    if tokens is not None:
        return "token"
    return "none" if tls is None or tls.client_ca is None else "certificate"
