"""Shows text as it is generated: what is committed plainly; what is provisional dimly, on terminals only."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.cells import cell_len

from acespec.edge_runtime.text import IncrementalText

DIM, PLAIN, ERASE_BELOW = "\x1b[2m", "\x1b[0m", "\x1b[J"


class TextDisplay:
    """Writes a generation's text to a stream; on a terminal provisional text follows, until it is replaced.

    Anywhere else, and with ``shows_provisional`` False, only committed text is written.
    """

    def __init__(
        self,
        stream: TextIO,
        text: IncrementalText,
        shows_provisional: bool,
        size: Callable[[], tuple[int, int]] = shutil.get_terminal_size,
    ) -> None:
        """``size`` gives the terminal's columns and lines."""
        self._stream = stream
        self._text = text
        self._shows_provisional = shows_provisional
        self._size = size
        self._column = 0
        """Where the committed text ends; what stands left of it was written by this object."""
        self._rows_below = 0
        """Lines the provisional text reaches below that."""
        self._dim = False
        self._provisional: Sequence[int] = ()
        self._left = False
        """Whether the text's line was left for something else, and nothing has been written since."""

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens are final."""
        self._erase()
        self._provisional = ()
        self._write_plain(self._text.push(tokens))
        self._stream.flush()

    def show_provisional(self, tokens: Sequence[int]) -> None:
        """These follow provisionally, in place of those shown before."""
        self._provisional = tokens
        if not self._shows_provisional:
            return
        self._erase()
        columns, lines = self._size()
        shown, rows = fitting(self._text.preview(tokens), self._column, columns, max(lines - 2, 1))
        if shown:
            self._stream.write(DIM + shown + PLAIN)
            self._dim, self._rows_below, self._left = True, rows, False
        self._stream.flush()

    def finish(self) -> None:
        """The text is over: write what was held back, and end the line. Provisional text stays as it is."""
        if not self._dim:
            self._write_plain(self._text.finish())
        if not self._left:
            self._stream.write("\n")
        self._dim, self._column, self._left, self._provisional = False, 0, True, ()
        self._stream.flush()

    def break_off(self) -> None:
        """The text ends before its end: as ``finish``, without provisional text and without an empty line."""
        self._erase()
        if self._text.text:
            self.finish()
        self._stream.flush()

    def leave_line(self) -> None:
        """On a terminal, let what others write there begin a line; then call ``go_on``."""
        if not self._shows_provisional:
            return
        self._erase()
        if self._column > 0:
            self._stream.write("\n")
            self._column, self._left = 0, True
        self._stream.flush()

    def go_on(self) -> None:
        """Others have written whole lines: the text goes on below, with what is provisional."""
        if self._provisional:
            self.show_provisional(self._provisional)

    def _erase(self) -> None:
        """Go back to where the committed text ends, and clear what follows."""
        if not self._dim:
            return
        up = f"\x1b[{self._rows_below}A" if self._rows_below else ""
        self._stream.write(f"{up}\r" + (f"\x1b[{self._column}C" if self._column else "") + ERASE_BELOW)
        self._dim, self._rows_below = False, 0

    def _write_plain(self, text: str) -> None:
        self._stream.write(text)
        if not self._shows_provisional or not text:
            return
        self._left = False
        columns, _ = self._size()
        self._column = column_after(text, self._column, columns)
        if self._column == columns:  # the terminal goes to the next line with the next character only
            self._stream.write(" \r")
            self._column = 0


def fitting(text: str, column: int, columns: int, max_rows: int) -> tuple[str, int]:
    """The beginning of ``text`` that, from ``column`` on, reaches at most ``max_rows`` lines down; how many.

    What scrolled off the screen could not be erased. A tab would move by more than can be told here.
    """
    rows, shown = 0, []
    for character in text.replace("\r", "").replace("\t", " "):
        width = cell_len(character)
        if character == "\n" or column + width > columns:
            if rows == max_rows:
                break
            rows, column = rows + 1, 0
        if character != "\n":
            column += width
        shown.append(character)
    return "".join(shown), rows


def column_after(text: str, column: int, columns: int) -> int:
    """Where the cursor is once ``text`` is written from ``column`` on: ``columns`` behind a full line."""
    for character in text:
        if character in "\n\r":
            column = 0
            continue
        width = 8 - column % 8 if character == "\t" else cell_len(character)
        column = column + width if column + width <= columns else width
    return column
