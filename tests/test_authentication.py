"""Who is let in: tokens, JSON web tokens and certificates, and everything that must not be."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from acespec.cloud_verifier.authentication import (
    MAX_BEARER_LENGTH,
    AnyoneAuthenticator,
    AuthenticationError,
    CertificateAuthenticator,
    Presented,
    TokenAuthenticator,
    presented_by,
)
from acespec.cloud_verifier.jwt_authentication import JwtAuthenticator, read_jwt_key
from acespec.cloud_verifier.security import authenticator_of
from acespec.cloud_verifier.security_settings import JwtAlgorithm, JwtSettings, SecuritySettings
from acespec.cloud_verifier.tenants import ANONYMOUS, Quota
from acespec.cloud_verifier.tenants_file import QuotaEntry, TenantsFile, TokenEntry, new_token, token_hash
from acespec.errors import AcespecError

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
FIRST, SECOND, OTHER, OLD = new_token(), new_token(), new_token(), new_token()
TENANTS = TenantsFile(
    default=QuotaEntry(max_sessions=1),
    tenants={"acme": QuotaEntry(max_sessions=7), "zenith": QuotaEntry()},
    tokens=(
        TokenEntry(tenant="acme", sha256=token_hash(FIRST)),
        TokenEntry(tenant="acme", sha256=token_hash(SECOND), expires=NOW + timedelta(days=1)),
        TokenEntry(tenant="zenith", sha256=token_hash(OTHER)),
        TokenEntry(tenant="acme", sha256=token_hash(OLD), expires=NOW),
    ),
)


def tenants() -> TenantsFile:
    return TENANTS


def bearing(value: str) -> Presented:
    return presented_by([("authorization", f"Bearer {value}")], {})


# Metadata


def test_an_authorization_is_read_whatever_its_scheme_s_case() -> None:
    assert presented_by([("user-agent", "x"), ("authorization", "bEARER abc ")], {}).bearer == "abc"
    assert presented_by([("user-agent", "x")], {}).bearer is None


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", "Basic abc")],
        [("authorization", "Bearer ")],
        [("authorization", "Bearer")],
        [("authorization", "abc")],
        [("authorization", "")],
        [("authorization", b"Bearer abc")],
        [("authorization", "Bearer a"), ("authorization", "Bearer a")],
        [("authorization", "Bearer " + "a" * MAX_BEARER_LENGTH)],
    ],
)
def test_an_authorization_that_is_none_is_refused(metadata: list[tuple[str, str | bytes]]) -> None:
    with pytest.raises(AuthenticationError):
        presented_by(metadata, {})


# Tokens of a file


def test_each_of_a_tenant_s_tokens_is_the_tenant_with_its_quota() -> None:
    authenticator = TokenAuthenticator(tenants)
    for token in (FIRST, SECOND):
        assert authenticator.tenant(bearing(token), NOW).name == "acme"
        assert authenticator.tenant(bearing(token), NOW).quota == Quota(max_sessions=7)
    assert authenticator.tenant(bearing(OTHER), NOW).name == "zenith"


@pytest.mark.parametrize(
    "token", [new_token(), FIRST[:-1], FIRST + "A", FIRST.swapcase(), token_hash(FIRST), "acespec_", OLD]
)
def test_any_other_token_is_nobody_s(token: str) -> None:
    with pytest.raises(AuthenticationError):
        TokenAuthenticator(tenants).tenant(bearing(token), NOW)


def test_a_token_ends_when_it_expires() -> None:
    authenticator = TokenAuthenticator(tenants)
    last = NOW + timedelta(days=1)
    authenticator.tenant(bearing(SECOND), last - timedelta(seconds=1))
    with pytest.raises(AuthenticationError, match="expired"):
        authenticator.tenant(bearing(SECOND), last)


def test_no_token_is_nobody() -> None:
    with pytest.raises(AuthenticationError, match="no bearer token"):
        TokenAuthenticator(tenants).tenant(Presented(names=("acme",)), NOW)


def test_reasons_hold_no_token() -> None:
    with pytest.raises(AuthenticationError) as caught:
        TokenAuthenticator(tenants).tenant(bearing("acespec_secret"), NOW)
    assert "secret" not in str(caught.value)


def test_a_changed_file_counts_for_the_next_stream(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    entry = '[tenants.acme]\n[[tokens]]\ntenant = "acme"\nsha256 = "{}"\n'
    file.write_text(entry.format(token_hash(FIRST)))
    authenticator = authenticator_of(SecuritySettings(authentication="token", tokens=file))
    assert authenticator.tenant(bearing(FIRST), NOW).name == "acme"
    file.write_text("# a new one\n" + entry.format(token_hash(SECOND)))
    assert authenticator.tenant(bearing(SECOND), NOW).name == "acme"
    with pytest.raises(AuthenticationError):
        authenticator.tenant(bearing(FIRST), NOW)
    file.write_text("[broken")
    assert authenticator.tenant(bearing(SECOND), NOW).name == "acme"


# Certificates


@pytest.mark.parametrize(
    ("context", "name"),
    [
        ({"x509_common_name": [b"acme"], "x509_subject_alternative_name": [b"zenith"]}, "acme"),
        ({"x509_subject_alternative_name": [b"zenith", b"acme"]}, "zenith"),
        ({"x509_common_name": [b""], "x509_subject_alternative_name": [b"zenith"]}, "zenith"),
    ],
)
def test_the_certificate_s_name_is_the_tenant(context: dict[str, list[bytes]], name: str) -> None:
    authenticator = CertificateAuthenticator(tenants)
    assert authenticator.tenant(presented_by([], context), NOW).name == name


@pytest.mark.parametrize("context", [{}, {"x509_common_name": [b"a\nb"]}, {"x509_common_name": [b"x" * 129]}])
def test_a_certificate_without_a_fit_name_is_nobody_s(context: dict[str, list[bytes]]) -> None:
    with pytest.raises(AuthenticationError):
        CertificateAuthenticator(tenants).tenant(presented_by([], context), NOW)


def test_a_certificate_s_tenant_that_the_file_does_not_name_has_the_default_quota() -> None:
    presented = Presented(names=("edge-9",))
    assert CertificateAuthenticator(tenants).tenant(presented, NOW).quota == Quota(max_sessions=1)


def test_without_authentication_all_are_one() -> None:
    assert AnyoneAuthenticator().tenant(Presented(), NOW) == ANONYMOUS


# JSON web tokens


Keys = tuple[bytes, bytes]


def pem_keys(private: Any) -> Keys:
    """Private and public key, in PEM."""
    return (
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )


SECRET = b"0123456789abcdef0123456789abcdef"
KEYS: dict[JwtAlgorithm, Keys] = {
    "RS256": pem_keys(rsa.generate_private_key(65537, 2048)),
    "ES256": pem_keys(ec.generate_private_key(ec.SECP256R1())),
    "EdDSA": pem_keys(ed25519.Ed25519PrivateKey.generate()),
    "HS256": (SECRET, SECRET + b"\n"),
}
WEAK_RSA = pem_keys(rsa.generate_private_key(65537, 1024))[1]  # noqa: S505 - it is to be refused
P384 = pem_keys(ec.generate_private_key(ec.SECP384R1()))[1]


def in_an_hour() -> int:
    return int(datetime.now(timezone.utc).timestamp()) + 3600


def claims(**changes: object) -> dict[str, object]:
    """A good token's claims; None takes one out."""
    merged = {"sub": "acme", "exp": in_an_hour(), "aud": "acespec", "iss": "issuer", **changes}
    return {name: value for name, value in merged.items() if value is not None}


