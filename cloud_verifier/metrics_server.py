"""The HTTP server that Prometheus reads metrics from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server

from acespec.cloud_verifier.addresses import authority, cannot_listen


@dataclass(frozen=True)
class MetricsServer:
    """An HTTP server that answers Prometheus, from a thread of its own."""

    address: str
    """``host:port``, with the port in use."""
    stop: Callable[[], None]
    """Stop listening; returns once the port is free."""


def serve_metrics(host: str, port: int, registry: CollectorRegistry) -> MetricsServer:
    """Serve ``registry`` at ``http://host:port/metrics``; port 0 picks a free one.

    Nothing asks who reads it: listen on a loopback address, or where only Prometheus gets through. Raises
    ``AcespecError`` if it cannot listen.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise cannot_listen(host, port, error.strerror or str(error), "metrics-") from error

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    return MetricsServer(authority(host, server.server_port), stop)
