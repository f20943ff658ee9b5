"""One direction of a relayed connection: bytes wait here until the link would have carried them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from acespec.bench.link import SEGMENT_BYTES, DelayLine

MAX_HELD_BYTES = 1 << 20
"""Bytes one direction may hold back; then its sender is made to wait, as a full router queue would."""


class Clock(Protocol):
    """What the relay needs of an event loop's clock; tests pass one they move by hand."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Any: ...


class Source(Protocol):
    """Where a pipe's bytes come from."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Sink(Protocol):
    """Where a pipe's bytes go."""

    def write(self, data: bytes, /) -> None: ...

    def write_eof(self) -> None: ...

    def close(self) -> None: ...


class Pipe:
    """Carries bytes from a source to a sink through a ``DelayLine``.

    Timers of equal time may fire in any order, so there is a queue and one timer for its head.
    """

    def __init__(
        self, clock: Clock, line: DelayLine, source: Source, sink: Sink, on_end: Callable[[], None]
    ) -> None:
        self.bytes_in = 0
        self.ended = False
        """The end of the stream has come out."""
        self._clock = clock
        self._line = line
        self._source = source
        self._sink = sink
        self._on_end = on_end
        self._queue: deque[tuple[float, bytes | None]] = deque()  # None: the end of the stream
        self._held = 0
        self._source_gone = False
        self._sink_gone = False
        self._sink_full = False
        self._paused = False

    def feed(self, data: bytes) -> None:
        """Bytes entered the link."""
        self.bytes_in += len(data)
        for start in range(0, len(data), SEGMENT_BYTES):
            self._enqueue(data[start : start + SEGMENT_BYTES])
        self._steer_source()

    def feed_end(self) -> None:
        """The source will send no more; it may still receive."""
        self._enqueue(None)

    def source_lost(self) -> None:
        """The source is gone. What it sent still arrives, then the sink is closed."""
        self._source_gone = True
        if self.ended:
            self._sink.close()
        else:
            self._enqueue(None)

    def sink_lost(self) -> None:
        """The sink is gone: nothing can be delivered any more."""
        self._sink_gone = True
        self._queue.clear()
        self._held = 0
        self._steer_source()

    def sink_full(self, full: bool) -> None:
        """The sink's own buffer filled up, or emptied."""
        self._sink_full = full
        self._steer_source()

    def _enqueue(self, item: bytes | None) -> None:
        if self._sink_gone:
            return
        size = 0 if item is None else len(item)
        self._held += size
        self._queue.append((self._line.due(self._clock.time(), size), item))
        if len(self._queue) == 1:
            self._clock.call_at(self._queue[0][0], self._deliver)

    def _deliver(self) -> None:
        """Let out what is due, and set the timer for what is not."""
        while self._queue and self._queue[0][0] <= self._clock.time():
            _, item = self._queue.popleft()
            if item is None:
                self._end()
            else:
                self._held -= len(item)
                self._sink.write(item)
        self._steer_source()
        if self._queue:
            self._clock.call_at(self._queue[0][0], self._deliver)

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            try:
                self._sink.write_eof()
            except OSError:  # it was reset after its own end, when nobody read from it any more
                self._sink.close()
            self._on_end()
        if self._source_gone:
            self._sink.close()

    def _steer_source(self) -> None:
        pause = (self._held > MAX_HELD_BYTES or self._sink_full) and not self._sink_gone
        if pause != self._paused and not self._source_gone:
            self._paused = pause
            (self._source.pause_reading if pause else self._source.resume_reading)()
