"""A certificate authority for development: enough for TLS and mTLS between an edge and a verifier.

Keys are ECDSA on P-256, kept beside the certificates and unencrypted. There is no revocation: what is to end
soon gets few days.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from acespec.errors import AcespecError
from acespec.private_files import PRIVATE, PUBLIC, write_whole

CLOCK_SKEW = timedelta(hours=1)
"""Certificates are valid from so long ago: devices without a battery have clocks that lag."""
CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RESERVED_NAMES = ("ca", "server")


@dataclass(frozen=True)
class Identity:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def write(self, folder: Path, name: str) -> None:
        """Write ``NAME.key``, for the owner alone, and ``NAME.pem``."""
        key = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_whole(folder / f"{name}.key", key, PRIVATE)
        write_whole(folder / f"{name}.pem", self.certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)


def make_ca(now: datetime, days: int) -> Identity:
    """A new authority, which signs certificates and no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = common_name("AceSpec development CA")
    usage = key_usage(digital_signature=False, signs_certificates=True)
    builder = (
        dated(name, name, key, now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Identity(builder.sign(key, hashes.SHA256()), key)


def make_server(ca: Identity, hosts: Sequence[str], now: datetime, days: int) -> Identity:
    """A server's certificate for ``hosts``, names or addresses, at least one. Raises ``AcespecError``."""
    names = x509.SubjectAlternativeName([host_name(host) for host in hosts])
    return make_leaf(ca, hosts[0][:64], ExtendedKeyUsageOID.SERVER_AUTH, [names], now, days)


def make_client(ca: Identity, name: str, now: datetime, days: int) -> Identity:
    """A client's certificate; its common name is ``name``. Raises ``AcespecError``."""
    if not CLIENT_NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise AcespecError(
            f"a client cannot be called {name!r}: 1 to 64 letters, digits, dots, hyphens and underscores, "
            f"but not {' or '.join(RESERVED_NAMES)}"
        )
    return make_leaf(ca, name, ExtendedKeyUsageOID.CLIENT_AUTH, [], now, days)


def make_leaf(
    ca: Identity,
    name: str,
    purpose: ObjectIdentifier,
    extensions: Sequence[x509.ExtensionType],
    now: datetime,
    days: int,
) -> Identity:
    """A certificate signed by ``ca``, which it does not outlive."""
    key = ec.generate_private_key(ec.SECP256R1())
    ends = min(now + timedelta(days=days), ca.certificate.not_valid_after_utc)
    builder = (
        dated(common_name(name), ca.certificate.subject, key, now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(digital_signature=True, signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False
        )
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return Identity(builder.sign(ca.key, hashes.SHA256()), key)


def dated(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    public_key = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def host_name(host: str) -> x509.GeneralName:
    """``host`` as a certificate names it. Raises ``AcespecError``."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", host):
            raise ValueError
        return x509.DNSName(host)
    except ValueError:
        raise AcespecError(
            f"{host!r} is neither a host name nor an address; write names in ASCII, without a port"
        ) from None


def key_usage(*, digital_signature: bool, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def read_identity(folder: Path, name: str) -> Identity | None:
    """What ``Identity.write`` wrote; None if nothing. Raises ``AcespecError`` for half of it."""
    certificate_path, key_path = folder / f"{name}.pem", folder / f"{name}.key"
    if not certificate_path.exists() and not key_path.exists():
        return None
    try:
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise AcespecError(
            f"{certificate_path} and {key_path} are no certificate with its key; choose another directory"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise AcespecError(f"{key_path} is not the key of {certificate_path}; choose another directory")
    return Identity(certificate, key)
