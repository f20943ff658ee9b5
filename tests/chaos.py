"""Generations through trouble: ``python tests/chaos.py --scenarios 200``; one alone: ``--only NUMBER``.

Every scenario is a real generation over real gRPC through a relay that mistreats its connections, with a
server process that is killed in mid-round and started again with empty memory. The text must be the one the
definition gives, and each token must be delivered once and in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np
from numpy.typing import NDArray

from acespec.compute import InlineRunner
from acespec.edge_runtime.backoff import BackoffSettings, Patience
from acespec.edge_runtime.draft_model import DraftModel
from acespec.edge_runtime.generate import generate
from acespec.edge_runtime.grpc_transport import GrpcConnector
from acespec.edge_runtime.outage import OnOutage, OutageSettings
from acespec.edge_runtime.request import DraftSettings, GenerationRequest
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from acespec.speculation import SamplingParams
from acespec.wire import AcceptanceMode, Open
from chaos_relay import ChaosRelay, ConnectionPlan, Fault, draw_plan
from coupled_text import coupled_text, remembered
from fake_draft import Table, TableDraftEngine, hashed_table
from server_process import Command, ServerProcess
from table_server import MAX_CONTEXT, VOCAB, table_server

SCENARIOS_PER_SERVER = 10
"""That share a server process, and suffer together when it is killed."""
GIVE_UP_S = 180.0
"""A generation that takes longer has failed: undisturbed it takes about a second, a restart some more."""
FORWARD_MS = 4.0
SALT = 1


@dataclass(frozen=True)
class Target:
    """A served target, as its edges know it."""

    command: Command
    table: Table
    """Its logits, for the expected text."""
    vocab_size: int
    max_context: int
    vocabulary_hash: str


@dataclass(frozen=True)
class Scenario:
    """One generation and its trouble, all drawn from its number."""

    number: int
    request: GenerationRequest
    settings: DraftSettings
    drafts: bool
    """Whether there is a draft; else the cloud decodes alone."""
    closeness: float
    """Share of tokens the draft guesses."""
    on_outage: OnOutage
    pad_sizes: bool
    plans: tuple[ConnectionPlan, ...]
    """Of the first connections; later ones are left in peace."""
    kill_at: tuple[int, ...]
    """The server is killed when this generation has so many tokens."""


@dataclass
class Outcome:
    """What became of a scenario."""

    scenario: Scenario
    failure: str = ""
    """Why it failed; empty if it did not."""
    num_tokens: int = 0
    reconnects: int = 0
    connections: int = 0
    overtaken: int = 0
    """Connections whose bytes reached the server after those of a newer one."""
    seconds: float = 0.0
    faults: Counter[Fault] = field(default_factory=Counter)


def draw_scenario(seed: int, number: int, vocab_size: int) -> Scenario:
    """Scenario ``number`` of a run with ``seed``."""
    draws = random.Random(f"{seed} {number}")
    new_tokens = draws.randint(20, 60)
    request = GenerationRequest(
        prompt=tuple(draws.randrange(vocab_size) for _ in range(draws.randint(1, 30))),
        end_token_ids=draws.choice([(), (), (vocab_size - 1,)]),
        max_new_tokens=new_tokens,
        sampling=draws.choice(
            [
                SamplingParams(),
                SamplingParams(temperature=0.0),
                SamplingParams(temperature=1.3, top_k=8, repetition_penalty=1.1),
            ]
        ),
        seed=draws.getrandbits(64),
    )
    gamma = draws.randint(1, 6)
    return Scenario(
        number,
        request,
        DraftSettings(gamma=gamma, budget=gamma + draws.randint(0, 8)),
        drafts=draws.random() < 0.75,
        closeness=draws.choice([0.3, 0.7, 0.95]),
        on_outage=draws.choice([OnOutage.WAIT, OnOutage.WAIT, OnOutage.DRAFT]),
        pad_sizes=draws.random() < 0.2,
        plans=tuple(draw_plan(draws) for _ in range(draws.randint(1, 5))),
        kill_at=tuple(draws.randrange(new_tokens) for _ in range(draws.choice([0, 0, 0, 1]))),
    )


def guessing_table(truth: Sequence[int], closeness: float, vocab_size: int, seed: int) -> Table:
    """A draft that knows the text and guesses so many of its tokens; off the text it guesses anything."""

    def logits(path: tuple[int, ...]) -> NDArray[np.float32]:
        draws = random.Random(hashlib.sha256(repr((seed, path)).encode()).digest())
        knows = draws.random() < closeness and len(path) < len(truth) and list(path) == truth[: len(path)]
        peak = truth[len(path)] if knows else draws.randrange(vocab_size)
        row = np.zeros(vocab_size, dtype=np.float32)
        row[peak] = 20.0
        return row

    return logits


def expected_text(scenario: Scenario, target: Target) -> list[int]:
    """All tokens of the undisturbed generation, by the definition."""
    request = scenario.request
    return coupled_text(
        target.table,
        Open(
            model="",
            fingerprint="",
            vocabulary_hash=target.vocabulary_hash,
            vocab_size=target.vocab_size,
            end_token_ids=request.end_token_ids,
            sampling=request.sampling,
            seed=request.seed,
            mode=AcceptanceMode.COUPLED,
            committed=request.prompt,
            prompt_length=len(request.prompt),
            token_limit=request.token_limit,
        ),
        target.max_context,
    )


class Run:
    """Scenarios on one server process."""

    def __init__(self, target: Target, server: ServerProcess, *, disturbed: bool = True) -> None:
        """``disturbed``: False leaves all connections in peace, and the server alive."""
        self.num_kills = 0
        self._target = target
        self._server = server
        self._disturbed = disturbed
        self._restarting = asyncio.Lock()

    async def outcome(self, scenario: Scenario) -> Outcome:
        """Run one scenario; what fails is kept, not raised."""
        outcome = Outcome(scenario)
        plans = itertools.chain(scenario.plans if self._disturbed else (), itertools.repeat(ConnectionPlan()))
        began = time.monotonic()
        address = ("127.0.0.1", self._server.port)
        async with ChaosRelay(address, plans, scenario.number) as relay:
            try:
                await asyncio.wait_for(self._generate(scenario, relay.address, outcome), GIVE_UP_S)
            except asyncio.TimeoutError:
                outcome.failure = f"not done within {GIVE_UP_S:g} s"
            except Exception as error:
                outcome.failure = f"{type(error).__name__}: {error}"
            outcome.connections, outcome.faults = relay.num_connections, relay.faults
            outcome.overtaken = relay.num_released
        outcome.seconds = time.monotonic() - began
        return outcome

    async def _generate(self, scenario: Scenario, address: str, outcome: Outcome) -> None:
        target, request = self._target, scenario.request
        truth = expected_text(scenario, target)
        delivered: list[int] = []
        kills = iter(sorted(scenario.kill_at) if self._disturbed else ())
        restarts: list[asyncio.Task[None]] = []
        due = next(kills, None)

        def deliver(tokens: list[int]) -> None:
            nonlocal due
            delivered.extend(tokens)
            if due is not None and len(delivered) >= due:
                due = next(kills, None)
                restarts.append(asyncio.ensure_future(self._restart()))

        table = guessing_table(truth, scenario.closeness, target.vocab_size, scenario.number)
        engine = TableDraftEngine(table, target.vocab_size)
        draft = DraftModel(engine, lambda _: dict.fromkeys(engine.buckets, 1.0), InlineRunner())
        result = await generate(
            GrpcConnector(address),
            request,
            target.vocab_size,
            draft if scenario.drafts else None,
            scenario.settings,
            SessionSettings(
                TargetIdentity(vocabulary_hash=target.vocabulary_hash),
                OutageSettings(
                    scenario.on_outage if scenario.drafts else OnOutage.WAIT, GIVE_UP_S, GIVE_UP_S
                ),
                scenario.pad_sizes,
            ),
            deliver,
        )
        await asyncio.gather(*restarts)
        outcome.num_tokens, outcome.reconnects = len(result.tokens), result.metrics.reconnects
        outcome.failure = wrong(result.tokens, result.provisional, delivered, truth[len(request.prompt) :])

    async def _restart(self) -> None:
        """Kill the server in the middle of everyone's rounds, and start it again."""
        async with self._restarting:
            self.num_kills += 1
            await self._server.kill()
            await self._server.start()


