"""What counts as a verifier's address."""

from __future__ import annotations

import pytest

from acespec.edge_runtime.address import host_of
from acespec.errors import AcespecError


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("127.0.0.1:50051", "127.0.0.1"),
        ("verifier.example:1", "verifier.example"),
        ("my_host:65535", "my_host"),
        ("bücher.example:5", "bücher.example"),
        ("[::1]:5", "[::1]"),
        ("[fe80::1%eth0]:5", "[fe80::1%eth0]"),
    ],
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":5",
        "host:0",
        "host:65536",
        "host:x",
        "host:\u0665",
        "::1:5",
        "a b:5",
        "host/:5",
        "u@h:5",
    ],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(AcespecError, match="must be HOST:PORT, such as "):
        host_of(address)


def test_a_url_is_told_what_to_leave_out() -> None:
    with pytest.raises(AcespecError, match="leave out what stands before the host"):
        host_of("http://127.0.0.1:50051")