Signer = Callable[..., str]


@pytest.fixture(params=sorted(KEYS))
def algorithm(request: pytest.FixtureRequest) -> JwtAlgorithm:
    name: JwtAlgorithm = request.param
    return name


def jwt_settings(folder: Path, algorithm: JwtAlgorithm, **changes: Any) -> JwtSettings:
    key = folder / "jwt.key"
    key.write_bytes(KEYS[algorithm][1])
    return JwtSettings(
        **{"key": key, "algorithm": algorithm, "audience": "acespec", "issuer": "issuer", **changes}
    )


def authenticator_for(folder: Path, algorithm: JwtAlgorithm, **changes: Any) -> JwtAuthenticator:
    settings = jwt_settings(folder, algorithm, **changes)
    key = read_jwt_key(settings)
    return JwtAuthenticator(settings, lambda: key, tenants)


def signed(algorithm: JwtAlgorithm, payload: dict[str, object]) -> str:
    return jwt.encode(payload, KEYS[algorithm][0], algorithm=algorithm)


def test_a_good_jwt_is_its_subject(algorithm: JwtAlgorithm, tmp_path: Path) -> None:
    authenticator = authenticator_for(tmp_path, algorithm)
    for subject, bound in (("acme", 7), ("someone else", 1)):
        tenant = authenticator.tenant(bearing(signed(algorithm, claims(sub=subject))), NOW)
        assert (tenant.name, tenant.quota.max_sessions) == (subject, bound)


