"""The server's begin and end over real gRPC: its address, its health, draining, signals."""

from __future__ import annotations

import asyncio
import signal
import socket
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from acespec.cloud_verifier.server import VerifierServer, serve_until_signal
from acespec.cloud_verifier.server_options import ServerOptions
from acespec.cloud_verifier.service import SERVICE_NAME
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import ThreadRunner
from acespec.errors import AcespecError
from acespec.wire import (
    Reset,
    ResetReason,
    SessionError,
    TokenVerdict,
)
from served_table import (
    FREE_PORT,
    NOT_SERVING,
    SERVING,
    AnnouncingEngine,
    client_of,
    engine,
    event_of,
    health,
    running,
)
from verifier_client import all_answers


async def test_health_is_told_until_the_server_stops() -> None:
    target = AnnouncingEngine()
    entered, target.on_forward = event_of(asyncio.get_running_loop())
    async with running(target) as (server, address):
        assert await health(address) == SERVING
        assert await health(address, "") == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health(address, "another.Service")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        async with client_of(address, target, [1]) as client, grpc.aio.insecure_channel(address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(service=SERVICE_NAME)
            )
            assert (await watch.read()).status == SERVING
            target.gate.clear()
            await client.send(client.next_round([2, 3]))
            await entered.wait()
            stopping = asyncio.create_task(server.stop(30.0))
            assert (await watch.read()).status == NOT_SERVING
            watch.cancel()
            target.gate.set()
            assert isinstance(await client.receive(), TokenVerdict), "a round under way is answered"
            assert await client.receive() == Reset(0, ResetReason.SHUTTING_DOWN)
            with pytest.raises(SessionError, match="shutting down"):
                await client.receive()
        await stopping


async def test_a_stop_without_grace_ends_sessions_and_frees_them() -> None:
    target = AnnouncingEngine()
    entered, target.on_forward = event_of(asyncio.get_running_loop())
    async with (
        running(target) as (server, address),
        client_of(address, target, [1]) as idle,
        client_of(address, target, [1]) as busy,
    ):
        await idle.decode(1)
        target.gate.clear()
        entered.clear()
        await busy.send(busy.next_decode(20))
        await entered.wait()
        stopping = asyncio.create_task(server.stop(0.0))
        for client in (idle, busy):
            with pytest.raises(SessionError, match="shutting down"):
                await all_answers(client)
        assert not stopping.done(), "a forward runs still"
        target.gate.set()
        await stopping
        assert target.sequences == {}


async def test_a_signal_stops_the_server_and_a_second_one_cuts_draining_short() -> None:
    target = AnnouncingEngine()
    entered, target.on_forward = event_of(asyncio.get_running_loop())
    runner = ThreadRunner("target")
    ready: asyncio.Queue[str] = asyncio.Queue()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    server = VerifierServer(Verifier(target, runner), FREE_PORT)
    serving = asyncio.create_task(serve_until_signal(server, signals, 3600.0, ready.put_nowait))
    address = await ready.get()
    async with client_of(address, target, [1]) as client, grpc.aio.insecure_channel(address) as channel:
        target.gate.clear()
        await client.send(client.next_round([2, 3]))
        await entered.wait()
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        assert (await watch.read()).status == SERVING
        signals.put_nowait(signal.SIGINT)
        assert (await watch.read()).status == NOT_SERVING
        assert not serving.done(), "the round may still be answered"
        signals.put_nowait(signal.SIGTERM)
        with pytest.raises(SessionError, match="shutting down"):
            await all_answers(client)
        target.gate.set()
        await serving
    assert target.sequences == {}
    runner.close()


async def test_a_signal_before_the_server_stands_stops_it_in_order() -> None:
    runner = ThreadRunner("target")
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    signals.put_nowait(signal.SIGINT)
    ready: list[str] = []
    await serve_until_signal(
        VerifierServer(Verifier(engine(), runner), FREE_PORT), signals, 3600.0, ready.append
    )
    assert len(ready) == 1
    runner.close()


async def test_a_taken_port_is_one_line() -> None:
    target = engine()
    async with running(target) as (_, address):
        taken = replace(FREE_PORT, port=int(address.rpartition(":")[2]))
        with pytest.raises(AcespecError, match=f"cannot listen on 127.0.0.1 port {taken.port}"):
            await VerifierServer(Verifier(target, ThreadRunner("other")), taken).start()


async def test_ipv6_addresses_are_written_with_brackets() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    target = engine()
    async with running(target, replace(FREE_PORT, host="::1")) as (_, address):
        assert address.startswith("[::1]:")
        assert await health(address) == SERVING


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 65536},
        {"port": -1},
        {"max_streams": 0},
        {"max_connections": 0},
        {"connection_idle_s": 0.0},
        {"handshake_timeout_s": -1.0},
        {"keepalive_s": float("nan")},
        {"drain_timeout_s": -0.1},
    ],
)
def test_options_out_of_range(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        ServerOptions(**changes)  # type: ignore[arg-type]
