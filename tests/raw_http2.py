"""As much HTTP/2 (RFC 9113) as it takes to misuse it: what gRPC's own client would never send."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from types import TracebackType

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x6, 0x8, 0x9
END_HEADERS = 0x4
CANCEL = 0x8
GRPC_HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/acespec.v1.Verifier/Session"),
    (":authority", "test"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


def frame(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """One frame (section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """Literal fields without indexing (RFC 7541, section 6.2.2); names and values of at most 126 bytes."""
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers
    )


def open_stream(stream: int, extra: Iterable[tuple[str, str]] = ()) -> bytes:
    """The frame that begins a session's stream."""
    return frame(HEADERS, stream, header_block([*GRPC_HEADERS, *extra]), END_HEADERS)


def grpc_message(data: bytes) -> bytes:
    """A message in gRPC's own framing: not compressed, and its length."""
    return struct.pack(">BI", 0, len(data)) + data


class RawConnection:
    """A TCP connection to a gRPC server: an asynchronous context manager."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def __aenter__(self) -> RawConnection:
        host, _, port = self._address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.transport.abort()

    async def greet(self) -> None:
        """Send the connection's preface and settings."""
        await self.send(PREFACE + frame(SETTINGS, 0))

    async def send(self, data: bytes) -> bool:
        """Send bytes, as fast as they are taken; False once the server has closed the connection."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            return False
        return not self._writer.transport.is_closing()

    async def closed(self, timeout_s: float) -> bool:
        """Read, and drop, what the server sends; whether it closed the connection within ``timeout_s``."""

        async def read_all() -> None:
            try:
                while await self._reader.read(65_536):
                    pass
            except ConnectionError:
                pass

        try:
            await asyncio.wait_for(read_all(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True
