"""Attacks below gRPC's client, with frames made by hand. Each says how it was met, and fails if wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import time

from attacked_server import MALLORY, OPEN, RawStream, channel_to
from raw_http2 import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GRPC_HEADERS,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    RawConnection,
    frame,
    grpc_message,
    header_block,
    open_stream,
)


async def slow_writers(address: str, count: int = 100) -> str:
    """Connections that bring half a preface, half an Open, or one byte of it every now and then."""
    message = grpc_message(OPEN.SerializeToString())
    promise = grpc_message(bytes(60_000))[:50]

    async def half_a_preface() -> bool:
        async with RawConnection(address) as raw:
            await raw.send(PREFACE[:10])
            return await raw.closed(10.0)

    async def trickle(data: bytes) -> bool:
        async with RawConnection(address) as raw:
            await raw.greet()
            await raw.send(open_stream(1, [("authorization", f"Bearer {MALLORY}")]))
            until = time.monotonic() + 3.0
            for byte in data:
                if time.monotonic() > until or not await raw.send(frame(DATA, 1, bytes([byte]))):
                    break
                await asyncio.sleep(0.1)
            return True

    ended = await asyncio.gather(
        *(half_a_preface() for _ in range(count // 2)),
        *(trickle(message) for _ in range(count // 4)),
        *(trickle(promise) for _ in range(count // 4)),
    )
    assert all(ended)
    return f"{count} ended"


async def unfinished_headers(address: str, frames: int = 2000) -> str:
    """Headers that never end (CVE-2024-27316). gRPC itself takes them, before any code here is asked."""
    block = header_block([(f"x-{number}", "x" * 100) for number in range(100)])

    async def attack() -> bool:
        async with RawConnection(address) as raw:
            await raw.greet()
            await raw.send(frame(HEADERS, 1, header_block(GRPC_HEADERS)))
            for _ in range(frames):
                if not await raw.send(frame(CONTINUATION, 1, block)):
                    return True
            await raw.send(frame(CONTINUATION, 1, b"", END_HEADERS))
            return await raw.closed(0.5)

    closed = await asyncio.gather(*(attack() for _ in range(4)))
    return f"{sum(closed)} of {len(closed)} connections closed"


async def ping_floods(address: str, count: int = 50_000) -> str:
    """Pings and settings without end, whose answers nobody reads (CVE-2019-9512 and -9515)."""

    async def attack(data: bytes) -> bool:
        async with RawConnection(address) as raw:
            await raw.greet()
            with contextlib.suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(flood(raw, data), 6.0)
            return False

    async def flood(raw: RawConnection, data: bytes) -> bool:
        for _ in range(count // 100):
            if not await raw.send(data * 100):
                return True
        return await raw.closed(3.0)

    pings, settings = frame(PING, 0, bytes(8)), frame(SETTINGS, 0)
    closed = await asyncio.gather(*(attack(data) for data in (pings, settings) * 4))
    return f"{sum(closed)} of {len(closed)} connections closed, the others held back"


async def rapid_resets(address: str, count: int = 10_000) -> str:
    """Streams begun and cancelled at once (CVE-2023-44487), by hand and by gRPC's own client."""

    async def by_hand() -> bool:
        async with RawConnection(address) as raw:
            await raw.greet()
            opening = grpc_message(OPEN.SerializeToString())
            for number in range(count):
                identifier = 2 * number + 1
                sent = await raw.send(
                    open_stream(identifier, [("authorization", f"Bearer {MALLORY}")])
                    + frame(DATA, identifier, opening)
                    + frame(RST_STREAM, identifier, CANCEL.to_bytes(4, "big"))
                )
                if not sent:
                    return True
                if number % 50 == 0:
                    await asyncio.sleep(0)
            return await raw.closed(0.5)

    await asyncio.gather(*(by_hand() for _ in range(2)))
    async with channel_to(address) as channel:
        for _ in range(count // 5):
            call = RawStream(channel)
            await call.say(OPEN)
            call.cancel()
    return f"{2 * count + count // 5} survived"
