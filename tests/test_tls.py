"""TLS files: what cannot work is said in one line before anything listens."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from acespec.certificates import make_ca
from acespec.cloud_verifier.security_settings import TlsFiles
from acespec.cloud_verifier.tls import read_tls, server_credentials
from acespec.errors import AcespecError
from pki import LONG_AGO, now, write_pki


def files(folder: Path, *, mutual: bool = False) -> TlsFiles:
    return TlsFiles(folder / "server.pem", folder / "server.key", folder / "ca.pem" if mutual else None)


def fault(tls: TlsFiles) -> str:
    """Why the files are refused, which is one line that names a file."""
    with pytest.raises(AcespecError) as caught:
        server_credentials(tls)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("mutual", [False, True])
def test_files_that_belong_together_are_taken(mutual: bool, tmp_path: Path) -> None:
    write_pki(tmp_path)
    server_credentials(files(tmp_path, mutual=mutual))


@pytest.mark.parametrize("name", ["server.pem", "server.key", "ca.pem"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    write_pki(tmp_path)
    (tmp_path / name).unlink()
    assert fault(files(tmp_path, mutual=True)) == f"cannot read {tmp_path / name} (No such file or directory)"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("server.pem", "holds no certificate in PEM"),
        ("server.key", "holds no private key in PEM"),
        ("ca.pem", "holds no certificate in PEM"),
    ],
)
def test_a_file_of_something_else_is_named(name: str, message: str, tmp_path: Path) -> None:
    write_pki(tmp_path)
    (tmp_path / name).write_text("rubbish")
    assert f"{tmp_path / name} {message}" in fault(files(tmp_path, mutual=True))


def test_another_certificate_s_key_is_refused(tmp_path: Path) -> None:
    write_pki(tmp_path)
    write_pki(tmp_path / "other")
    mixed = TlsFiles(tmp_path / "server.pem", tmp_path / "other" / "server.key")
    assert "does not belong to the certificate" in fault(mixed)


def test_dates(tmp_path: Path) -> None:
    write_pki(tmp_path / "old", made=now() - LONG_AGO)
    write_pki(tmp_path / "young", made=now() + LONG_AGO)
    assert "has expired" in fault(files(tmp_path / "old"))
    assert "is not valid before" in fault(files(tmp_path / "young"))
    read_tls(files(tmp_path / "old"), now() - LONG_AGO + timedelta(hours=23))


def test_an_expired_client_authority_is_refused(tmp_path: Path) -> None:
    write_pki(tmp_path)
    make_ca(now() - LONG_AGO, days=1).write(tmp_path, "old")
    tls = TlsFiles(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "old.pem")
    assert f"{tmp_path / 'old.pem'} has expired" in fault(tls)


def test_an_encrypted_key_is_refused(tmp_path: Path) -> None:
    write_pki(tmp_path)
    (tmp_path / "server.key").write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    assert "is encrypted" in fault(files(tmp_path))
