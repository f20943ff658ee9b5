"""JSON web tokens (RFC 7519) from an issuer the verifier shares a key with, or knows the public key of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from acespec.cloud_verifier.authentication import AuthenticationError, Presented
from acespec.cloud_verifier.security_settings import JwtSettings
from acespec.cloud_verifier.tenants import Tenant
from acespec.cloud_verifier.tenants_file import TenantsFile
from acespec.errors import AcespecError
from acespec.private_files import read_file

LEEWAY_S = 30.0
"""How far the issuer's clock and this one may differ."""
MIN_SECRET_BYTES = 32
"""An HS256 secret is at least as long as its hash (RFC 7518, section 3.2)."""
MIN_RSA_BITS = 2048

NEEDED = {
    "RS256": f"an RSA key of at least {MIN_RSA_BITS} bits",
    "ES256": "a key on the curve P-256",
    "EdDSA": "an Ed25519 key",
}
JwtKey: TypeAlias = bytes | rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


class JwtAuthenticator:
    """Signature, expiry, audience and issuer are checked by PyJWT; ``exp`` and ``sub`` are required."""

    def __init__(
        self, settings: JwtSettings, key: Callable[[], JwtKey], tenants: Callable[[], TenantsFile]
    ) -> None:
        """``key`` and ``tenants`` are asked with every stream, so that either may change."""
        self._settings = settings
        self._key = key
        self._tenants = tenants

    def tenant(self, presented: Presented, now: datetime) -> Tenant:  # noqa: ARG002 - PyJWT takes its own
        claims = self._claims(presented.required_bearer())
        claim = self._settings.tenant_claim
        name = claims.get(claim)
        if not isinstance(name, str):
            raise AuthenticationError(f"the token's claim {claim!r} is no text")
        try:
            return self._tenants().tenant(name)
        except ValueError as error:
            raise AuthenticationError(f"the token's claim {claim!r} cannot be a tenant's: {error}") from error

    def _claims(self, token: str) -> dict[str, Any]:
        settings = self._settings
        try:
            return jwt.decode(
                token,
                self._key(),
                algorithms=[settings.algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, RecursionError) as error:  # the latter two from hostile JSON
            raise AuthenticationError(f"the JSON web token will not do ({error})") from error


def read_jwt_key(settings: JwtSettings) -> JwtKey:
    """The key tokens are checked with. Raises ``AcespecError`` if it is weak or not the algorithm's."""
    path, algorithm = settings.key, settings.algorithm
    content = read_file(path)
    if algorithm == "HS256":
        return hs256_secret(path, content)
    if b"PRIVATE KEY" in content:
        raise AcespecError(
            f"{path} holds a private key, with which the verifier could make tokens itself; "
            "give it the public key alone (openssl pkey -pubout)"
        )
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise AcespecError(f"{path} holds no public key in PEM (-----BEGIN PUBLIC KEY-----)") from error
    if algorithm == "RS256" and isinstance(key, rsa.RSAPublicKey) and key.key_size >= MIN_RSA_BITS:
        return key
    if (
        algorithm == "ES256"
        and isinstance(key, ec.EllipticCurvePublicKey)
        and isinstance(key.curve, ec.SECP256R1)
    ):
        return key
    if algorithm == "EdDSA" and isinstance(key, ed25519.Ed25519PublicKey):
        return key
    raise AcespecError(f"the key {path} is not one for {algorithm}, which needs {NEEDED[algorithm]}")


def hs256_secret(path: Path, content: bytes) -> bytes:
    secret = content.strip()
    if secret.startswith(b"-----BEGIN"):
        raise AcespecError(
            f"{path} holds a key in PEM, which is no secret for HS256; choose RS256, ES256 or EdDSA for it"
        )
    if len(secret) < MIN_SECRET_BYTES:
        raise AcespecError(
            f"the secret {path} has {len(secret)} bytes and HS256 needs {MIN_SECRET_BYTES}; "
            "make one with: openssl rand -base64 48"
        )
    return secret
