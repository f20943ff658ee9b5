"""What ``acespec serve`` was asked for, as the parts of the server take it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.security_settings import SecuritySettings, security_settings
from acespec.cloud_verifier.server_options import ServerOptions
from acespec.errors import AcespecError
from acespec.logs import LogFormat
from acespec.wire import Eagerness

NO_RACE = "off"
"""What says that nobody races."""


@dataclass(frozen=True)
class TargetSettings:
    """Which target, and how it runs."""

    model: str
    device: str
    dtype: str
    device_map: str | None
    tp: int
    """Processes it is spread over; 1: it is not."""
    kv_memory: int | None
    """Bytes; None: a share of what there is."""
    threads: int | None
    pace_forward_ms: float | None


@dataclass(frozen=True)
class ServeSettings:
    """Everything, checked as far as it can be without opening a file."""

    target: TargetSettings
    server: ServerOptions
    security: SecuritySettings
    limits: Limits
    log_format: LogFormat
    metrics_host: str
    metrics_port: int | None
    """None: no metrics are served."""


def serve_settings(values: Mapping[str, Any]) -> ServeSettings:
    """The settings in the options' ``values``, by key. Raises ``AcespecError`` for one out of range."""
    try:
        eagerness = None if values["race_eagerness"] == NO_RACE else Eagerness(values["race_eagerness"])
        limits = filled(Limits, {**values, "race_eagerness": eagerness})
        max_streams = values["max_streams"] or limits.max_sessions + max(1, limits.max_sessions // 4)
        server = filled(ServerOptions, {**values, "max_streams": max_streams})
    except ValueError as error:
        raise AcespecError(str(error)) from error
    if values["tp"] > 1 and values["device_map"] is not None:
        raise AcespecError("--tp and --device-map are two ways to spread a target; choose one")
    return ServeSettings(
        target=filled(TargetSettings, values),
        server=server,
        security=security_settings(values),
        limits=limits,
        log_format=values["log_format"],
        metrics_host=values["metrics_host"],
        metrics_port=values["metrics_port"],
    )


def filled(kind: Any, values: Mapping[str, Any]) -> Any:
    """The dataclass ``kind`` of the options called like its fields, without the ``_s`` of seconds."""
    return kind(**{field.name: values[field.name.removesuffix("_s")] for field in dataclasses.fields(kind)})
