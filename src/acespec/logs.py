"""How log records are written: lines to read, or one JSON object a line for a machine to read."""

from __future__ import annotations

import json
import logging
import math
from datetime import datetime, timezone
from typing import Any, Literal, TypeAlias, get_args

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"
"""What JSON can say."""

MAX_DEPTH = 4
"""Fields of a record nested deeper are written as text: they may contain themselves."""
NOT_EXTRA = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""What every record has, or gets from a formatter; the rest of it is ``extra``."""


def configure_logging(verbosity: int) -> None:
    """Write records to standard error: 0 from WARNING on, 1 from INFO on, 2 and more from DEBUG on.

    As text, until ``write_json`` is called. Where logging has been configured already, level and place stay
    as they are (``logging.basicConfig``).
    """
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG)
    logging.basicConfig(level=level, format=TEXT)


def write_json() -> None:
    """Write records as JSON from now on, wherever they went so far.

    The warnings of Python's ``warnings`` become records too, so that they do not stand between the objects.
    """
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter())
    logging.captureWarnings(True)


class JsonFormatter(logging.Formatter):
    """One ASCII JSON object a record, whatever the record holds.

    ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``; ``exception`` and ``stack`` where there are
    such; then the fields of ``extra``. Line breaks are escaped, so that a record is one line and only one.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc)
        fields: dict[str, Plain] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": text(record.name),
            "message": message_of(record),
        }
        if record.exc_info:
            fields["exception"] = text(self.formatException(record.exc_info))
        if record.stack_info:
            fields["stack"] = text(self.formatStack(record.stack_info))
        for name, value in vars(record).items():
            if name not in NOT_EXTRA:
                fields[f"{name}_" if name in fields else text(name)] = plain(value)
        return json.dumps(fields, allow_nan=False)


def message_of(record: logging.LogRecord) -> str:
    """The record's message; if its arguments do not fit, the template and what was wrong with them."""
    try:
        return text(record.getMessage())
    except Exception as error:
        # Raising would let logging write a traceback between the objects, and lose the record.
        return f"{text(record.msg)} ({type(error).__name__} in its arguments)"


def plain(value: Any, depth: int = 0) -> Plain:
    """``value`` in JSON's types; what has no equivalent there, or one few readers take, as text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if depth < MAX_DEPTH:
        if isinstance(value, dict):
            return {text(key): plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [plain(item, depth + 1) for item in value]
    return text(value)


def text(value: object) -> str:
    """``str(value)`` without half surrogate pairs, or the value's type if it has no text."""
    try:
        return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    except Exception:  # whatever an object's own code raises
        return f"<{type(value).__name__} without text>"
