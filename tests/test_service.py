"""The verifier over real gRPC on the loopback: sessions side by side, broken clients, limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from dataclasses import replace
from datetime import datetime

import grpc
import grpc.aio
import pytest

from acespec.cloud_verifier.authentication import Presented
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import Observer
from acespec.cloud_verifier.security import Security
from acespec.cloud_verifier.server import VerifierServer
from acespec.cloud_verifier.server_options import channel_options
from acespec.cloud_verifier.tenants import Quota, Tenant
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import ThreadRunner
from acespec.edge_runtime.channel_security import ChannelSecurity
from acespec.edge_runtime.grpc_transport import LinkSettings, VerifierChannel
from acespec.wire import (
    Codec,
    Decode,
    ErrorCode,
    PrefixCheck,
    Reset,
    Resume,
    SessionError,
    TokenVerdict,
)
from fake_target import TableTargetEngine
from raw_http2 import DATA, PREFACE, SETTINGS, RawConnection, frame, grpc_message, open_stream
from served_table import (
    FREE_PORT,
    NO_RESUMING,
    TABLE,
    VOCAB,
    AnnouncingEngine,
    client_of,
    engine,
    event_of,
    running,
)
from verifier_client import VerifierClient, decoded_text, open_request, refused

INITIAL_WINDOW_SIZE = 0x4
"""HTTP/2's setting: bytes that may be under way to the client in a stream."""


async def test_sessions_at_once_each_get_their_own_text() -> None:
    """Half of them decode; the others send chains, some right and some wrong."""
    target = engine()

    async def text(address: str, seed: int) -> list[int]:
        expected = await decoded_text(engine(), open_request(target, [seed, 1], seed=seed))
        async with client_of(address, target, [seed, 1], seed=seed) as client:
            while not client.finished:
                if seed % 2:
                    await client.decode(3)
                else:
                    chain = expected[len(client.committed) :][: min(3, client.remaining - 1)]
                    await client.round([*chain[:-1], 0][: len(chain)] if seed % 4 else chain)
            assert client.committed == expected
            return client.committed

    async with running(target) as (_, address):
        texts = await asyncio.gather(*(text(address, seed) for seed in range(8)))
    assert len({tuple(tokens) for tokens in texts}) == 8
    assert target.sequences == {}


async def test_the_first_round_need_not_wait_for_opened() -> None:
    target = engine()
    async with running(target) as (_, address), client_of(address, target, [1, 2]) as client:
        assert client.opened is None
        assert isinstance(await client.round([3]), TokenVerdict)
        assert client.opened is not None


async def test_refusals_arrive_as_the_status_of_the_same_name() -> None:
    target = engine()
    async with running(target) as (_, address):
        async with client_of(address, target, [1], model="other") as client:
            error = await refused(client, "'other' but 'table' is served")
            assert error.code is ErrorCode.FAILED_PRECONDITION
        async with client_of(address, target, [1]) as client:
            error = await refused(
                client, "request 5 came where 0 is due", replace(client.next_round([]), seq=5)
            )
            assert error.code is ErrorCode.INVALID_ARGUMENT
        async with client_of(address, target, [1]) as client:
            assert len(await client.decode(3)) == 3


