"""Log records as text and as JSON: every record is one line, and every line says what the record said."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.logs import MAX_DEPTH, JsonFormatter


class Untellable:
    """An object whose own code fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def written(record: logging.LogRecord) -> dict[str, Any]:
    """The object a handler writes for ``record``. Fails if it is not exactly one line."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    handler.handle(record)
    output = stream.getvalue()
    assert output.endswith("\n")
    assert len(output.splitlines()) == 1
    return dict(json.loads(output, parse_constant=pytest.fail))


def record(message: object, *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("acespec.test").makeRecord(
        "acespec.test", logging.INFO, __file__, 1, message, args, None, extra=extra
    )


def test_a_record_becomes_an_object_with_its_extra_fields() -> None:
    made = record("session %s began", "5e55", tenant="acme", code="INTERNAL", tokens=3, seconds=0.5)
    made.created = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc).timestamp()
    assert written(made) == {
        "time": "2030-01-02T03:04:05.678Z",
        "level": "INFO",
        "logger": "acespec.test",
        "message": "session 5e55 began",
        "tenant": "acme",
        "code": "INTERNAL",
        "tokens": 3,
        "seconds": 0.5,
    }


def test_extra_fields_cannot_take_the_place_of_the_records_own() -> None:
    fields = written(record("true", time="never", level="NONE", exception="none"))
    assert fields["message"] == "true"
    assert fields["level"] == "INFO"
    assert fields["time_"] == "never"
    assert fields["level_"] == "NONE"
    assert fields["exception"] == "none", "nothing of the record's own is there"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.builds(Untellable),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
)


@given(message=st.text(st.characters()), value=values, name=st.text(min_size=1))
def test_every_record_is_one_line_that_parses(message: str, value: object, name: str) -> None:
    made = record("%s", message)
    if name not in vars(made):
        setattr(made, name, value)
    assert written(made)["level"] == "INFO"


@given(message=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_message_is_told_as_it_is(message: str) -> None:
    assert written(record("%s", message))["message"] == message


def test_a_message_cannot_forge_a_record() -> None:
    forged = 'x\n{"level": "CRITICAL", "message": "forged"}\r\u2028y\x85z"}\n{"level": "ERROR"}'
    fields = written(record("tenant %s", forged))
    assert fields["message"] == f"tenant {forged}"
    assert fields["level"] == "INFO"


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("first line\nsecond line")
    except ValueError:
        made = logging.getLogger("acespec.test").makeRecord(
            "acespec.test", logging.ERROR, __file__, 1, "failed", (), sys.exc_info(), sinfo="Stack:\n here"
        )
    fields = written(made)
    assert fields["exception"].startswith("Traceback (most recent call last):\n")
    assert fields["exception"].endswith("ValueError: first line\nsecond line")
    assert fields["stack"] == "Stack:\n here"


def test_arguments_that_do_not_fit_lose_no_record() -> None:
    assert written(record("%d rounds", "many"))["message"] == "%d rounds (TypeError in its arguments)"
    assert written(record("%s", Untellable()))["message"] == "%s (RuntimeError in its arguments)"


def test_what_json_cannot_say_is_told_as_text() -> None:
    loop: list[Any] = []
    loop.append(loop)
    fields = written(
        record(
            "values",
            nan=float("nan"),
            huge=10**20,
            endless=10**5000,
            untellable=Untellable(),
            half="\ud800",
            loop=loop,
            nested={"rounds": (1, 2), 3: None},
        )
    )
    assert fields["nan"] == "nan"
    assert fields["huge"] == "1" + "0" * 20
    assert fields["endless"] == "<int without text>"
    assert fields["untellable"] == "<Untellable without text>"
    assert fields["half"] == "\\ud800"
    assert fields["nested"] == {"rounds": [1, 2], "3": None}
    depth = 0
    inner = fields["loop"]
    while isinstance(inner, list):
        (inner,) = inner
        depth += 1
    assert depth == MAX_DEPTH


SCRIPT = """
import logging, sys, warnings
from acespec.logs import configure_logging, write_json
configure_logging(int(sys.argv[1]))
if sys.argv[2] == "json":
    write_json()
logger = logging.getLogger("acespec.test")
for level in (logging.DEBUG, logging.INFO, logging.WARNING):
    logger.log(level, "at %d", level, extra={"session": "5e55"})
warnings.warn("old")
"""


def standard_error(verbosity: int, log_format: str) -> list[str]:
    command = [sys.executable, "-c", SCRIPT, str(verbosity), log_format]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result.stdout == ""
    return result.stderr.splitlines()


def test_the_verbosity_says_from_which_level_on() -> None:
    for verbosity, levels in {0: [30], 1: [20, 30], 2: [10, 20, 30], 3: [10, 20, 30]}.items():
        records = [json.loads(line) for line in standard_error(verbosity, "json")]
        assert [made["message"] for made in records[:-1]] == [f"at {level}" for level in levels]
        assert {made["session"] for made in records[:-1]} == {"5e55"}
        assert records[-1]["logger"] == "py.warnings"
        assert "UserWarning: old" in records[-1]["message"]


def test_text_is_for_reading() -> None:
    first, second, *_ = standard_error(1, "text")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO acespec\.test: at 20", first)
    assert second.endswith(" WARNING acespec.test: at 30")
