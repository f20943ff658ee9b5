"""The verifier's certificate and key: checked before they are used, and read again when they change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from acespec.cloud_verifier.security_settings import TlsFiles
from acespec.cloud_verifier.watched import WatchedFiles
from acespec.errors import AcespecError
from acespec.private_files import read_file


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def server_credentials(files: TlsFiles, now: Callable[[], datetime] = utc_now) -> grpc.ServerCredentials:
    """Credentials for a port, from files that may be replaced while it serves.

    gRPC asks for them with every handshake; connections that stand are left alone. TLS is 1.2 or newer, as
    gRPC has it. Raises ``AcespecError`` as ``read_tls`` does; later, the last good files stay in use.
    """
    paths = [files.certificate, files.key, *([] if files.client_ca is None else [files.client_ca])]
    watched = WatchedFiles(paths, lambda: read_tls(files, now()))
    return grpc.dynamic_ssl_server_credentials(
        watched.current(), watched.current, require_client_authentication=files.client_ca is not None
    )


def read_tls(files: TlsFiles, now: datetime) -> grpc.ServerCertificateConfiguration:
    """What the files hold. Raises ``AcespecError``, one line, for what no client could connect to."""
    key_pem, certificate_pem = read_file(files.key), read_file(files.certificate)
    certificates = load_certificates(files.certificate, certificate_pem)
    for certificate in certificates:
        check_dates(files.certificate, certificate, now)
    if not same_key(load_public_half(files.key, key_pem), certificates[0].public_key()):
        raise AcespecError(
            f"the key {files.key} does not belong to the certificate {files.certificate}; "
            "give the two that were made together (the server's own certificate stands first in its file)"
        )
    client_ca_pem = None
    if files.client_ca is not None:
        client_ca_pem = read_file(files.client_ca)
        for certificate in load_certificates(files.client_ca, client_ca_pem):
            check_dates(files.client_ca, certificate, now)
    return grpc.ssl_server_certificate_configuration([(key_pem, certificate_pem)], client_ca_pem)


def load_certificates(path: Path, pem: bytes) -> list[x509.Certificate]:
    """All certificates of a PEM file, at least one."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise AcespecError(
            f"{path} holds no certificate in PEM (-----BEGIN CERTIFICATE-----); "
            "make one for development with: acespec certs"
        ) from error


def load_public_half(path: Path, pem: bytes) -> PublicKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None).public_key()
    except TypeError as error:  # it is encrypted
        raise AcespecError(
            f"the key {path} is encrypted and nobody is there to type its password; "
            "decrypt it (openssl pkey -in ... -out ...) and let only the verifier's user read it"
        ) from error
    except ValueError as error:
        raise AcespecError(f"{path} holds no private key in PEM (-----BEGIN PRIVATE KEY-----)") from error


def check_dates(path: Path, certificate: x509.Certificate, now: datetime) -> None:
    """Raise ``AcespecError`` unless the certificate is valid at ``now``."""
    if now > certificate.not_valid_after_utc:
        raise AcespecError(
            f"a certificate in {path} has expired ({certificate.not_valid_after_utc:%Y-%m-%d}); renew it"
        )
    if now < certificate.not_valid_before_utc:
        raise AcespecError(
            f"a certificate in {path} is not valid before "
            f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; check this machine's clock"
        )


def same_key(one: PublicKeyTypes, other: PublicKeyTypes) -> bool:
    return der(one) == der(other)


def der(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