async def read_to_the_end(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def raw_session(address: str, *messages: bytes) -> grpc.aio.AioRpcError:
    """How a stream of ``messages`` as they are ends."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream("/acespec.v1.Verifier/Session")()
        for message in messages:
            await call.write(message)
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_to_the_end(call)
    return caught.value


@pytest.mark.parametrize("message", [b"", b"\xff\xff\xff", b"\x0a\x00"])
async def test_junk_is_refused_and_harms_nobody(message: bytes) -> None:
    target = engine()
    async with running(target) as (_, address), client_of(address, target, [1]) as client:
        await client.decode(1)
        error = await raw_session(address, message)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "\n" not in (error.details() or "")
        await client.decode(1)
        assert client.committed == (await decoded_text(engine(), client.request))[:3]


async def test_a_message_beyond_any_prompt_is_refused_by_its_size() -> None:
    target = TableTargetEngine(TABLE, VOCAB, max_context=64)
    limit = dict(channel_options(FREE_PORT, 64))["grpc.max_receive_message_length"]
    assert limit < 4 * 2**20
    async with running(target) as (_, address):
        error = await raw_session(address, bytes(limit + 1))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with client_of(address, target, [1] * 200, token_limit=300) as client:
            await refused(client, "prompt of 200 tokens does not fit the target's context of 64")


async def test_a_client_that_vanishes_while_decoding_leaves_the_others_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = AnnouncingEngine()
    closed, target.on_close = event_of(asyncio.get_running_loop())
    async with (
        running(target, limits=NO_RESUMING) as (_, address),
        client_of(address, target, [2]) as healthy,
    ):
        async with VerifierChannel(address) as channel:
            client = VerifierClient(channel.session(), open_request(target, [1], token_limit=4000))
            await client.begin()
            await client.send(client.next_decode(3000))
            await client.receive()
        await closed.wait()
        assert len(target.sequences) <= 1
        await healthy.decode(healthy.remaining)
        assert healthy.committed == await decoded_text(engine(), healthy.request)
    assert caplog.text == "", "a client that leaves is no failure of the server"


async def test_a_call_cancelled_in_a_forward_is_freed_after_it() -> None:
    target = AnnouncingEngine()
    loop = asyncio.get_running_loop()
    entered, target.on_forward = event_of(loop)
    closed, target.on_close = event_of(loop)
    target.gate.clear()
    async with running(target, limits=NO_RESUMING) as (_, address):
        async with client_of(address, target, [1]) as client:
            await client.send(client.next_round([2, 3]))
            await entered.wait()
        assert len(target.sequences) == 1
        target.gate.set()
        await closed.wait()
        assert target.sequences == {}
        async with client_of(address, target, [1]) as client:
            assert len(await client.decode(2)) == 2


class Refusals(Observer):
    """Keeps the codes of what was refused."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.first = asyncio.Event()

    def refused(self, code: str) -> None:
        self.codes.append(code)
        self.first.set()


async def test_no_more_streams_than_allowed() -> None:
    target, seen = engine(), Refusals()
    options = replace(FREE_PORT, max_streams=1)
    async with (
        running(target, options, observer=seen) as (_, address),
        client_of(address, target, [1]) as first,
    ):
        await first.decode(1)
        async with client_of(address, target, [1]) as second:
            error = await refused(second, "the 1 streams it may hold; try again later")
        assert error.code is ErrorCode.UNAVAILABLE, "an edge comes back after a while"
        assert seen.codes == ["UNAVAILABLE"]
        await first.decode(1)


async def test_a_stream_whose_edge_reads_nothing_counts_until_the_edge_has_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its last message is still being written: gRPC can put no status behind it."""
    target, seen = engine(), Refusals()
    request = open_request(target, [1])
    codec = Codec(request.vocab_size, request.mode)
    decode = Decode(0, PrefixCheck(request.committed).value, 20)
    options, limits = replace(FREE_PORT, max_streams=1), Limits(write_timeout_s=0.1)
    async with running(target, options, limits, seen) as (_, address):
        async with RawConnection(address) as raw:
            await raw.send(PREFACE + frame(SETTINGS, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)))
            await raw.send(open_stream(1))
            for message in (request, decode):
                data = codec.encode_edge(message).SerializeToString()
                await raw.send(frame(DATA, 1, grpc_message(data)))
            await seen.first.wait()
            async with client_of(address, target, [1]) as other:
                await asyncio.wait_for(refused(other, "the 1 streams it may hold"), 30.0)
        while True:  # until the server has noticed
            async with client_of(address, target, [1]) as other:
                with contextlib.suppress(SessionError):
                    await other.decode(1)
                    break
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class QuotaForEveryone:
    """Takes a token for a tenant's name, and gives each tenant four sessions."""

    def tenant(self, presented: Presented, now: datetime) -> Tenant:
        return Tenant(presented.required_bearer(), Quota(max_sessions=4))


async def test_a_tenant_that_takes_all_streams_it_may_leaves_the_others_theirs() -> None:
    target, runner = engine(), ThreadRunner("target")
    security = Security(credentials=None, authenticator=QuotaForEveryone())
    server = VerifierServer(Verifier(target, runner), replace(FREE_PORT, max_streams=6), security)
    address = await server.start()
    async with contextlib.AsyncExitStack() as stack:

        async def stream_of(tenant: str) -> VerifierClient:
            settings = LinkSettings(ChannelSecurity(token=tenant))
            channel = await stack.enter_async_context(VerifierChannel(address, settings))
            return VerifierClient(channel.session(), open_request(target, [1]))

        for _ in range(5):  # four for its sessions, and one that may be replacing another
            greedy = await stream_of("greedy")
            await greedy.send(Resume(b"unknown", epoch=1, committed=1))
            assert isinstance(await greedy.receive(), Reset)
        error = await refused(await stream_of("greedy"), r"the 5 streams that its quota max_sessions \(4\)")
        assert error.code is ErrorCode.RESOURCE_EXHAUSTED
        modest = await stream_of("modest")
        await modest.begin()
        assert len(await modest.decode(2)) == 2
    await server.stop(0.0)
    runner.close()
