"""``acespec certs``: what it makes is what TLS takes, and it overwrites nothing."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import stat
import threading
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from acespec.certificates import make_ca, make_client, make_server
from acespec.certs_command import certs
from acespec.errors import AcespecError

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(certs, [str(argument) for argument in arguments], catch_exceptions=True)


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def handshake(folder: Path, host: str, client: str | None) -> str:
    """The name in the client's certificate, as the server sees it after a handshake over a socket pair."""
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(folder / "server.pem", folder / "server.key")
    client_context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    if client is not None:
        server_context.load_verify_locations(folder / "ca.pem")
        server_context.verify_mode = ssl.CERT_REQUIRED
        client_context.load_cert_chain(folder / f"{client}.pem", folder / f"{client}.key")
    here, there = socket.socketpair()
    seen: list[str] = []

    def serve() -> None:
        # A client that refuses the server makes this side's handshake fail too.
        with suppress(ssl.SSLError), server_context.wrap_socket(there, server_side=True) as tls:
            peer = tls.getpeercert()
            seen.extend(value for ((key, value),) in (peer or {}).get("subject", ()) if key == "commonName")
            tls.sendall(b"!")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client_context.wrap_socket(here, server_hostname=host) as tls:
            assert tls.recv(1) == b"!"
    finally:
        here.close()
        thread.join()
    return "".join(seen)


def test_the_files_make_tls_and_mtls(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "certs"
    result = run(
        folder, "--host", "verifier.test", "--host", "127.0.0.1", "--host", "::1", "--client", "edge-1"
    )
    assert result.exit_code == 0, result.output
    assert handshake(folder, "verifier.test", None) == ""
    assert handshake(folder, "127.0.0.1", "edge-1") == "edge-1"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(folder, "other.test", None)


def test_files_and_their_modes(tmp_path: Path) -> None:
    run(tmp_path, "--host", "localhost", "--client", "a", "--client", "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{name}.{ending}" for name in ("ca", "server", "a", "b") for ending in ("key", "pem")
    )
    for path in tmp_path.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_report_says_what_to_pass(tmp_path: Path) -> None:
    output = run(tmp_path, "--host", "localhost", "--client", "edge").output
    assert f"acespec serve --tls-cert {tmp_path}/server.pem --tls-key {tmp_path}/server.key" in output
    assert f"--tls-client-ca {tmp_path}/ca.pem" in output
    assert (
        f"generate --tls-ca {tmp_path}/ca.pem --tls-cert {tmp_path}/edge.pem --tls-key {tmp_path}/edge.key"
        in output
    )
    assert "PRIVATE" not in output


def test_an_authority_that_is_there_signs_more_and_nothing_is_overwritten(tmp_path: Path) -> None:
    run(tmp_path, "--host", "localhost")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert run(tmp_path, "--client", "late").exit_code == 0
    certificate(tmp_path / "late.pem").verify_directly_issued_by(certificate(tmp_path / "ca.pem"))
    again = run(tmp_path, "--client", "later", "--host", "localhost")
    assert isinstance(again.exception, AcespecError)
    assert f"{tmp_path}/server.key is there already" in str(again.exception)
    assert not (tmp_path / "later.pem").exists(), "nothing is made if not everything can be"
    assert {path: path.read_bytes() for path in before} == before


def test_half_an_authority_is_not_taken_for_none(tmp_path: Path) -> None:
    run(tmp_path, "--host", "localhost")
    (tmp_path / "ca.key").unlink()
    result = run(tmp_path, "--client", "edge")
    assert "are no certificate with its key" in str(result.exception)


@pytest.mark.parametrize("name", ["", "../up", "a b", "ca", "server", "x" * 65, "-x"])
def test_a_client_name_that_is_no_file_name_is_refused(name: str, tmp_path: Path) -> None:
    result = run(tmp_path / "certs", f"--client={name}")
    assert "a client cannot be called" in str(result.exception)
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("host", ["localhost:50051", "a b", "bücher.test", "", "-x"])
def test_a_host_that_is_none_is_refused(host: str, tmp_path: Path) -> None:
    result = run(tmp_path, f"--host={host}")
    assert "is neither a host name nor an address" in str(result.exception)


def test_nothing_to_make_is_a_usage_error(tmp_path: Path) -> None:
    assert run(tmp_path).exit_code == 2


def test_what_the_certificates_say() -> None:
    ca = make_ca(NOW, days=10)
    server = make_server(ca, ["localhost", "10.0.0.1"], NOW, days=5).certificate
    client = make_client(ca, "edge", NOW, days=100).certificate
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.1")]
    assert server.not_valid_after_utc == NOW + timedelta(days=5)
    assert client.not_valid_after_utc == NOW + timedelta(days=10), "no longer than its authority"
    assert server.not_valid_before_utc < NOW
    for made, purpose in (
        (server, x509.ExtendedKeyUsageOID.SERVER_AUTH),
        (client, x509.ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        made.verify_directly_issued_by(ca.certificate)
        key = made.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert isinstance(key.curve, ec.SECP256R1)
        assert list(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]
        assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    limits = ca.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (limits.ca, limits.path_length) == (True, 0)
