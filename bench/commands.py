"""Sub-commands: ``acespec wan-relay`` and ``acespec demo``. What needs much is imported when called."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import selectors
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from acespec.bench.link import DirectionShape, LinkShape
from acespec.bench.outages import LinkOutages, Outage, parse_outage
from acespec.bench.relay import Relay, Traffic
from acespec.errors import AcespecError
from acespec.options import FiniteRange, RateType

Address = tuple[str, int]
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
MILLISECONDS = FiniteRange(min=0)


class AddressType(click.ParamType[Address]):
    """``HOST:PORT``, with brackets around an IPv6 host."""

    name = "host:port"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        host, separator, port = str(value).rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (separator and host and port.isdecimal() and int(port) < 2**16):
            self.fail(f"{value!r} is not of the form HOST:PORT", param, ctx)
        return host, int(port)


class OutageType(click.ParamType[Outage]):
    """``AT:FOR`` or ``AT:FOR,EVERY``, in seconds."""

    name = "at:for[,every]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Outage:
        try:
            return parse_outage(str(value))
        except AcespecError as error:
            self.fail(str(error), param, ctx)


def outage_option(name: str, meaning: str) -> Callable[[F], F]:
    """An option that may be given several times."""
    return click.option(name, type=OutageType(), multiple=True, help=f"{meaning}. [seconds]")


@click.command("wan-relay")
@click.option("--listen", type=AddressType(), required=True, help="Where to listen; port 0 takes a free one.")
@click.option("--target", type=AddressType(), required=True, help="Where to carry each connection.")
@click.option("--rtt", type=MILLISECONDS, default=50.0, show_default=True, help="Round trip, ms.")
@click.option("--delay-up", type=MILLISECONDS, help="Towards the target, instead of half of --rtt, ms.")
@click.option("--delay-down", type=MILLISECONDS, help="Towards the client, instead of half of --rtt, ms.")
@click.option("--jitter", type=MILLISECONDS, default=0.0, help="Up to this much more each way, ms.")
@click.option("--jitter-up", type=MILLISECONDS, help="Towards the target, instead of --jitter.")
@click.option("--jitter-down", type=MILLISECONDS, help="Towards the client, instead of --jitter.")
@click.option("--rate", type=RateType(), help="Limit of both directions, as 50kbps; by default none.")
@click.option("--rate-up", type=RateType(), help="Limit towards the target, instead of --rate.")
@click.option("--rate-down", type=RateType(), help="Limit towards the client, instead of --rate.")
@outage_option("--outage", "Nothing passes, and what is held back passes afterwards")
@outage_option("--outage-up", "The same, towards the target alone")
@outage_option("--outage-down", "The same, towards the client alone")
@outage_option("--cut", "Connections are closed as it begins, and new ones at once until it ends")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Decides the jitter.")
def wan_relay(**options: Any) -> None:
    """Relay TCP with the delay, jitter, rate and outages of a wide-area link.

    Writes a line with "ready on HOST:PORT" once it listens, then a line of JSON for each connection that
    ends: the bytes it carried each way. Ends on SIGINT or SIGTERM, with a line on all connections.

    Outages are AT:FOR or AT:FOR,EVERY in seconds, counted from that first line on: --outage 10:2,60 stops
    the link in seconds 10 to 12, 70 to 72, and so on. Each kind may be given several times.
    """
    outage = options["outage"]
    try:
        outages = LinkOutages(
            (*outage, *options["outage_up"]), (*outage, *options["outage_down"]), options["cut"]
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    relay = Relay(
        options["target"],
        LinkShape(_shape(options, "up"), _shape(options, "down")),
        outages=outages,
        seed=options["seed"],
        on_closed=lambda traffic: click.echo(json.dumps({"closed": _bytes(traffic)})),
    )
    # select() waits to the microsecond; epoll rounds every wait up to a whole millisecond.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    try:
        loop.run_until_complete(_serve(relay, options["listen"]))
    finally:
        loop.close()


def _shape(options: dict[str, Any], direction: str) -> DirectionShape:
    """What the options say of one direction: its own where there are any."""

    def chosen(name: str, otherwise: float) -> float:
        own = options[f"{name}_{direction}"]
        return otherwise if own is None else float(own)

    return DirectionShape(
        chosen("delay", options["rtt"] / 2.0),
        chosen("jitter", options["jitter"]),
        chosen("rate", options["rate"] or math.inf),
    )


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
    total = {"connections": relay.num_connections, **_bytes(relay.traffic)}
    click.echo(json.dumps({"total": total}))


def _bytes(traffic: Traffic) -> dict[str, int]:
    return {"bytes_up": traffic.up, "bytes_down": traffic.down}


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
    """Generate text through the whole system, in rounds and in a race, and compare with cloud-only decoding.

    A verifier and a relay that delays like a wide-area link run as processes of their own. Exit status 1 if
    a text differs. The first run fetches and exports a model, which is then in the cache.
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
    console.print(time_table(comparison.rounds.result.metrics))
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
