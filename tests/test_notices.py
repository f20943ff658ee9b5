"""What is said of an outage while a text is generated, and when; in simulated time."""

from __future__ import annotations

import asyncio
import io
import logging

from acespec.bench.virtual_clock import run_virtual
from acespec.edge_runtime.notices import NOTICE_AFTER_S, OutageNotices, records_on_lines_of_their_own
from acespec.edge_runtime.outage import LinkChange

LOST, BACK = LinkChange(False, "lost"), LinkChange(True, "back")


def test_an_outage_is_told_once_it_lasts_and_so_is_its_end() -> None:
    async def main() -> None:
        said: list[str] = []
        notices = OutageNotices(said.append)
        notices(LOST)
        await asyncio.sleep(0.9 * NOTICE_AFTER_S)
        assert said == []
        await asyncio.sleep(0.2 * NOTICE_AFTER_S)
        assert said == ["lost"]
        notices(BACK)
        assert said == ["lost", "back"]
        notices(LOST)
        await asyncio.sleep(1.1 * NOTICE_AFTER_S)
        assert said == ["lost", "back", "lost"]

    run_virtual(main())


def test_a_stream_that_is_back_at_once_is_not_worth_a_line() -> None:
    async def main() -> None:
        said: list[str] = []
        notices = OutageNotices(said.append)
        notices(LOST)
        await asyncio.sleep(0.5 * NOTICE_AFTER_S)
        notices(BACK)
        await asyncio.sleep(2.0 * NOTICE_AFTER_S)
        assert said == []

    run_virtual(main())


class Marked:
    """Writes a mark for every line it is told of, before and behind it."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    def leave_line(self) -> None:
        self._stream.write("<")

    def go_on(self) -> None:
        self._stream.write(">")


def test_records_are_announced_within_the_block_alone() -> None:
    stream = io.StringIO()
    logger = logging.getLogger()
    handler, before = logging.StreamHandler(stream), logger.handlers
    logger.handlers = [handler]
    try:
        with records_on_lines_of_their_own(Marked(stream)):
            logging.getLogger("some.module").warning("one")
        logging.getLogger("some.module").warning("two")
        assert logger.handlers == [handler]
    finally:
        logger.handlers = before
    assert stream.getvalue() == "<one\n>two\n"
