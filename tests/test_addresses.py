"""Where the verifier listens: resolved once, and not within others' reach without protection."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from acespec.cloud_verifier.addresses import Endpoint, authority, check_exposure, resolve
from acespec.cloud_verifier.security_settings import SecuritySettings, TlsFiles
from acespec.errors import AcespecError

EVERYWHERE = "0.0.0.0"  # noqa: S104 - it is what must be refused
TLS = TlsFiles(Path("server.pem"), Path("server.key"))


def at(address: str) -> Endpoint:
    return Endpoint("the-host", address)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1"])
def test_loopback_needs_nothing(address: str) -> None:
    check_exposure(at(address), SecuritySettings())


@pytest.mark.parametrize(
    "address", [EVERYWHERE, "::", "192.168.1.2", "8.8.8.8", "fe80::1%eth0", "2001:db8::1"]
)
def test_anywhere_else_needs_tls_and_authentication(address: str) -> None:
    check_exposure(at(address), SecuritySettings(tls=TLS, authentication="token"))
    with pytest.raises(AcespecError, match=r"no TLS .* and no authentication .*; add them, or --insecure"):
        check_exposure(at(address), SecuritySettings())
    with pytest.raises(AcespecError, match=r"there is no authentication \(--tokens") as caught:
        check_exposure(at(address), SecuritySettings(tls=TLS))
    assert "TLS" not in str(caught.value)
    with pytest.raises(AcespecError, match=r"there is no TLS \(--tls-cert") as caught:
        check_exposure(at(address), SecuritySettings(authentication="jwt"))
    assert "authentication" not in str(caught.value)


def test_what_is_meant_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_exposure(at(EVERYWHERE), SecuritySettings(insecure=True))
        check_exposure(at("127.0.0.1"), SecuritySettings(insecure=True))
        check_exposure(at(EVERYWHERE), SecuritySettings(TLS, "token", insecure=True))
    (record,) = caplog.records
    assert "the-host can be reached from other machines" in record.getMessage()


@pytest.mark.parametrize(
    ("host", "address", "loopback"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.1", "127.0.0.1", True),
        ("0", EVERYWHERE, False),
        (EVERYWHERE, EVERYWHERE, False),
    ],
)
def test_a_host_is_what_it_resolves_to(host: str, address: str, loopback: bool) -> None:
    endpoint = resolve(host, 0)
    assert (endpoint.address, endpoint.loopback) == (address, loopback)


def test_a_name_is_judged_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (EVERYWHERE, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    endpoint = resolve("localhost", 0)
    assert not endpoint.loopback
    with pytest.raises(AcespecError, match="localhost can be reached from other machines"):
        check_exposure(endpoint, SecuritySettings())


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "unix:/run/verifier", "vsock:1:2"])
def test_a_host_that_is_not_this_machine_s_is_one_line(host: str) -> None:
    with pytest.raises(AcespecError, match=f"cannot listen on {host} port 0"):
        resolve(host, 0)


def test_an_empty_host_is_not_taken_for_all_of_them() -> None:
    with pytest.raises(AcespecError, match="is empty"):
        resolve("", 0)


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            AcespecError, match=rf"port {port} \(Address already in use\); choose another --port"
        ):
            resolve("127.0.0.1", port)


def test_ipv6_addresses_are_written_with_brackets() -> None:
    assert [authority("::1", 5), authority("10.0.0.1", 5), authority("name", 5)] == [
        "[::1]:5",
        "10.0.0.1:5",
        "name:5",
    ]
