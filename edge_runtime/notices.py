"""What is said beside a text while it is generated: on standard error, on lines of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from acespec.edge_runtime.outage import LinkChange

NOTICE_AFTER_S = 1.0
"""An outage shorter than this is not worth a line: most streams that a proxy ends are back within it."""


class OutageNotices:
    """Says once an outage that the link is lost, and when it is back. Called with each ``LinkChange``."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._waiting: asyncio.TimerHandle | None = None
        self._told = False

    def __call__(self, change: LinkChange) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if not change.is_up:
            self._waiting = asyncio.get_running_loop().call_later(NOTICE_AFTER_S, self._tell, change.said)
        elif self._told:
            self._told = False
            self._say(change.said)

    def _tell(self, line: str) -> None:
        self._told = True
        self._say(line)


class Beside(Protocol):
    """Something shown on the terminal that lines are written beside."""

    def leave_line(self) -> None:
        """A line is about to be written."""

    def go_on(self) -> None:
        """It is written."""


class Elsewhere:
    """Nothing is shown where the lines go."""

    def leave_line(self) -> None:
        pass

    def go_on(self) -> None:
        pass


@contextlib.contextmanager
def records_on_lines_of_their_own(shown: Beside) -> Iterator[None]:
    """Tell ``shown`` of each record the root logger's handlers write, as long as the block lasts."""

    def left(_: logging.LogRecord) -> bool:
        shown.leave_line()
        return True

    root, behind = logging.getLogger(), _Behind(shown)
    handlers = list(root.handlers)
    for handler in handlers:
        handler.addFilter(left)
    root.addHandler(behind)  # handlers are called in the order in which they were added
    try:
        yield
    finally:
        root.removeHandler(behind)
        for handler in handlers:
            handler.removeFilter(left)


class _Behind(logging.Handler):
    """Is called once the handlers before it have written a record."""

    def __init__(self, shown: Beside) -> None:
        super().__init__()
        self._shown = shown

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002 - logging's signature
        self._shown.go_on()
