"""The verifier over real gRPC with TLS and tenants, against clients that should not get in, or not far."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import runpy
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from acespec.cloud_verifier.observer import Observer
from acespec.cloud_verifier.security import read_security
from acespec.cloud_verifier.security_settings import SecuritySettings, TlsFiles
from acespec.cloud_verifier.server import VerifierServer
from acespec.cloud_verifier.server_options import MAX_METADATA_BYTES, ServerOptions
from acespec.cloud_verifier.service import SERVICE_NAME
from acespec.cloud_verifier.tenants_file import new_token, token_hash
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import ThreadRunner
from acespec.wire import Codec, Resume, encode_open
from acespec.wire import verifier_pb2 as pb
from acespec.wire.verifier_pb2_grpc import VerifierStub
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from pki import write_pki
from verifier_client import open_request

VOCAB = 16
FREE_PORT = ServerOptions(port=0)
TOKENS = {"acme": new_token(), "zenith": new_token()}
CHECK = Path(__file__).resolve().parent.parent / "deploy" / "check_verifier.py"
Metadata = Sequence[tuple[str, str]]


def bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


class Refusals(Observer):
    """Notes what streams were refused with."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    def refused(self, code: str) -> None:
        self.codes.append(code)


@contextlib.asynccontextmanager
async def running(
    settings: SecuritySettings = SecuritySettings(),  # noqa: B008 - frozen
    options: ServerOptions = FREE_PORT,
    observer: Observer | None = None,
) -> AsyncIterator[str]:
    """A server's address."""
    runner = ThreadRunner("target")
    engine = TableTargetEngine(hashed_table(VOCAB, salt=3), VOCAB)
    server = VerifierServer(Verifier(engine, runner), options, read_security(settings), observer)
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop(0.0)
        runner.close()


