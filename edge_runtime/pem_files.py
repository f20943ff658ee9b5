"""The PEM files of certificates and keys, checked before anything connects with them.

Of a file it cannot use gRPC says, in many lines at every attempt, that no handshake came about.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from acespec.errors import AcespecError
from acespec.private_files import read_file


def read_certificates(path: Path) -> bytes:
    """The PEM file at ``path``. Raises ``AcespecError`` unless it holds certificates that can be read."""
    content = read_file(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except OSError as error:  # ssl.SSLError is one
        held = " but a private key" if b"PRIVATE KEY-----" in content else ""
        raise AcespecError(
            f"{path} holds no certificate in PEM (-----BEGIN CERTIFICATE-----){held}; give one"
        ) from error
    return content


def read_pair(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """A certificate and its private key. Raises ``AcespecError`` unless they belong together."""
    pair = read_certificates(certificate), read_file(key)
    try:
        # Without a password given here OpenSSL would ask for one on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        raise AcespecError(_pair_fault(certificate, key, pair[1], error)) from error
    return pair


def _pair_fault(certificate: Path, key: Path, key_pem: bytes, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"the key {key} does not belong to the certificate {certificate}; give the two that were made "
            "together (the edge's own certificate stands first in its file)"
        )
    if b"ENCRYPTED" in key_pem:
        return f"the key {key} is encrypted; decrypt it (openssl pkey -in ... -out ...) and hide it well"
    return f"{key} holds no private key in PEM (-----BEGIN PRIVATE KEY-----): give the key of {certificate}"
