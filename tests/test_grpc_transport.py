"""The edge's link over gRPC: which ends of a stream it goes on from, and what it says of the others."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from acespec.cloud_verifier.server import VerifierServer
from acespec.cloud_verifier.server_options import ServerOptions
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import ThreadRunner
from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.grpc_transport import GrpcConnector, LinkSettings, VerifierChannel
from acespec.edge_runtime.request import GenerationRequest
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from acespec.errors import AcespecError
from acespec.wire import AcceptanceMode, Close, Codec, ErrorCode, SessionError
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from verifier_client import VerifierClient, open_request

VOCAB = 16
RACES = 200
CLOSE = Codec(VOCAB, AcceptanceMode.COUPLED).encode_edge(Close())


@asynccontextmanager
async def table_server() -> AsyncIterator[tuple[str, TableTargetEngine]]:
    """A verifier over gRPC; gives its address and its engine."""
    target = TableTargetEngine(hashed_table(VOCAB, salt=3), VOCAB)
    runner = ThreadRunner("target")
    server = VerifierServer(Verifier(target, runner), ServerOptions(port=0))
    try:
        yield await server.start(), target
    finally:
        await server.stop(0.0)
        runner.close()


async def write_rounds(client: VerifierClient) -> None:
    """One after the other, until that fails."""
    while True:
        await client.send(client.next_round([]))
        await asyncio.sleep(0)


async def test_a_refusal_that_meets_a_message_on_its_way_keeps_its_reason() -> None:
    """Rounds are written until the refusal is there, so that it often arrives during a write."""
    reasons: Counter[ErrorCode] = Counter()
    async with table_server() as (address, target), VerifierChannel(address) as channel:
        for _ in range(RACES):
            client = VerifierClient(channel.session(), open_request(target, [1], model="other"))
            await client.begin()
            with pytest.raises(SessionError) as caught:
                await write_rounds(client)
            reasons[caught.value.code] += 1
            await client.link.close()
    assert reasons == {ErrorCode.FAILED_PRECONDITION: RACES}


# --- a server of a few raw HTTP/2 frames --------------------------------------------------------------------

SETTINGS, RST_STREAM, GOAWAY, HEADERS = 4, 3, 7, 1


def frame(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """RFC 9113, section 4.1."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[str]:
    """Speaks HTTP/2 until the first request, and answers that with ``answer``."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(24)  # the client's preface
            writer.write(frame(SETTINGS, 0))
            while True:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == SETTINGS and not head[4]:
                    writer.write(frame(SETTINGS, 0, flags=1))
                elif head[3] == HEADERS:
                    writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield address_of(server)


def code(number: int) -> bytes:
    return number.to_bytes(4, "big")


@pytest.mark.parametrize(
    "answer",
    [
        *(
            pytest.param(frame(RST_STREAM, 1, code(number)), id=f"RST_STREAM {number}")
            for number in (0, 1, 2, 3, 7, 8, 11, 12)
        ),
        pytest.param(frame(GOAWAY, 0, bytes(4) + code(11) + b"too_many_pings"), id="GOAWAY"),
        pytest.param(b"HTTP/1.1 502 Bad Gateway\r\n\r\n", id="another protocol"),
        pytest.param(frame(HEADERS, 1, b"\xff\xff\xff\xff", flags=4), id="broken headers"),
    ],
)
async def test_what_a_network_or_a_proxy_does_to_a_stream_is_a_loss(answer: bytes) -> None:
    async def talk(address: str) -> None:
        transport = await GrpcConnector(address)(5.0)
        try:
            await transport.send(CLOSE)
            await transport.receive()
        finally:
            await transport.close()

    async with raw_server(answer) as address:
        with pytest.raises(SessionError) as caught:
            await asyncio.wait_for(talk(address), 5.0)
    assert caught.value.code is ErrorCode.UNAVAILABLE, caught.value.message
    assert "\n" not in caught.value.message


# --- a relay that cuts --------------------------------------------------------------------------------------


class CuttingRelay:
    """Relays TCP to ``target``; of its first connection only so many bytes, then both ends are closed."""

    def __init__(self, target: str, up: bool, at_byte: int, resets: bool) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._up, self._left, self._resets = up, at_byte, resets
        self.num_connections = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.num_connections += 1
        cuts = self.num_connections == 1
        there, back = await asyncio.open_connection(*self._target)
        pumps = [
            asyncio.ensure_future(self._pump(reader, back, cuts and self._up)),
            asyncio.ensure_future(self._pump(there, writer, cuts and not self._up)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, back):
            if self._resets:
                end.transport.abort()
            else:
                end.close()
        await asyncio.gather(*pumps)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cuts: bool) -> None:
        try:
            while data := await reader.read(4096):
                if cuts:
                    data = data[: self._left]
                    self._left -= len(data)
                writer.write(data)
                await writer.drain()
                if cuts and self._left == 0:
                    return
        except ConnectionError:
            return


async def generate_over(address: str, target: TableTargetEngine) -> GenerationResult:
    return await generate(
        GrpcConnector(address),
        GenerationRequest((1, 2, 3), (), max_new_tokens=30, seed=4),
        VOCAB,
        None,
        session_settings=SessionSettings(TargetIdentity(vocabulary_hash=target.info.vocabulary_hash)),
    )


@pytest.mark.parametrize("up", [True, False])
async def test_a_connection_cut_at_any_byte_costs_no_token(up: bool) -> None:
    async with table_server() as (address, target):
        whole = await generate_over(address, target)
        lost = 0
        for index, at_byte in enumerate([*range(0, 400, 40), 700, 1000]):
            relay = CuttingRelay(address, up, at_byte, resets=bool(index % 2))
            server = await asyncio.start_server(relay.carry, "127.0.0.1", 0)
            async with server:
                result = await generate_over(address_of(server), target)
            assert result.tokens == whole.tokens, at_byte
            lost += relay.num_connections > 1
        assert lost >= 8, "most cuts met the generation before its end"


# --- connecting ---------------------------------------------------------------------------------------------


async def test_nobody_at_the_address_is_said_at_once() -> None:
    async with raw_server(b"") as address:
        pass
    with pytest.raises(SessionError, match="Connection refused") as caught:
        await GrpcConnector(address)(30.0)
    assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_one_who_never_answers_is_waited_for_no_longer_than_told() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with server:
        address = address_of(server)
        with pytest.raises(SessionError, match=r"no connection within 0\.2 s"):
            await GrpcConnector(address)(0.2)


@pytest.mark.parametrize("address", ["nonsense", "host:", ":50051", "host:0", "host:65536", "host:x"])
async def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(AcespecError, match="HOST:PORT"):
        await GrpcConnector(address)(1.0)


@pytest.mark.parametrize("fields", [{"keepalive_s": 0.5}, {"keepalive_timeout_s": 1e6}])
def test_keepalive_out_of_range(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"keepalive.* must be between"):
        LinkSettings(**fields)  # type: ignore[arg-type]


async def test_a_generation_leaves_no_connection_behind() -> None:
    """Not even until garbage is collected, whatever still refers to its errors."""
    async with table_server() as (address, target):
        carried: asyncio.Queue[None] = asyncio.Queue()
        relay = CuttingRelay(address, up=False, at_byte=500, resets=False)

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await relay.carry(reader, writer)
            carried.put_nowait(None)

        server = await asyncio.start_server(carry, "127.0.0.1", 0)
        gc.disable()
        try:
            async with server:
                await generate_over(address_of(server), target)
                for _ in range(relay.num_connections):
                    await asyncio.wait_for(carried.get(), 5.0)
        finally:
            gc.enable()
        assert relay.num_connections == 2


async def test_a_closed_stream_is_at_its_end() -> None:
    async with table_server() as (address, _):
        transport = await GrpcConnector(address)(5.0)
        await transport.close()
        with pytest.raises(SessionError, match="this side closed the stream"):
            await transport.receive()
        with pytest.raises(SessionError, match="this side closed the stream"):
            await transport.send(CLOSE)


def address_of(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()[:2]
    return f"{host}:{port}"
