"""Sub-commands: ``acespec wan-relay`` and ``acespec demo``. What needs much is imported when called."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import selectors
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from acespec.bench.link import DirectionShape, LinkShape
from acespec.bench.relay import Relay, Traffic
from acespec.errors import AcespecError
from acespec.options import FiniteRange, RateType

Address = tuple[str, int]
T = TypeVar("T")


class AddressType(click.ParamType[Address]):
    """``HOST:PORT``, with brackets around an IPv6 host."""

    name = "host:port"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        host, separator, port = str(value).rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (separator and host and port.isdecimal() and int(port) < 2**16):
            self.fail(f"{value!r} is not of the form HOST:PORT", param, ctx)
        return host, int(port)


@click.command("wan-relay")
@click.option("--listen", type=AddressType(), required=True, help="Where to listen; port 0 takes a free one.")
@click.option("--target", type=AddressType(), required=True, help="Where to carry each connection.")
@click.option("--rtt", type=FiniteRange(min=0), default=50.0, show_default=True, help="Round trip, ms.")
@click.option("--jitter", type=FiniteRange(min=0), default=0.0, help="Up to this much more each way, ms.")
@click.option("--rate", type=RateType(), help="Limit of both directions, as 50kbps; by default none.")
@click.option("--rate-up", type=RateType(), help="Limit towards the target, instead of --rate.")
@click.option("--rate-down", type=RateType(), help="Limit towards the client, instead of --rate.")
def wan_relay(
    listen: Address,
    target: Address,
    rtt: float,
    jitter: float,
    rate: float | None,
    rate_up: float | None,
    rate_down: float | None,
) -> None:
    """Relay TCP with the delay, jitter and rate of a wide-area link.

    Writes a line with "ready on HOST:PORT" once it listens, then a line of JSON for each connection that
    ends: the bytes it carried each way. Ends on SIGINT or SIGTERM.
    """

    def shape(limit: float | None) -> DirectionShape:
        bytes_per_second = limit or rate or float("inf")
        return DirectionShape(rtt / 2.0, jitter, bytes_per_second)

    relay = Relay(target, LinkShape(shape(rate_up), shape(rate_down)), on_closed=_report)
    # select() waits to the microsecond; epoll rounds every wait up to a whole millisecond.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    try:
        loop.run_until_complete(_serve(relay, listen))
    finally:
        loop.close()


async def _serve(relay: Relay, listen: Address) -> None:
    """Relay until asked to stop."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        host, port = await relay.start(*listen)
    except OSError as error:
        raise AcespecError(
            f"cannot listen on {listen[0]}:{listen[1]}: {error.strerror}; give --listen another address"
        ) from error
    click.echo(f"acespec wan-relay: ready on {host}:{port}")
    await stop.wait()
    await relay.close()


def _report(traffic: Traffic) -> None:
    click.echo(json.dumps({"closed": {"bytes_up": traffic.up, "bytes_down": traffic.down}}))


@click.command()
@click.option("-p", "--prompt", help="Another prompt than the built-in one.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=160, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=7, show_default=True)
@click.option("--temperature", type=FiniteRange(0.0, 100.0), default=0.3, show_default=True)
@click.option("--rtt", type=FiniteRange(min=0), default=50.0, show_default=True, help="Round trip, ms.")
@click.option("--no-pace", is_flag=True, help="Let the verifier run as fast as this machine does.")
@click.option("--prepare-only", is_flag=True, help="Fetch, derive and export what is missing, and stop.")
def demo(
    prompt: str | None,
    max_new_tokens: int,
    seed: int,
    temperature: float,
    rtt: float,
    no_pace: bool,
    prepare_only: bool,
) -> None:
    """Generate text through the whole system on this machine, and compare it with cloud-only decoding.

    A verifier and a relay that delays like a wide-area link run as processes of their own. Exit status 1 if
    the two texts differ. The first run fetches and exports a model, which is then in the cache.
    """
    from rich.console import Console

    from acespec.bench import demo as show
    from acespec.bench.demo_report import comparison_table, introduce, time_table, verdict

    console = Console(highlight=False)
    if prepare_only:
        show.prepare(lambda line: console.print(line, soft_wrap=True))
        return
    options = show.DemoOptions(
        prompt or show.PROMPT,
        max_new_tokens,
        dataclasses.replace(show.PAIR.sampling, temperature=temperature),
        seed,
        round_trip_ms=rtt,
        pace_forward_ms=None if no_pace else show.PAIR.target_step_ms,
    )
    introduce(console, options)
    comparison = asyncio.run(
        until_terminated(
            show.compare(
                options,
                on_stage=lambda stage: console.print(f"\n[bold cyan]{stage}[/]"),
                on_text=lambda text: console.out(text, end="", highlight=False),
            )
        )
    )
    console.print()
    console.print(comparison_table(comparison))
    console.print(time_table(comparison.acespec.result.metrics))
    console.print(verdict(comparison))
    if not comparison.identical:
        raise SystemExit(1)


async def until_terminated(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main``; SIGTERM cancels it, so that it stops what it started."""
    task = asyncio.ensure_future(main)
    terminated = asyncio.Event()

    def terminate() -> None:
        terminated.set()
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await task
    except asyncio.CancelledError:
        if terminated.is_set():
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
