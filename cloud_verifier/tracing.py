"""Traces of the verifier, where OpenTelemetry is installed and its variables say where to send them."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from acespec import __version__
from acespec.cloud_verifier.observer import Observer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
OTLP_EXPORTERS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
"""The exporter packages' names, by what OTEL_EXPORTER_OTLP_PROTOCOL may say."""
FLUSH_S = 3.0
"""How long the end of the process may wait for the last spans to be sent."""


def tracing_observer() -> Observer | None:
    """An observer that makes spans of reports; None where no traces are wanted or possible.

    Configured by OpenTelemetry's own environment variables, which its SDK reads: exporter, endpoint, sampler,
    resource, queue. Traces never keep the verifier from serving: what is wrong with them is logged.
    """
    names = exporter_names(os.environ)
    if not names:
        return None
    try:
        import opentelemetry.sdk.trace  # noqa: F401 - asks only whether it is there
    except ImportError as error:
        logger.debug("no traces: %s is not installed (acespec[tracing] brings it)", error.name)
        return None
    try:
        return _observer([load_exporter(name) for name in names])
    except Exception as error:  # whatever an exporter's code makes of its variables
        logger.warning(
            "no traces: %s; check the OTEL_ variables", " ".join(str(error).split()) or repr(error)
        )
        return None


def exporter_names(environment: Mapping[str, str]) -> list[str]:
    """The exporters asked for: those of OTEL_TRACES_EXPORTER, or OTLP's if there is an endpoint for it."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    names = [name.strip() for name in environment.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()]
    if not names and any(environment.get(variable) for variable in ENDPOINTS):
        names = ["otlp"]
    if "none" in names:
        return []
    protocol = (
        environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "grpc"
    )
    return [OTLP_EXPORTERS.get(protocol, protocol) if name == "otlp" else name for name in names]


def load_exporter(name: str) -> SpanExporter:
    """The installed exporter of that name, configured by its variables. Raises ``LookupError``."""
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        raise LookupError(f"no exporter {name!r} is installed")
    exporter: SpanExporter = found[0].load()()
    return exporter


def _observer(exporters: list[SpanExporter]) -> Observer:
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from acespec.cloud_verifier.spans import SpanObserver

    resource = Resource.create({"service.name": "acespec-verifier", "service.version": __version__})
    resource = resource.merge(OTELResourceDetector().detect())  # the user's names go before ours
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    at_exit_within(FLUSH_S, provider.shutdown)
    return SpanObserver(provider.get_tracer("acespec.cloud_verifier", __version__))


def at_exit_within(seconds: float, finish: Callable[[], None]) -> None:
    """Call ``finish`` at the end of the process, and wait for it so long at most.

    The SDK's own way waits for half a minute where no collector answers. The thread is started now: from
    Python 3.12 on none can be started at the end.
    """
    ending = threading.Event()

    def wait_and_finish() -> None:
        ending.wait()
        finish()

    thread = threading.Thread(target=wait_and_finish, name="traces-at-exit", daemon=True)
    thread.start()

    def end() -> None:
        ending.set()
        thread.join(seconds)

    atexit.register(end)
