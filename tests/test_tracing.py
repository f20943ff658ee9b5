"""Spans of forwards and rounds: their times, their parents, what they tell, and when there are none."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from concurrent import futures
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased

from acespec.cloud_verifier.observer import BatchReport, RaceReport, RoundReport
from acespec.cloud_verifier.spans import REANCHOR_S, RECENT_BATCHES, SpanObserver, WallClock
from acespec.cloud_verifier.tracing import exporter_names, tracing_observer
from observed_session import CHAINS, DECODED, observed_session

EPOCH_NS = 1_900_000_000 * 10**9
"""The wall clock when the loop's clock stands at 0 s."""
SESSION = "0011223344556677"
OTEL = (
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    "OTEL_TRACES_SAMPLER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
)


class Traced:
    """An observer whose spans are kept in memory, with clocks that stand at second 100."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        tracer = provider.get_tracer("test")
        self.observer = SpanObserver(tracer, lambda: 100.0, lambda: EPOCH_NS + 100 * 10**9)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())


def batch(started: float, ended: float) -> BatchReport:
    return BatchReport(num_sequences=3, num_tokens=40, prefill_tokens=20, started=started, ended=ended)


def a_round(started: float, ended: float, drafted: int = 6, accepted: int = 4) -> RoundReport:
    return RoundReport(SESSION, "acme", drafted, accepted, started - 0.25, started, ended)


def test_spans_have_the_reports_times_by_the_wall_clock() -> None:
    traced = Traced()
    traced.observer.batch(batch(99.5, 99.75))
    traced.observer.round(a_round(99.5, 99.875))
    times = [(span.name, span.start_time, span.end_time) for span in traced.spans]
    assert times == [
        ("batch", EPOCH_NS + 99_500_000_000, EPOCH_NS + 99_750_000_000),
        ("round", EPOCH_NS + 99_250_000_000, EPOCH_NS + 99_875_000_000),
    ]


def test_a_round_stands_below_the_forward_it_was_in() -> None:
    traced = Traced()
    traced.observer.batch(batch(1.0, 2.0))
    traced.observer.batch(batch(2.0, 3.0))
    traced.observer.round(a_round(1.0, 2.0))
    traced.observer.round(a_round(2.0, 3.0))
    first, second, *rounds = traced.spans
    assert [span.parent for span in (first, second)] == [None, None]
    assert [span.parent for span in rounds] == [first.context, second.context]
    assert [span.context.trace_id for span in rounds] == [first.context.trace_id, second.context.trace_id]


def test_a_race_s_step_is_a_span_of_its_own_kind() -> None:
    traced = Traced()
    traced.observer.batch(batch(1.0, 2.0))
    traced.observer.race(RaceReport(SESSION, "acme", 7, 4, 9, 2, 0.75, 1.0, 2.0))
    first, step = traced.spans
    assert (step.name, step.parent) == ("race", first.context)
    assert dict(step.attributes or {}) == {
        "acespec.session": SESSION,
        "acespec.tenant": "acme",
        "acespec.drafted": 7,
        "acespec.committed": 4,
        "acespec.queue_seconds": 0.25,
    }


def test_every_round_of_a_verifier_stands_below_its_forward() -> None:
    traced = Traced()
    observed_session(traced.observer)
    batches = {span.context.span_id: span for span in traced.spans if span.name == "batch"}
    below = [span for span in traced.spans if span.name != "batch"]
    assert [span.name for span in below] == ["round"] * len(CHAINS) + ["decode"] * DECODED
    for span in below:
        assert span.parent is not None
        batch = batches[span.parent.span_id]
        assert span.end_time == batch.end_time
    accepted = [(span.attributes or {})["acespec.accepted"] for span in below]
    assert accepted == [length - 1 for length in CHAINS] + [0] * DECODED


def test_a_round_whose_forward_is_long_past_has_a_trace_of_its_own() -> None:
    traced = Traced()
    for index in range(RECENT_BATCHES + 1):
        traced.observer.batch(batch(float(index), index + 0.5))
    traced.observer.round(a_round(0.0, 0.5))
    traced.observer.round(a_round(1.0, 1.5))
    forgotten, remembered = traced.spans[-2:]
    assert forgotten.parent is None
    assert remembered.parent == traced.spans[1].context


def test_spans_tell_how_much_and_for_whom_but_no_tokens() -> None:
    traced = Traced()
    traced.observer.batch(batch(1.0, 2.0))
    traced.observer.round(a_round(1.0, 2.0))
    traced.observer.round(a_round(1.0, 2.0, drafted=0, accepted=0))
    forward, chain, decoded = traced.spans
    assert dict(forward.attributes or {}) == {
        "acespec.batch.sequences": 3,
        "acespec.batch.tokens": 40,
        "acespec.batch.prefill_tokens": 20,
    }
    assert dict(chain.attributes or {}) == {
        "acespec.session": SESSION,
        "acespec.tenant": "acme",
        "acespec.drafted": 6,
        "acespec.accepted": 4,
        "acespec.queue_seconds": 0.25,
    }
    assert decoded.name == "decode"


def test_a_sampler_keeps_a_forward_with_all_its_rounds_or_drops_it() -> None:
    traced = Traced(ParentBased(TraceIdRatioBased(0.5)))
    for index in range(200):
        traced.observer.batch(batch(float(index), index + 0.5))
        for _ in range(3):
            traced.observer.round(a_round(float(index), index + 0.5))
    traces: dict[int, list[str]] = {}
    for span in traced.spans:
        traces.setdefault(span.context.trace_id, []).append(span.name)
    # Binomial(200, 0.5): outside of 60..140 with a probability below 1e-8.
    assert 60 < len(traces) < 140
    assert all(names == ["batch", "round", "round", "round"] for names in traces.values())


def test_the_clock_follows_a_wall_clock_that_is_set() -> None:
    now = {"loop": 10.0, "wall": 5_000}
    clock = WallClock(lambda: now["loop"], lambda: int(now["wall"]))
    assert clock.to_wall_ns(10.0) == 5_000
    now.update(loop=10.0 + REANCHOR_S, wall=9_000)
    assert clock.to_wall_ns(10.0 + REANCHOR_S) == 5_000 + int(REANCHOR_S * 1e9)
    now.update(loop=11.0 + REANCHOR_S, wall=10**9)
    assert clock.to_wall_ns(11.0 + REANCHOR_S) == 10**9


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}, ["otlp_proto_grpc"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4317"}, ["otlp_proto_grpc"]),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp_proto_grpc", "console"]),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            ["otlp_proto_http"],
        ),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}, []),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "True"}, []),
    ],
)
def test_opentelemetrys_variables_say_where_spans_go(environment: dict[str, str], names: list[str]) -> None:
    assert exporter_names(environment) == names


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in OTEL:
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("no_variables")
def test_without_variables_there_is_no_observer() -> None:
    assert tracing_observer() is None


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk.trace"])
def test_without_the_sdk_there_is_no_observer(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setitem(sys.modules, missing, None)
    with caplog.at_level(logging.DEBUG):
        assert tracing_observer() is None
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert record.getMessage() == f"no traces: {missing} is not installed (acespec[tracing] brings it)"


@pytest.mark.usefixtures("no_variables")
@pytest.mark.parametrize(
    ("variables", "cause"),
    [
        ({"OTEL_TRACES_EXPORTER": "smoke_signals"}, "no exporter 'smoke_signals' is installed"),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "max_queue_size"),
    ],
)
def test_what_is_wrong_with_traces_is_told_in_one_line_and_does_no_harm(
    variables: dict[str, str], cause: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tracing_observer() is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("no traces: ")
    assert cause in record.getMessage()
    assert "\n" not in record.getMessage()


SCRIPT = """
import asyncio
from acespec.cloud_verifier.observer import BatchReport, RoundReport
from acespec.cloud_verifier.tracing import tracing_observer

