"""The health service: what it tells, and that nobody who asks it holds anything up."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from acespec.cloud_verifier.health import HealthService
from acespec.cloud_verifier.server import VerifierServer
from acespec.cloud_verifier.server_options import ServerOptions
from acespec.cloud_verifier.service import SERVICE_NAME
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import ThreadRunner
from raw_http2 import (
    DATA,
    END_HEADERS,
    GRPC_HEADERS,
    HEADERS,
    PREFACE,
    SETTINGS,
    frame,
    grpc_message,
    header_block,
)
from verifier_edges import table_engine

Request, Response = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
END_STREAM = 0x1
INITIAL_WINDOW_SIZE = 0x4


@contextlib.asynccontextmanager
async def told_by(service: HealthService) -> AsyncIterator[health_pb2_grpc.HealthStub]:
    """A client of a server of nothing else."""
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(service, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        yield health_pb2_grpc.HealthStub(channel)
    await server.stop(None)


async def test_a_change_is_told_once_and_under_both_names() -> None:
    service = HealthService("here")
    async with told_by(service) as client:
        watches = [client.Watch(Request(service=name)) for name in ("", "here", "elsewhere")]
        for status in (Response.NOT_SERVING, Response.SERVING, Response.NOT_SERVING):
            service.report(status)
            service.report(status)
            assert [(await watch.read()).status for watch in watches[:2]] == [status, status]
            assert (await client.Check(Request(service="here"))).status == status
        assert (await watches[2].read()).status == Response.SERVICE_UNKNOWN
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.Check(Request(service="elsewhere"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_only_so_many_may_watch() -> None:
    service = HealthService("here", max_watches=2)
    async with told_by(service) as client:
        watches = [client.Watch(Request()) for _ in range(2)]
        for watch in watches:
            await watch.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.Watch(Request()).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await client.Check(Request())).status == Response.NOT_SERVING
    assert service.num_watches == 0


async def test_one_who_watches_and_reads_nothing_keeps_no_server_from_stopping() -> None:
    """His window has no room for a single byte."""
    runner = ThreadRunner("test")
    server = VerifierServer(Verifier(table_engine(), runner), ServerOptions(port=0))
    host, _, port = (await server.start()).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = grpc_message(Request(service=SERVICE_NAME).SerializeToString())
    path = (":path", "/grpc.health.v1.Health/Watch")
    headers = [path if name == ":path" else (name, value) for name, value in GRPC_HEADERS]
    writer.write(
        PREFACE
        + frame(SETTINGS, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
        + frame(HEADERS, 1, header_block(headers), END_HEADERS)
        + frame(DATA, 1, request, END_STREAM)
    )
    kind = None
    while kind != HEADERS:  # which need no room: now the status itself waits
        length, kind = struct.unpack(">3sB5x", await reader.readexactly(9))
        await reader.readexactly(int.from_bytes(length, "big"))
    await asyncio.wait_for(server.stop(0.0), 30.0)
    writer.transport.abort()
    runner.close()