def test_clocks_may_differ_by_half_a_minute(tmp_path: Path) -> None:
    authenticator = authenticator_for(tmp_path, "ES256")
    authenticator.tenant(bearing(signed("ES256", claims(exp=in_an_hour() - 3600 - 10))), NOW)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": in_an_hour() - 7200}, "Signature has expired"),
        ({"exp": None}, 'missing the "exp" claim'),
        ({"exp": "never"}, "must be an integer"),
        ({"nbf": in_an_hour()}, "not yet valid"),
        ({"sub": None}, 'missing the "sub" claim'),
        ({"sub": ""}, "cannot be a tenant's"),
        ({"sub": "a\nb"}, "cannot be a tenant's"),
        ({"aud": "another"}, "Audience doesn't match"),
        ({"aud": None}, 'missing the "aud" claim'),
        ({"iss": "another"}, "Invalid issuer"),
        ({"iss": None}, 'missing the "iss" claim'),
    ],
)
def test_claims_that_do_not_hold(changes: dict[str, object], reason: str, tmp_path: Path) -> None:
    token = signed("ES256", claims(**changes))
    with pytest.raises(AuthenticationError, match=reason):
        authenticator_for(tmp_path, "ES256").tenant(bearing(token), NOW)


def test_a_jwt_for_an_audience_is_refused_where_none_is_configured(tmp_path: Path) -> None:
    authenticator = authenticator_for(tmp_path, "ES256", audience=None, issuer=None)
    authenticator.tenant(bearing(signed("ES256", claims(aud=None, iss=None))), NOW)
    with pytest.raises(AuthenticationError, match="Invalid audience"):
        authenticator.tenant(bearing(signed("ES256", claims())), NOW)


def test_another_claim_may_name_the_tenant(tmp_path: Path) -> None:
    authenticator = authenticator_for(tmp_path, "ES256", tenant_claim="org")
    assert authenticator.tenant(bearing(signed("ES256", claims(org="zenith"))), NOW).name == "zenith"
    for org in (None, 7, ["zenith"]):
        with pytest.raises(AuthenticationError, match="'org' is no text"):
            authenticator.tenant(bearing(signed("ES256", claims(org=org))), NOW)


