"""``acespec serve --tp N``: one target spread over N processes that torchrun started.

Rank 0 serves edges; the others repeat what it does on their shards. The command needs this file alone; torch
is imported once there is work to do.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from acespec.cloud_verifier.engine import TargetEngine
from acespec.errors import AcespecError

TORCHRUN_SETS = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
"""Environment variables by which a process knows its place."""

LOST_EXIT_STATUS = 75
"""With what a rank ends when another is lost: ``EX_TEMPFAIL`` of sysexits.h, a new start may go well."""


@dataclass(frozen=True)
class World:
    """This process among those that run the target together."""

    rank: int
    local_rank: int
    """Among those on this machine: the number of its device."""
    size: int


@dataclass(frozen=True)
class TimeLimits:
    """How long a rank waits for the others before it takes them for lost.

    A rank whose process is gone is noticed at once on the commands' connection; these are for one that hangs,
    and for a forward over NCCL, which does not see the other end go.
    """

    load_s: float = 3600.0
    """Joining and loading: the slowest rank's disk."""
    step_s: float = 120.0
    """One forward, and until all ranks are through it."""
    failed_step_s: float = 5.0
    """After a forward failed here: the others come out of it in this time, or are stuck in it."""
    silence_s: float = 30.0
    """From one sign of life to the next."""
    heartbeat_s: float = 5.0
    """How often rank 0 gives one, beside the steps."""


def tensor_parallel_world(tp: int, environment: Mapping[str, str] = os.environ) -> World | None:
    """This process's place among ``tp`` that torchrun started; None for ``tp`` 1, which needs no others.

    Raises ``AcespecError`` if torchrun did not start this process, or started another number.
    """
    started = int(environment["WORLD_SIZE"]) if environment.keys() >= TORCHRUN_SETS else 1
    if tp == started:
        if tp == 1:
            return None
        return World(int(environment["RANK"]), int(environment["LOCAL_RANK"]), started)
    if tp > 1:
        raise AcespecError(
            f"--tp {tp} takes {tp} processes and there {'is' if started == 1 else 'are'} {started}; "
            f"start them with: torchrun --standalone --nproc-per-node {tp} -m acespec serve ... --tp {tp}"
        )
    raise AcespecError(f"torchrun started {started} processes for one target; add --tp {started}")


def serve_over_ranks(
    world: World,
    device: str,
    load: Callable[[], TargetEngine],
    serve: Callable[[TargetEngine], None],
    limits: TimeLimits = TimeLimits(),
) -> None:
    """Load this rank's shard, then ``serve`` it on rank 0 and follow rank 0 on the others.

    A rank that finds another lost, or waits beyond ``limits``, ends with ``LOST_EXIT_STATUS``, so that none
    is left over and a supervisor can start all again. Raises what ``load`` and ``serve`` raise.
    """
    from acespec.cloud_verifier.tensor_parallel_engine import LeaderEngine, follow
    from acespec.cloud_verifier.tensor_parallel_group import TorchRanks, Watchdog, end_process, joined

    watchdog = Watchdog(end_process)
    watchdog.start()
    with joined(world, device, limits, watchdog):
        with watchdog.limit(limits.load_s, "the target has not been loaded"):
            ranks = TorchRanks(limits, watchdog, end_process)
            engine = load()
            if world.rank:
                # torchrun passes signals on to all; rank 0 needs the others to finish the rounds under way.
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
            ranks.loaded()
        if world.rank:
            follow(engine, ranks)
        else:
            with LeaderEngine(engine, ranks, heartbeat_s=limits.heartbeat_s) as leader:
                serve(leader)