def wrong(tokens: list[int], provisional: list[int], delivered: list[int], truth: list[int]) -> str:
    """What is wrong with what a generation gave; empty if nothing is."""
    if tokens != truth:
        return f"another text: {tokens} instead of {truth}"
    if delivered != truth:
        return f"delivered {delivered} of {truth}"
    if provisional:
        return f"provisional tokens at the end: {provisional}"
    return ""


def impatient_edges() -> contextlib.ExitStack:
    """Edges that notice a dead link and come back within tenths of a second, instead of ten seconds."""
    stack = contextlib.ExitStack()
    module = "acespec.edge_runtime.connection"
    stack.enter_context(patch(f"{module}.ATTEMPT_S", 1.0))
    stack.enter_context(patch(f"{module}.Patience", partial(Patience, 1.0)))
    stack.enter_context(patch(f"{module}.BackoffSettings", partial(BackoffSettings, 0.02, 0.3)))
    return stack


def table_target() -> Target:
    """A table behind the real server."""
    table = remembered(hashed_table(VOCAB, SALT))
    return Target(
        lambda port: table_server("--port", str(port), "--salt", str(SALT), "--forward-ms", str(FORWARD_MS)),
        table,
        VOCAB,
        MAX_CONTEXT,
        vocabulary_hash="a" * 64,
    )


