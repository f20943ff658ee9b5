"""Forwards and rounds as OpenTelemetry spans; ``tracing`` imports this where OpenTelemetry is installed."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.trace import Tracer, set_span_in_context

from acespec.cloud_verifier.observer import BatchReport, Observer, RaceReport, RoundReport

RECENT_BATCHES = 16
"""Forwards a round may still turn out to have been in."""
REANCHOR_S = 60.0
"""How often the event loop's clock is compared with the wall clock, which may be set meanwhile."""


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class SpanObserver(Observer):
    """One span a forward and, below it, one for each of its rounds: from arrival to decision.

    So a trace shows who shared a forward and how long each waited, and a sampler that decides by trace keeps
    a forward with all its rounds or drops it. Sessions are called what the log calls them.
    """

    def __init__(
        self,
        tracer: Tracer,
        loop_time: Callable[[], float] = loop_time,
        wall_time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """``loop_time`` is the clock of the reports, in seconds; ``wall_time_ns`` counts from 1970."""
        self._tracer = tracer
        self._clock = WallClock(loop_time, wall_time_ns)
        self._recent: OrderedDict[float, Context | None] = OrderedDict()

    def batch(self, report: BatchReport) -> None:
        span = self._tracer.start_span("batch", start_time=self._clock.to_wall_ns(report.started))
        if span.is_recording():
            span.set_attributes(
                {
                    "acespec.batch.sequences": report.num_sequences,
                    "acespec.batch.tokens": report.num_tokens,
                    "acespec.batch.prefill_tokens": report.prefill_tokens,
                }
            )
        self._recent[report.started] = set_span_in_context(span, Context()) if span.is_recording() else None
        if len(self._recent) > RECENT_BATCHES:
            self._recent.popitem(last=False)
        span.end(self._clock.to_wall_ns(report.ended))

    def round(self, report: RoundReport) -> None:
        name = "round" if report.drafted else "decode"
        self._span(name, report, {"acespec.drafted": report.drafted, "acespec.accepted": report.accepted})

    def race(self, report: RaceReport) -> None:
        self._span("race", report, {"acespec.drafted": report.drafted, "acespec.committed": report.committed})

    def _span(self, name: str, report: RoundReport | RaceReport, attributes: dict[str, int]) -> None:
        parent = self._recent.get(report.started, Context())
        if parent is None:
            return  # its forward is not sampled
        span = self._tracer.start_span(
            name, parent, start_time=self._clock.to_wall_ns(min(report.arrived, report.started))
        )
        if span.is_recording():
            span.set_attributes(
                {
                    "acespec.session": report.session,
                    "acespec.tenant": report.tenant,
                    **attributes,
                    "acespec.queue_seconds": max(0.0, report.started - report.arrived),
                }
            )
        span.end(self._clock.to_wall_ns(report.ended))


class WallClock:
    """Says when, by the wall clock, a moment of another clock was."""

    def __init__(self, clock: Callable[[], float], wall_time_ns: Callable[[], int]) -> None:
        self._clock = clock
        self._wall_time_ns = wall_time_ns
        self._offset_ns = 0
        self._anchored = float("-inf")

    def to_wall_ns(self, moment: float) -> int:
        """Nanoseconds since 1970 at ``moment``, which is recent."""
        if moment - self._anchored > REANCHOR_S:
            self._anchored = self._clock()
            self._offset_ns = self._wall_time_ns() - int(self._anchored * 1e9)
        return int(moment * 1e9) + self._offset_ns
