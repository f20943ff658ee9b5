"""What the verifier costs beside its target, and what it gains by batching. Run as ``make bench-verifier``.

The verifier runs in a process of its own behind gRPC; this process is the load, on the same machine. The
first table is measured with a target that costs nothing (``verifier_zero_cost``): what remains is gRPC, the
codec, the session, the scheduler, the way to the worker thread and back, and the target's picks from five
rows of 32,000 logits a round. Memory is the server's resident memory. Batching is measured with a real model.
The last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from acespec.bench.processes import Service
from acespec.bench.verifier_batching import Batching, measure_batching
from acespec.bench.verifier_load import Load, measure_load
from acespec.bench.verifier_memory import SessionMemory, measure_session_memory
from acespec.bench.verifier_server import SERVER
from acespec.bench.verifier_silent_race import SilentRace, measure_silent_race
from acespec.bench.verifier_soak import SoakReport, soak
from acespec.bench.verifier_zero_cost import zero_cost_script

SESSIONS = (1, 4, 16, 64, 256)
MEMORY_SESSIONS = 256
BATCHED_SESSIONS = 16
NUM_CHANNELS = 8
WARM_UP_S = 1.0
PROMPT_LENGTH = 512
LONG_SCRIPT, SHORT_SCRIPT = 8000, 10
"""Rounds: more than one session gets through in a run, and enough for the others."""


async def measure_overhead(seconds: float, repetitions: int) -> list[Load]:
    """The load of every number of sessions on one server: of each figure the median of some runs."""
    script = zero_cost_script(PROMPT_LENGTH, LONG_SCRIPT)
    loads: dict[int, list[Load]] = {num_sessions: [] for num_sessions in SESSIONS}
    async with Service(module=SERVER) as server:
        for num_sessions in SESSIONS * repetitions:
            load = await measure_load(
                server.address, [script] * num_sessions, NUM_CHANNELS, WARM_UP_S, seconds
            )
            loads[num_sessions].append(load)
    return [_median(of_one_number) for of_one_number in loads.values()]


def _median(loads: Sequence[Load]) -> Load:
    return Load(
        num_sessions=loads[0].num_sessions,
        rounds_per_s=statistics.median(load.rounds_per_s for load in loads),
        p50_ms=statistics.median(load.p50_ms for load in loads),
        p99_ms=statistics.median(load.p99_ms for load in loads),
    )


def print_overhead(console: Console, loads: Sequence[Load]) -> None:
    table = Table(title="Without a target's time")
    for name in ("sessions", "rounds/s", "p50 ms", "p99 ms"):
        table.add_column(name, justify="right")
    for load in loads:
        table.add_row(
            str(load.num_sessions), f"{load.rounds_per_s:.0f}", f"{load.p50_ms:.1f}", f"{load.p99_ms:.1f}"
        )
    console.print(table)


def print_memory(console: Console, memory: SessionMemory) -> None:
    console.print(
        f"Resident memory of {MEMORY_SESSIONS} sessions with {PROMPT_LENGTH} committed tokens, each: "
        f"{memory.open_kib:.0f} KiB with a stream, {memory.parked_kib:.0f} KiB without"
    )


def print_batching(console: Console, model: str, batching: Batching) -> None:
    console.print(
        f"{model}, float32, {batching.num_sessions} sessions: "
        f"{batching.batched_rounds_per_s:.1f} rounds/s batched, "
        f"{batching.one_by_one_rounds_per_s:.1f} one by one: x{batching.speedup:.2f}"
    )


def print_silent_race(console: Console, race: SilentRace) -> None:
    console.print(
        f"A race whose edge sends nothing: {race.race_ms_per_token:.1f} ms a token, plain decoding "
        f"{race.plain_ms_per_token:.1f} ms: x{race.ratio:.3f}"
    )


def figures(
    loads: Sequence[Load],
    memory: SessionMemory,
    batching: Batching,
    silent_race: SilentRace,
    soaked: SoakReport | None,
) -> dict[str, float]:
    """What the last line holds. The load is that of the most sessions."""
    most = loads[-1]
    found: dict[str, float] = {
        "rounds_per_s": most.rounds_per_s,
        "sessions": most.num_sessions,
        "p50_ms": most.p50_ms,
        "p99_ms": most.p99_ms,
        "kib_per_session": memory.open_kib,
        "kib_per_parked_session": memory.parked_kib,
        "batched_speedup": batching.speedup,
        "batched_rounds_per_s": batching.batched_rounds_per_s,
        "one_by_one_rounds_per_s": batching.one_by_one_rounds_per_s,
        "silent_race_time_ratio": silent_race.ratio,
    }
    if soaked is not None:
        found |= {f"soak_{name}": figure for name, figure in asdict(soaked).items()}
    return {name: round(figure, 3) for name, figure in found.items()}


@click.command()
@click.option("--model", default="smollm2-135m", show_default=True, help="A fetched model's name or folder.")
@click.option(
    "--threads", type=click.IntRange(1), help="CPU threads of its forwards.  [default: PyTorch's choice]"
)
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Of a run of load."
)
@click.option(
    "--repetitions", type=click.IntRange(1), default=3, show_default=True, help="Runs of everything."
)
@click.option(
    "--soak", "minutes", type=click.FloatRange(0.0), default=0.0, show_default=True, help="Minutes."
)
def main(model: str, threads: int | None, seconds: float, repetitions: int, minutes: float) -> None:
    """Measure the verifier on this machine."""
    console = Console(width=110)
    loads = asyncio.run(measure_overhead(seconds, repetitions))
    print_overhead(console, loads)
    script = zero_cost_script(PROMPT_LENGTH, SHORT_SCRIPT)
    memory = asyncio.run(measure_session_memory(script, MEMORY_SESSIONS, NUM_CHANNELS))
    print_memory(console, memory)
    batching = asyncio.run(measure_batching(model, BATCHED_SESSIONS, threads, repetitions))
    print_batching(console, model, batching)
    silent_race = asyncio.run(measure_silent_race(model, threads, 2 * repetitions + 1))
    print_silent_race(console, silent_race)
    soaked = asyncio.run(soak(minutes, console)) if minutes else None
    click.echo(json.dumps(figures(loads, memory, batching, silent_race, soaked)))
    if soaked is not None and not soaked.flat:
        sys.exit(1)


if __name__ == "__main__":
    main()
