"""``acespec wan-relay`` as a process of its own, over a given link, and what its connections carried."""

from __future__ import annotations

import asyncio
import json
import math

from acespec.bench.link import LinkShape
from acespec.bench.processes import Service
from acespec.bench.relay import Traffic
from acespec.errors import AcespecError

REPORT_TIMEOUT_S = 30.0


def relay_service(target: str, shape: LinkShape) -> Service:
    """A relay to ``target`` (``HOST:PORT``) over such a link, on a free port of the loopback interface."""
    arguments = ["wan-relay", "--listen", "127.0.0.1:0", "--target", target]
    for name, direction in (("up", shape.up), ("down", shape.down)):
        arguments += [f"--delay-{name}", f"{direction.delay_ms:f}"]
        arguments += [f"--jitter-{name}", f"{direction.jitter_ms:f}"]
        if math.isfinite(direction.bytes_per_second):
            arguments += [f"--rate-{name}", f"{8.0 * direction.bytes_per_second:f}bps"]
    return Service(*arguments)


async def carried(relay: Service) -> Traffic:
    """What the connection that just closed carried, as the relay reports it.

    Raises ``AcespecError`` if it reports nothing for half a minute.
    """
    try:
        line = await asyncio.wait_for(relay.line(), REPORT_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise AcespecError("the relay did not notice that the connection was closed") from None
    closed = json.loads(line)["closed"]
    return Traffic(closed["bytes_up"], closed["bytes_down"])
