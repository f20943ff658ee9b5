"""What is said beside a text while it is generated: on standard error, on lines of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

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


@contextlib.contextmanager
def before_each_record(leave_line: Callable[[], object]) -> Iterator[None]:
    """Call ``leave_line`` before the root logger's handlers write a record, as long as the block lasts."""

    def left(_: logging.LogRecord) -> bool:
        leave_line()
        return True

    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(left)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(left)
