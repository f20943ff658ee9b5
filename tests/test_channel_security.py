"""TLS and tokens of the edge: what connects, what is refused in one line, and what is never sent."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives import serialization

from acespec.edge_runtime.channel_security import (
    ChannelSecurity,
    is_loopback,
    read_token,
    token_of_environment,
)
from acespec.edge_runtime.grpc_transport import GrpcConnector, LinkSettings
from acespec.errors import AcespecError
from acespec.wire import ErrorCode, SessionError
from acespec.wire import verifier_pb2 as pb
from acespec.wire.verifier_pb2_grpc import VerifierServicer, add_VerifierServicer_to_server
from pki import now, write_pki

TOKEN = "s3cret"  # noqa: S105 - of nothing


class Listener(VerifierServicer):
    """Keeps what came with the last stream, and answers it with an empty message."""

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}

    async def Session(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        self.metadata = dict(context.invocation_metadata())
        await context.write(pb.CloudMessage())


@asynccontextmanager
async def listening(folder: Path | None, *, asks_client: bool = False) -> AsyncIterator[tuple[str, Listener]]:
    """A server with the certificate in ``folder``; None: in plaintext."""
    server, listener = grpc.aio.server(), Listener()
    add_VerifierServicer_to_server(listener, server)
    if folder is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        files = [(folder / name).read_bytes() for name in ("server.key", "server.pem", "ca.pem")]
        credentials = grpc.ssl_server_credentials([(files[0], files[1])], files[2], asks_client)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}", listener
    finally:
        await server.stop(None)


async def reach(address: str, security: ChannelSecurity) -> None:
    """Open a stream and read its first message."""
    transport = await GrpcConnector(address, LinkSettings(security))(5.0)
    try:
        await transport.receive()
    finally:
        await transport.close()


async def refusal(address: str, security: ChannelSecurity) -> SessionError:
    with pytest.raises(SessionError) as caught:
        await reach(address, security)
    assert "\n" not in caught.value.message
    return caught.value


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    write_pki(folder, clients=("edge",))
    return folder


async def test_tls_with_the_servers_own_ca(pki: Path) -> None:
    async with listening(pki) as (address, _):
        await reach(address, ChannelSecurity(tls=True, ca=pki / "ca.pem"))


async def test_a_ca_that_is_not_the_systems(pki: Path) -> None:
    async with listening(pki) as (address, _):
        error = await refusal(address, ChannelSecurity(tls=True))
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert "its certificate is not trusted" in error.message
    assert "--tls-ca" in error.message


async def test_another_ca(pki: Path, tmp_path: Path) -> None:
    write_pki(tmp_path)
    async with listening(pki) as (address, _):
        error = await refusal(address, ChannelSecurity(tls=True, ca=tmp_path / "ca.pem"))
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert "TLS with the verifier" in error.message


async def test_an_expired_certificate(tmp_path: Path) -> None:
    write_pki(tmp_path, made=now() - timedelta(days=30))
    async with listening(tmp_path) as (address, _):
        error = await refusal(address, ChannelSecurity(tls=True, ca=tmp_path / "ca.pem"))
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert "not valid now (certificate has expired)" in error.message


async def test_a_certificate_for_another_name(tmp_path: Path) -> None:
    write_pki(tmp_path, hosts=("verifier.example",))
    async with listening(tmp_path) as (address, _):
        error = await refusal(address, ChannelSecurity(tls=True, ca=tmp_path / "ca.pem"))
        assert error.code is ErrorCode.UNAUTHENTICATED
        assert "--tls-server-name" in error.message
        named = ChannelSecurity(tls=True, ca=tmp_path / "ca.pem", server_name="verifier.example")
        await reach(address, named)


async def test_a_server_that_does_not_speak_tls(pki: Path) -> None:
    async with listening(None) as (address, _):
        error = await refusal(address, ChannelSecurity(tls=True, ca=pki / "ca.pem"))
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert "it does not speak TLS" in error.message


async def test_a_server_that_wants_tls(pki: Path) -> None:
    """A network that fails looks the same: another attempt may succeed, and the message names both."""
    async with listening(pki) as (address, _):
        error = await refusal(address, ChannelSecurity())
    assert error.code is ErrorCode.UNAVAILABLE
    assert "--tls" in error.message


async def test_a_server_that_wants_a_clients_certificate(pki: Path) -> None:
    async with listening(pki, asks_client=True) as (address, _):
        without = await refusal(address, ChannelSecurity(tls=True, ca=pki / "ca.pem"))
        assert without.code is ErrorCode.UNAVAILABLE
        assert "--tls-cert" in without.message
        await reach(address, ChannelSecurity(True, pki / "ca.pem", pki / "edge.pem", pki / "edge.key"))


async def test_a_clients_certificate_that_the_server_refuses(pki: Path, tmp_path: Path) -> None:
    write_pki(tmp_path, clients=("stranger",))
    certificate, key = tmp_path / "stranger.pem", tmp_path / "stranger.key"
    async with listening(pki, asks_client=True) as (address, _):
        error = await refusal(address, ChannelSecurity(True, pki / "ca.pem", certificate, key))
    assert f"does it take {certificate} (--tls-cert)" in error.message
    assert "does it ask for" not in error.message


async def test_a_token_goes_with_every_stream(pki: Path) -> None:
    async with listening(pki) as (address, listener):
        await reach(address, ChannelSecurity(tls=True, ca=pki / "ca.pem", token=TOKEN))
        assert listener.metadata["authorization"] == f"Bearer {TOKEN}"
    async with listening(None) as (address, listener):
        await reach(address, ChannelSecurity(token=TOKEN))  # loopback: nobody listens in
        assert listener.metadata["authorization"] == f"Bearer {TOKEN}"
        await reach(address, ChannelSecurity())
        assert "authorization" not in listener.metadata


@pytest.mark.parametrize("host", ["10.0.0.1", "verifier.example", "[2001:db8::1]", "0.0.0.0"])  # noqa: S104
async def test_a_token_is_not_sent_in_plaintext_over_a_network(host: str) -> None:
    with pytest.raises(AcespecError, match=r"not sent .* in plaintext") as caught:
        await GrpcConnector(f"{host}:50051", LinkSettings(ChannelSecurity(token=TOKEN)))(1.0)
    assert TOKEN not in str(caught.value)


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.9.9.9", "[::1]"]))
    assert not any(map(is_loopback, ["localhost.example", "128.0.0.1", "[::2]", "::ffff:10.0.0.1"]))


@pytest.mark.parametrize("content", [b"", b"two words", "schlüssel".encode(), b"a\nb", b"\xff\xfe"])
def test_a_file_without_a_token(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(AcespecError, match="is no token") as caught:
        read_token(tmp_path / "token")
    assert "words" not in str(caught.value)


def test_a_tokens_file_may_end_in_a_new_line(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert read_token(tmp_path / "token") == TOKEN
    assert TOKEN not in repr(ChannelSecurity(token=TOKEN))


def test_the_environments_token_may_be_empty_and_is_named_where_it_is_none() -> None:
    assert token_of_environment({}) is None
    assert token_of_environment({"ACESPEC_TOKEN": ""}) is None
    assert token_of_environment({"ACESPEC_TOKEN": TOKEN}) == TOKEN
    with pytest.raises(AcespecError, match="ACESPEC_TOKEN holds is no token") as caught:
        token_of_environment({"ACESPEC_TOKEN": "two words"})
    assert "words" not in str(caught.value)


@pytest.mark.parametrize(
    ("ca", "certificate", "key", "said"),
    [
        ("none.pem", None, None, "cannot read .*none.pem .No such file"),
        ("words.pem", None, None, "words.pem holds no certificate in PEM"),
        ("torn.pem", None, None, "torn.pem holds no certificate in PEM"),
        ("ca.key", None, None, "ca.key holds no certificate in PEM .* but a private key"),
        (None, "edge.pem", "ca.key", "the key .*ca.key does not belong to the certificate .*edge.pem"),
        (None, "edge.key", "edge.key", "edge.key holds no certificate in PEM"),
        (None, "edge.pem", "edge.pem", "edge.pem holds no private key in PEM"),
        (None, "edge.pem", "locked.key", "locked.key is encrypted"),
    ],
)
def test_files_that_cannot_secure_anything_are_named_before_a_connection(
    pki: Path, tmp_path: Path, ca: str | None, certificate: str | None, key: str | None, said: str
) -> None:
    for file in pki.iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "words.pem").write_text("no certificate")
    (tmp_path / "torn.pem").write_bytes((pki / "ca.pem").read_bytes()[:200])
    private = serialization.load_pem_private_key((pki / "edge.key").read_bytes(), None)
    (tmp_path / "locked.key").write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"a password"),
        )
    )
    paths = [None if name is None else tmp_path / name for name in (ca, certificate, key)]
    with pytest.raises(AcespecError, match=said) as caught:
        ChannelSecurity(True, *paths).credentials()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tls": True, "certificate": Path("a")}, "both --tls-cert and --tls-key"),
        ({"tls": True, "key": Path("a")}, "both --tls-cert and --tls-key"),
        ({"ca": Path("a")}, "give --tls as well"),
        ({"token": ""}, "is no token"),
    ],
)
def test_halves_of_what_belongs_together(fields: dict[str, object], said: str) -> None:
    with pytest.raises(AcespecError, match=said):
        ChannelSecurity(**fields)  # type: ignore[arg-type]
