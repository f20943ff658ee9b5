"""The processes of a tensor-parallel target, connected by torch.distributed, and their end if one is lost."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from acespec.cloud_verifier.tensor_parallel import LOST_EXIT_STATUS, TimeLimits, World
from acespec.cloud_verifier.tensor_parallel_engine import Agreement
from acespec.cloud_verifier.tensor_parallel_messages import Words
from acespec.errors import AcespecError

logger = logging.getLogger(__name__)

FRAME_WORDS = 1024
"""Words every message is padded to; what is longer takes a second broadcast."""


def end_process(reason: str) -> NoReturn:
    """End at once, whatever other threads wait for: a supervisor starts the group again."""
    logger.critical("this process of a tensor-parallel target ends: %s", reason)
    os._exit(LOST_EXIT_STATUS)


class Watchdog:
    """Calls ``on_late`` with what was going on if it outlasts its time. For one piece of work at a time."""

    def __init__(self, on_late: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._on_late = on_late
        self._clock = clock
        self._work: tuple[float, str] | None = None  # the deadline, and what would be late

    @contextmanager
    def limit(self, seconds: float, late: str) -> Iterator[None]:
        """Within it, ``late`` is the case once ``seconds`` are over."""
        outer, self._work = self._work, (self._clock() + seconds, f"{late} in {seconds:g} s")
        try:
            yield
        finally:
            self._work = outer

    def check(self) -> None:
        work = self._work
        if work is not None and self._clock() > work[0]:
            self._on_late(work[1])

    def start(self, check_every_s: float = 0.5) -> None:
        """Check from a thread of its own from now on."""

        def watch() -> None:
            while True:
                time.sleep(check_every_s)
                self.check()

        threading.Thread(target=watch, name="tensor-parallel-watchdog", daemon=True).start()


class TorchRanks:
    """``Ranks`` over a gloo group of its own, beside the one the model's shards talk over.

    Commands are int64 tensors in the CPU's memory and never objects, which would be pickled. Any call that
    finds another rank gone, or waits too long, ends the process through ``on_lost``.
    """

    def __init__(self, limits: TimeLimits, watchdog: Watchdog, on_lost: Callable[[str], NoReturn]) -> None:
        """All ranks make it at the same time, in a process that has joined the others."""
        self._limits = limits
        self._watchdog = watchdog
        self._on_lost = on_lost
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=limits.load_s))
        dist.barrier(group=self._group)  # connects all ranks now: later a lost one is noticed at once

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    def send(self, words: Words) -> None:
        frame = torch.zeros(FRAME_WORDS, dtype=torch.int64)
        message = torch.from_numpy(words)
        inside = message[: FRAME_WORDS - 1]
        frame[0] = len(message)
        frame[1 : 1 + len(inside)] = inside
        with self._talking(self._limits.silence_s, "another process has not taken a command"):
            dist.broadcast(frame, src=0, group=self._group)
            if len(message) > len(inside):
                dist.broadcast(message[len(inside) :], src=0, group=self._group)

    def receive(self) -> Words:
        frame = torch.empty(FRAME_WORDS, dtype=torch.int64)
        with self._talking(self._limits.silence_s, "rank 0 has given no sign of life"):
            dist.broadcast(frame, src=0, group=self._group)
            length = int(frame[0])
            rest = torch.empty(max(0, length - (FRAME_WORDS - 1)), dtype=torch.int64)
            if len(rest):
                dist.broadcast(rest, src=0, group=self._group)
        return np.concatenate([frame[1 : 1 + length].numpy(), rest.numpy()])

    def step_limit(self) -> AbstractContextManager[None]:
        return self._watchdog.limit(self._limits.step_s, "a forward has not ended")

    def agree(self, failed: bool) -> Agreement:
        worst = torch.tensor([self.rank if failed else -1])
        seconds = self._limits.failed_step_s if failed else self._limits.step_s
        with self._talking(seconds, "the other processes have not ended a forward"):
            dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=self._group)
        rank = int(worst[0])
        return Agreement(failed_rank=None if rank < 0 else rank)

    def answer(self) -> None:
        with self._talking(self._limits.silence_s, "another process has not answered"):
            dist.barrier(group=self._group)

    def loaded(self) -> None:
        """Wait until all ranks have loaded their shards."""
        with self._talking(self._limits.load_s, "the other processes have not loaded the target"):
            dist.barrier(group=self._group)

    @contextmanager
    def _talking(self, seconds: float, late: str) -> Iterator[None]:
        try:
            with self._watchdog.limit(seconds, late):
                yield
        except RuntimeError as error:  # torch.distributed's errors all are
            reason = " ".join(str(error).split())[:200]
            self._on_lost(f"another process is gone ({reason})")


@contextmanager
def joined(world: World, device: str, limits: TimeLimits, watchdog: Watchdog) -> Iterator[None]:
    """Join the other processes on this rank's ``device``, and leave them at the end.

    Raises ``AcespecError`` if the model would not run on that device, or they do not meet.
    """
    place = rank_device(world, device)
    if place.type != "cpu":
        torch.accelerator.set_device_index(place)
    backend = dist.get_default_backend_for_device(place)
    timeout = timedelta(seconds=limits.load_s)
    try:
        dist.init_process_group(
            backend,
            store=meeting_place(timeout),
            rank=world.rank,
            world_size=world.size,
            timeout=timeout,
            device_id=place if backend == "nccl" else None,
        )
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise AcespecError(
            f"the processes of --tp {world.size} do not meet ({reason}); start them with torchrun"
        ) from error
    try:
        yield
    finally:
        with watchdog.limit(limits.silence_s, "the connections between the processes have not closed"):
            dist.destroy_process_group()


def meeting_place(timeout: timedelta) -> Store:
    """Where the processes find one another's addresses: torchrun's store.

    It outlives the processes, so those that torchrun starts again look for their own addresses there, and
    not for those of their predecessors.
    """
    store, _, _ = next(rendezvous("env://", timeout=timeout))
    return PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def rank_device(world: World, device: str) -> torch.device:
    """The device of this rank. Raises ``AcespecError`` if Transformers would not use it.

    Transformers puts each rank's shard on the machine's accelerator of the rank's local number, and on the
    CPU only where there is none.
    """
    kind, colon, _ = device.partition(":")
    accelerator = torch.accelerator.current_accelerator()
    available = "cpu" if accelerator is None else accelerator.type
    if kind != available:
        remedy = f"use --device {available}"
        if kind == "cpu":
            remedy += f", or hide its {available} devices from the process"
        raise AcespecError(f"--tp runs on this machine's {available}, not on {device}; {remedy}")
    if colon:
        raise AcespecError(f"--tp gives each process a device of its own, so {device} is none; use {kind}")
    if kind == "cpu":
        return torch.device(kind)
    count = torch.accelerator.device_count()
    if world.local_rank >= count:
        raise AcespecError(
            f"--tp {world.size} gives each process a {kind} device of its own and there are {count}; lower it"
        )
    return torch.device(kind, world.local_rank)