def channel(address: str, folder: Path | None = None, client: str | None = None) -> grpc.aio.Channel:
    """A connection of its own: in plaintext, or trusting the CA in ``folder`` and shown as ``client``."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    if folder is None:
        return grpc.aio.insecure_channel(address, own)
    key = None if client is None else (folder / f"{client}.key").read_bytes()
    certificate = None if client is None else (folder / f"{client}.pem").read_bytes()
    ca = (folder / "ca.pem").read_bytes()
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate), own)


async def opened(connection: grpc.aio.Channel, metadata: Metadata = ()) -> pb.CloudMessage:
    """The answer to an ``Open``. Raises ``AioRpcError``."""
    engine = TableTargetEngine(hashed_table(VOCAB, salt=3), VOCAB)
    call = VerifierStub(connection).Session(metadata=metadata)
    with contextlib.suppress(asyncio.InvalidStateError):  # it is over already, which reading tells
        await call.write(encode_open(open_request(engine, [1])))
    answer = await call.read()
    call.cancel()
    assert isinstance(answer, pb.CloudMessage)
    return answer


async def refusal(connection: grpc.aio.Channel, metadata: Metadata = ()) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await opened(connection, metadata)
    return caught.value


@pytest.fixture
def token_settings(tmp_path: Path) -> SecuritySettings:
    file = tmp_path / "tenants.toml"
    file.write_text(
        "".join(
            f"[tenants.{name}]\nmax_sessions = 1\n"
            f'[[tokens]]\ntenant = "{name}"\nsha256 = "{token_hash(token)}"\n'
            for name, token in TOKENS.items()
        )
    )
    return SecuritySettings(authentication="token", tokens=file)


async def test_a_token_lets_in_and_nothing_else_does(
    token_settings: SecuritySettings, caplog: pytest.LogCaptureFixture
) -> None:
    observer = Refusals()
    async with running(token_settings, observer=observer) as address, channel(address) as connection:
        assert (await opened(connection, bearer(TOKENS["acme"]))).WhichOneof("kind") == "opened"
        wrong = [(), bearer("acespec_wrong"), (("authorization", "Basic eA=="),), bearer("x" * 5000)]
        wrong.append((*bearer(TOKENS["acme"]), *bearer(TOKENS["acme"])))
        for metadata in wrong:
            error = await refusal(connection, metadata)
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            found = re.fullmatch(
                r"the verifier does not know you; .* under ([0-9a-f]{16})", error.details() or ""
            )
            assert found is not None
            (record,) = [record for record in caplog.records if found[1] in record.getMessage()]
            assert record.levelno == logging.WARNING
        assert observer.codes == ["UNAUTHENTICATED"] * len(wrong)
    assert "acespec_wrong" not in caplog.text
    assert TOKENS["acme"] not in caplog.text


async def test_a_revoked_token_is_refused_and_its_stream_goes_on(token_settings: SecuritySettings) -> None:
    assert token_settings.tokens is not None
    async with running(token_settings) as address, channel(address) as connection:
        engine = TableTargetEngine(hashed_table(VOCAB, salt=3), VOCAB)
        standing = VerifierStub(connection).Session(metadata=bearer(TOKENS["acme"]))
        await standing.write(encode_open(open_request(engine, [1])))
        assert isinstance(await standing.read(), pb.CloudMessage)
        token_settings.tokens.write_text("# nobody\n")
        assert (await refusal(connection, bearer(TOKENS["acme"]))).code() is grpc.StatusCode.UNAUTHENTICATED
        await standing.write(pb.EdgeMessage(decode=pb.Decode(seq=0, prefix_check=0, count=1)))
        with pytest.raises(grpc.aio.AioRpcError, match="disagree about the 1 committed"):
            await standing.read()


async def test_one_tenant_s_session_is_another_s_unknown_one(token_settings: SecuritySettings) -> None:
    async with running(token_settings) as address, channel(address) as connection:
        answer = await opened(connection, bearer(TOKENS["acme"]))
        codec = Codec(VOCAB, open_request(TableTargetEngine(hashed_table(VOCAB, salt=3), VOCAB), [1]).mode)
        resume = codec.encode_edge(Resume(answer.opened.session_id, epoch=1, committed=1))
        kinds = {}
        for name in ("zenith", "acme"):
            call = VerifierStub(connection).Session(metadata=bearer(TOKENS[name]))
            await call.write(resume)
            message = await call.read()
            assert isinstance(message, pb.CloudMessage)
            kinds[name] = message.WhichOneof("kind")
            call.cancel()
        assert kinds == {"zenith": "reset", "acme": "opened"}


async def test_a_quota_is_its_tenant_s_alone(token_settings: SecuritySettings) -> None:
    engine = TableTargetEngine(hashed_table(VOCAB, salt=3), VOCAB)
    async with running(token_settings) as address, channel(address) as connection:
        first = VerifierStub(connection).Session(metadata=bearer(TOKENS["acme"]))
        await first.write(encode_open(open_request(engine, [1])))
        assert isinstance(await first.read(), pb.CloudMessage)
        error = await refusal(connection, bearer(TOKENS["acme"]))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "quota max_sessions of tenant 'acme' is used up (1)" in (error.details() or "")
        assert (await opened(connection, bearer(TOKENS["zenith"]))).WhichOneof("kind") == "opened"


def tls_settings(folder: Path, *, mutual: bool = False) -> SecuritySettings:
    tls = TlsFiles(folder / "server.pem", folder / "server.key", folder / "ca.pem" if mutual else None)
    return SecuritySettings(tls=tls, authentication="certificate" if mutual else "none")


async def test_tls_serves_those_who_trust_its_ca_and_no_plaintext(tmp_path: Path) -> None:
    write_pki(tmp_path)
    write_pki(tmp_path / "other")
    async with running(tls_settings(tmp_path)) as address:
        async with channel(address, tmp_path) as trusting:
            assert (await opened(trusting)).WhichOneof("kind") == "opened"
        for stranger in (channel(address, tmp_path / "other"), channel(address)):
            async with stranger:
                assert (await refusal(stranger)).code() is grpc.StatusCode.UNAVAILABLE


async def test_mtls_makes_a_certificate_the_tenant(tmp_path: Path) -> None:
    write_pki(tmp_path, clients=["acme"])
    write_pki(tmp_path / "other", clients=["acme"])
    (tmp_path / "other" / "ca.pem").write_bytes((tmp_path / "ca.pem").read_bytes())
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("[tenants.acme]\nmax_sessions = 1\n")
    settings = replace(tls_settings(tmp_path, mutual=True), tokens=tenants)
    engine = TableTargetEngine(hashed_table(VOCAB, salt=3), VOCAB)
    async with running(settings) as address, channel(address, tmp_path, "acme") as known:
        standing = VerifierStub(known).Session()
        await standing.write(encode_open(open_request(engine, [1])))
        assert isinstance(await standing.read(), pb.CloudMessage)
        assert "max_sessions of tenant 'acme'" in ((await refusal(known)).details() or "")
        strangers = (
            channel(address, tmp_path),  # no certificate
            channel(address, tmp_path, "server"),  # one for another purpose
            channel(address, tmp_path / "other", "acme"),  # the name, signed by another CA
        )
        for stranger in strangers:
            async with stranger:
                assert (await refusal(stranger)).code() is grpc.StatusCode.UNAVAILABLE


def served_certificate(address: str, ca: Path) -> str:
    """The certificate a server shows to a client that trusts ``ca``, in PEM."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), ca_certs=str(ca), timeout=10.0)


