"""SIGTERM and SIGINT, from the begin of ``acespec serve`` to the end of its process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT)
MOST_TAKEN = 2
"""One stops the server, one more cuts its grace short; more can change nothing."""


class StopSignals:
    """What the signals do: end the process, then reach the event loop, then nothing.

    The loop's own handlers would not do. They come late and go early: a signal before them ends a half-made
    server with complaints of gRPC's, and one after them a process that is about to end well.
    """

    def __init__(self) -> None:
        """From now on they end the process at once and silently, as they end any other."""
        self._take: Callable[[signal.Signals], object] = end_process
        self._num_taken = 0
        for number in STOPPING:
            signal.signal(number, self._taken)

    def queue(self) -> asyncio.Queue[signal.Signals]:
        """Where they go from now on: for the running event loop."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[signal.Signals] = asyncio.Queue()

        def arrive(number: signal.Signals) -> None:
            arrived.put_nowait(number)
            if self._num_taken >= MOST_TAKEN:
                self.ignore()

        self._take = lambda number: loop.call_soon_threadsafe(arrive, number)
        return arrived

    def ignore(self) -> None:
        """Let them do nothing any more: the process is about to end."""
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)

    def _taken(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - Python's signature
        self._num_taken += 1
        if self._num_taken <= MOST_TAKEN:  # beyond, no call: within one the next signal's handler would run
            self._take(signal.Signals(number))


def end_process(number: signal.Signals) -> None:
    """End by the signal, so that whoever waits for the process sees what ended it."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)  # the first process of a container survives it
