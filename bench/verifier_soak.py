"""Sessions that come, work, lose their streams and go, for minutes: the server's memory must stay flat.

Run as ``make soak-verifier``; the last line is one JSON object, and the exit status is 1 if memory grew.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click
import numpy as np
from rich.console import Console

from acespec.bench.processes import Service
from acespec.bench.verifier_load import Edge, Streams, connect
from acespec.bench.verifier_memory import process_of, resident_bytes
from acespec.bench.verifier_script import Script
from acespec.bench.verifier_server import SERVER
from acespec.bench.verifier_zero_cost import zero_cost_script

NUM_SESSIONS = 64
NUM_CHANNELS = 8
SAMPLE_S = 2.0
WARM_UP_SHARE = 1 / 3
"""Of the run: sessions that were left behind pile up to the server's bound first."""
ALLOWED_GROWTH_MIB = 4.0
"""From the warm-up to the end, by the fitted line: the allocator's own unrest."""
DROP_SHARE = 0.02
"""Of all rounds, those after which the stream breaks off and the session is resumed."""
ABANDON_SHARE = 0.25
"""Of all sessions, those that are never closed."""
MOST_ROUNDS = 200
"""Of one session."""


@dataclass(frozen=True)
class SoakReport:
    """How the server's resident memory went."""

    minutes: float
    rounds_per_s: float
    num_sessions: int
    """Opened in all."""
    num_resumes: int
    max_mib: float
    slope_kib_per_minute: float
    """Of the line fitted to what follows the warm-up."""
    growth_mib: float
    """Of that line, from the warm-up to the end."""

    @property
    def flat(self) -> bool:
        return self.growth_mib <= ALLOWED_GROWTH_MIB


@dataclass
class _Counts:
    rounds: int = 0
    sessions: int = 0
    resumes: int = 0


async def soak(minutes: float, console: Console, sample_s: float = SAMPLE_S) -> SoakReport:
    """Load a server for so long, and sample its memory every ``sample_s`` seconds.

    Raises ``AcespecError`` if any session fails.
    """
    counts, samples = _Counts(), []
    script = zero_cost_script(prompt_length=256, num_rounds=MOST_ROUNDS)
    begin = time.perf_counter()
    end = begin + 60.0 * minutes
    async with (
        Service(module=SERVER) as server,
        connect(server.address, NUM_CHANNELS) as channels,
    ):
        edges = [
            asyncio.ensure_future(_come_and_go(channels[index % NUM_CHANNELS], script, index, end, counts))
            for index in range(NUM_SESSIONS)
        ]
        while time.perf_counter() < end:
            done, _ = await asyncio.wait(edges, timeout=sample_s, return_when=asyncio.FIRST_EXCEPTION)
            for edge in done:
                edge.result()
            now = time.perf_counter() - begin
            samples.append((now, resident_bytes(process_of(server)) / 2**20))
            if len(samples) % 15 == 0:
                console.print(f"{now:5.0f} s  {samples[-1][1]:7.1f} MiB  {counts.rounds / now:6.0f} rounds/s")
        await asyncio.gather(*edges)
    return _report(minutes, counts, samples)


async def _come_and_go(streams: Streams, script: Script, seed: int, end: float, counts: _Counts) -> None:
    """One session after the other until ``end``."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    while time.perf_counter() < end:
        edge = Edge(streams, script)
        await edge.open()
        counts.sessions += 1
        for _ in range(chance.randrange(1, MOST_ROUNDS + 1)):
            await edge.round()
            counts.rounds += 1
            if chance.random() < DROP_SHARE:
                await edge.drop()
                await edge.resume()
                counts.resumes += 1
        if chance.random() < ABANDON_SHARE:
            await edge.drop()
        else:
            await edge.close()


def _report(minutes: float, counts: _Counts, samples: Sequence[tuple[float, float]]) -> SoakReport:
    slope, growth = fitted(samples)
    return SoakReport(
        minutes=minutes,
        rounds_per_s=counts.rounds / (60.0 * minutes),
        num_sessions=counts.sessions,
        num_resumes=counts.resumes,
        max_mib=max(mib for _, mib in samples),
        slope_kib_per_minute=slope,
        growth_mib=growth,
    )


def fitted(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """A line through the samples (seconds, MiB) behind the warm-up: its KiB a minute, and its MiB in all."""
    seconds, mib = np.array(samples[int(WARM_UP_SHARE * len(samples)) :]).T
    slope = float(np.polyfit(seconds - seconds[0], mib, 1)[0])
    return slope * 60.0 * 1024.0, slope * float(seconds[-1] - seconds[0])


@click.command()
@click.option("--minutes", type=click.FloatRange(0.2), default=10.0, show_default=True)
def main(minutes: float) -> None:
    """Soak a verifier with a target that costs nothing."""
    console = Console(width=110)
    report = asyncio.run(soak(minutes, console))
    click.echo(json.dumps({name: round(figure, 2) for name, figure in asdict(report).items()}))
    if not report.flat:
        console.print(f"Memory grew by {report.growth_mib:.1f} MiB; {ALLOWED_GROWTH_MIB:g} MiB are unrest.")
        sys.exit(1)


if __name__ == "__main__":
    main()