async def test_a_renewed_certificate_is_shown_to_new_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live, later = tmp_path / "live", tmp_path / "later"
    ca = write_pki(live)
    write_pki(later, ca=ca)
    old, new = ((folder / "server.pem").read_text() for folder in (live, later))
    async with running(tls_settings(live)) as address, channel(address, live) as standing:
        assert (await opened(standing)).WhichOneof("kind") == "opened"

        async def show() -> str:
            return await asyncio.to_thread(served_certificate, address, live / "ca.pem")

        assert await show() == old
        (later / "server.pem").replace(live / "server.pem")
        assert await show() == old, "half of a pair is not used"
        assert "changed and cannot be used, the old content stays" in caplog.text
        (later / "server.key").replace(live / "server.key")
        assert await show() == new
        assert (await opened(standing)).WhichOneof("kind") == "opened"


async def test_health_asks_for_no_token_and_nothing_else_is_offered(token_settings: SecuritySettings) -> None:
    async with running(token_settings) as address, channel(address) as connection:
        stub = health_pb2_grpc.HealthStub(connection)
        status = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        assert status.status == health_pb2.HealthCheckResponse.SERVING
        for method in (
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            "/acespec.v1.Verifier/Other",
        ):
            call = connection.stream_stream(method)()
            await call.done_writing()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_containers_health_check_speaks_tls(tmp_path: Path) -> None:
    write_pki(tmp_path, hosts=["verifier.test"], clients=["health"])
    variables = {
        "ACESPEC_HEALTH_CA": f"{tmp_path}/ca.pem",
        "ACESPEC_HEALTH_NAME": "verifier.test",
        "ACESPEC_HEALTH_CERT": f"{tmp_path}/health.pem",
        "ACESPEC_HEALTH_KEY": f"{tmp_path}/health.key",
    }
    check = runpy.run_path(str(CHECK))["problem"]
    async with running(tls_settings(tmp_path, mutual=True)) as address:
        assert await check(address, variables) is None
        for missing in ("ACESPEC_HEALTH_CA", "ACESPEC_HEALTH_NAME", "ACESPEC_HEALTH_CERT"):
            fewer = {name: value for name, value in variables.items() if name != missing}
            if missing == "ACESPEC_HEALTH_CERT":
                del fewer["ACESPEC_HEALTH_KEY"]
            told = await check(address, fewer)
            if missing == "ACESPEC_HEALTH_CA":
                assert told.startswith(
                    f"{address} does not answer in plaintext (UNAVAILABLE); if it speaks TLS,"
                )
            else:
                assert told.startswith(f"{address} does not answer over TLS (UNAVAILABLE); if it runs, see")
            assert missing in told
        gone = await check(address, {**variables, "ACESPEC_HEALTH_CA": f"{tmp_path}/none"})
        assert gone == f"cannot read {tmp_path}/none (No such file or directory)"


async def test_metadata_has_a_bound(token_settings: SecuritySettings) -> None:
    """One large value, and many small ones: refused as such, while others are served."""
    async with running(token_settings) as address, channel(address) as connection:
        floods: list[Metadata] = [
            (("flood", "x" * (MAX_METADATA_BYTES + 1)),),
            tuple((f"flood-{number}", "x" * 200) for number in range(MAX_METADATA_BYTES // 200)),
        ]
        for flood in floods:
            error = await refusal(connection, (*bearer(TOKENS["acme"]), *flood))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "metadata" in (error.details() or "")
        assert (await opened(connection, bearer(TOKENS["acme"]))).WhichOneof("kind") == "opened"


async def test_connections_have_a_bound() -> None:
    async with running(options=replace(FREE_PORT, max_connections=2)) as address:
        host, _, port = address.rpartition(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        for reader, _ in held:
            assert await reader.read(1), "the server's settings come first"
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b"", "closed at once"
        writer.close()
        held[0][1].close()
        await held[0][0].read()
        held[1][1].close()


async def test_a_client_that_never_says_hello_is_dropped(tmp_path: Path) -> None:
    write_pki(tmp_path)
    options = replace(FREE_PORT, handshake_timeout_s=0.2)
    async with running(tls_settings(tmp_path), options) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()


async def test_a_connection_without_a_stream_is_closed() -> None:
    async with (
        running(options=replace(FREE_PORT, connection_idle_s=0.2)) as address,
        channel(address) as idle,
    ):
        await idle.channel_ready()
        await idle.wait_for_state_change(grpc.ChannelConnectivity.READY)