def encoded(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def test_no_algorithm_but_the_configured_one(algorithm: JwtAlgorithm, tmp_path: Path) -> None:
    """Among the rest: none, and the public key taken for a secret (CVE-2015-9235's confusion)."""
    authenticator = authenticator_for(tmp_path, algorithm)
    body = encoded(claims())
    forged = [
        f"{encoded({'alg': name, 'typ': 'JWT'})}.{body}." for name in ("none", "None", "NONE", algorithm)
    ]
    forged += [signed(other, claims()) for other in KEYS if other != algorithm]
    header = encoded({"alg": "HS256", "typ": "JWT"})
    public_key = KEYS[algorithm][1]
    mac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(
        f"{header}.{body}".encode(), public_key
    )
    forged.append(f"{header}.{body}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}")
    for token in forged:
        with pytest.raises(AuthenticationError):
            authenticator.tenant(bearing(token), NOW)


def test_an_altered_jwt_is_refused(algorithm: JwtAlgorithm, tmp_path: Path) -> None:
    authenticator = authenticator_for(tmp_path, algorithm)
    header, _, signature = signed(algorithm, claims()).split(".")
    with pytest.raises(
        AuthenticationError, match=r"^the JSON web token will not do \(Signature verification failed\)$"
    ):
        authenticator.tenant(bearing(f"{header}.{encoded(claims(sub='zenith'))}.{signature}"), NOW)
    for key in ("jwk", "jku", "x5u", "kid"):
        forged = encoded({"alg": algorithm, "typ": "JWT", key: "https://evil.test"})
        with pytest.raises(AuthenticationError):
            authenticator.tenant(bearing(f"{forged}.{encoded(claims())}.{signature}"), NOW)


@pytest.mark.parametrize(
    "token",
    [
        "a.b.c",
        "..",
        encoded({"alg": "ES256"}) + "..",
        base64.urlsafe_b64encode(b"[" * 2900).decode().rstrip("=") + ".e30.AA",
        base64.urlsafe_b64encode(b'{"alg":' + b"[" * 2800).decode().rstrip("=") + ".e30.AA",
        base64.urlsafe_b64encode(b'{"alg":' + b"9" * 2800 + b"}").decode().rstrip("=") + ".e30.AA",
        encoded({"alg": ["ES256"]}) + ".e30.AA",
        encoded({"alg": "ES256", "crit": ["x"], "x": 1}) + ".e30.AA",
        encoded({"alg": "ES256", "b64": False, "crit": ["b64"]}) + ".e30.AA",
    ],
)
def test_hostile_jwts_are_refused_like_any_other(token: str, tmp_path: Path) -> None:
    assert len(token) <= MAX_BEARER_LENGTH
    with pytest.raises(AuthenticationError):
        authenticator_for(tmp_path, "ES256").tenant(bearing(token), NOW)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=300))
def test_any_text_is_refused_and_nothing_else_is_raised(text: str) -> None:
    settings = JwtSettings(Path("unread"), "HS256")
    for authenticator in (JwtAuthenticator(settings, lambda: SECRET, tenants), TokenAuthenticator(tenants)):
        with pytest.raises(AuthenticationError):
            authenticator.tenant(bearing(text), NOW)


@pytest.mark.parametrize(
    ("algorithm", "content", "reason"),
    [
        (
            "RS256",
            WEAK_RSA,
            "which needs an RSA key of at least 2048 bits",
        ),
        (
            "ES256",
            P384,
            "which needs a key on the curve P-256",
        ),
        ("EdDSA", KEYS["ES256"][1], "which needs an Ed25519 key"),
        ("ES256", KEYS["ES256"][0], "holds a private key"),
        ("ES256", b"rubbish", "holds no public key in PEM"),
        ("HS256", b"short\n", "has 5 bytes and HS256 needs 32"),
        ("HS256", KEYS["RS256"][1], "is no secret for HS256"),
    ],
)
def test_a_key_that_is_weak_or_another_s_is_refused(
    algorithm: JwtAlgorithm, content: bytes, reason: str, tmp_path: Path
) -> None:
    key = tmp_path / "jwt.key"
    key.write_bytes(content)
    with pytest.raises(AcespecError, match=reason):
        read_jwt_key(JwtSettings(key, algorithm))


def test_a_new_key_counts_for_the_next_stream(tmp_path: Path) -> None:
    settings = jwt_settings(tmp_path, "ES256")
    authenticator = authenticator_of(SecuritySettings(authentication="jwt", jwt=settings))
    private, public = pem_keys(ec.generate_private_key(ec.SECP256R1()))
    token = bearing(jwt.encode(claims(), private, algorithm="ES256"))
    with pytest.raises(AuthenticationError):
        authenticator.tenant(token, NOW)
    settings.key.write_bytes(public + b"\n")
    assert authenticator.tenant(token, NOW).name == "acme"