def model_target(folder: Path) -> Target:
    """A tiny model with random weights behind ``acespec serve``."""
    from transformers.utils.logging import disable_progress_bar

    from acespec.cloud_verifier.engine import Feed
    from acespec.cloud_verifier.transformers_engine import TransformersEngine
    from tiny_target import write_target_folder

    disable_progress_bar()  # type: ignore[no-untyped-call]
    write_target_folder(folder)
    engine = TransformersEngine.load(folder, threads=1)

    def logits(path: tuple[int, ...]) -> NDArray[np.float32]:
        sequence = engine.open(len(path))
        (rows,) = engine.step([Feed(sequence, np.array(path, dtype=np.int64), num_logits=1)])
        engine.close(sequence)
        return rows[0]

    def command(port: int) -> list[str]:
        options = ("--threads", "1", "--pace-forward-ms", str(FORWARD_MS))
        return [
            sys.executable,
            "-m",
            "acespec",
            "serve",
            "--model",
            str(folder),
            "--port",
            str(port),
            *options,
        ]

    info = engine.info
    return Target(command, remembered(logits), info.vocab_size, info.max_context, info.vocabulary_hash)


async def run_group(
    target: Target, scenarios: Sequence[Scenario], *, disturbed: bool = True
) -> tuple[list[Outcome], int]:
    """Run scenarios side by side on one server; returns what became of them and how often it was killed."""
    async with ServerProcess(target.command) as server:
        run = Run(target, server, disturbed=disturbed)
        outcomes = await asyncio.gather(*(run.outcome(scenario) for scenario in scenarios))
        return outcomes, run.num_kills


def groups(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Scenarios by the server they share."""
    for start in range(0, len(numbers), SCENARIOS_PER_SERVER):
        yield numbers[start : start + SCENARIOS_PER_SERVER]


@click.command()
@click.option("--scenarios", default=200, show_default=True, type=click.IntRange(1))
@click.option("--models", default=40, show_default=True, help="Of them, on a model behind 'acespec serve'.")
@click.option("--seed", default=1, show_default=True)
@click.option("--only", type=int, multiple=True, metavar="NUMBER", help="Run these alone.")
def main(scenarios: int, models: int, seed: int, only: tuple[int, ...]) -> None:
    """Run random scenarios and print what happened. Exit status 1 if any failed."""
    wanted = set(only) or set(range(scenarios))
    num_tables = scenarios - min(models, scenarios)
    failures: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder, impatient_edges():
        click.echo(HEADER)
        total = Line("all")
        for name, numbers in (("table", range(num_tables)), ("model", range(num_tables, scenarios))):
            chosen = [number for number in numbers if number in wanted]
            if not chosen:
                continue
            target = table_target() if name == "table" else model_target(Path(folder))
            for group in groups(chosen):
                drawn = [draw_scenario(seed, number, target.vocab_size) for number in group]
                began = time.monotonic()
                outcomes, kills = asyncio.run(run_group(target, drawn))
                line = Line(f"{name} {group[0]}-{group[-1]}")
                line.add(outcomes, kills, time.monotonic() - began)
                total.add(outcomes, kills, time.monotonic() - began)
                click.echo(str(line))
                failed = [outcome for outcome in outcomes if outcome.failure]
                for outcome in failed:
                    plans = "; ".join(map(str, outcome.scenario.plans))
                    click.echo(f"scenario {outcome.scenario.number} FAILED: {outcome.failure}")
                    click.echo(f"  its connections: {plans}; killed at {outcome.scenario.kill_at}")
                failures += failed
        click.echo(str(total))
    click.echo(f"seed {seed}: {len(wanted) - len(failures)} of {len(wanted)} texts right, each token once")
    if failures:
        sys.exit(1)


FAULTS = [fault for fault in Fault if fault is not Fault.NONE]
COLUMNS = ("tokens", "kills", "connections", *(fault.value for fault in FAULTS), "overtaken")
HEADER = f"{'scenarios':>16}" + "".join(f"{name:>12}" for name in COLUMNS)


class Line:
    """One line of the summary."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0

    def add(self, outcomes: Sequence[Outcome], kills: int, seconds: float) -> None:
        self._seconds += seconds
        self._counts["kills"] += kills
        for outcome in outcomes:
            self._counts["tokens"] += outcome.num_tokens
            self._counts["connections"] += outcome.connections
            self._counts["overtaken"] += outcome.overtaken
            self._counts["failed"] += bool(outcome.failure)
            self._counts.update({fault.value: count for fault, count in outcome.faults.items()})

    def __str__(self) -> str:
        counts = "".join(f"{self._counts[name]:>12}" for name in COLUMNS)
        failed = f"  {self._counts['failed']} FAILED" if self._counts["failed"] else ""
        return f"{self._name:>16}{counts}{self._seconds:>8.1f} s{failed}"


if __name__ == "__main__":
    main()