async def main():
    observer = tracing_observer()
    now = asyncio.get_running_loop().time()
    observer.batch(BatchReport(1, 5, 0, now - 0.25, now))
    observer.round(RoundReport("00" * 16, "acme", 4, 2, now - 0.5, now - 0.25, now))

asyncio.run(main())
"""


def report_to(endpoint: str, **variables: str) -> None:
    """Report a forward and a round in a process of its own, which sends its spans as it ends."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_SERVICE_NAME": "verifier-7", **variables}
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, env=environment, timeout=25)


def test_a_collector_gets_the_spans_of_a_process_that_ends() -> None:
    received: list[Any] = []

    class Collector(pb_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the .proto's name
            received.append(request)
            return pb.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(1))
    pb_grpc.add_TraceServiceServicer_to_server(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    before = time.time_ns()
    report_to(f"http://127.0.0.1:{port}")
    after = time.time_ns()
    server.stop(None).wait()

    (of_resource,) = [resource for request in received for resource in request.resource_spans]
    named = {item.key: item.value.string_value for item in of_resource.resource.attributes}
    assert named["service.name"] == "verifier-7"
    spans = [span for scope in of_resource.scope_spans for span in scope.spans]
    assert [span.name for span in spans] == ["batch", "round"]
    assert spans[1].parent_span_id == spans[0].span_id
    assert all(before < span.end_time_unix_nano < after for span in spans)


def test_a_collector_that_is_gone_holds_up_the_end_of_the_process_for_seconds_only() -> None:
    """The SDK alone would wait for 30 s, which the limit below tells from the 3 s of ``FLUSH_S``."""
    with socket.socket() as bound:  # and not listening: every connection to it is refused
        bound.bind(("127.0.0.1", 0))
        report_to(f"http://127.0.0.1:{bound.getsockname()[1]}", OTEL_EXPORTER_OTLP_TIMEOUT="600")
