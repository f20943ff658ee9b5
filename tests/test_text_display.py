"""Text on a terminal: what is provisional goes again without a trace, wherever lines break."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from acespec.edge_runtime.text import IncrementalText
from acespec.edge_runtime.text_display import TextDisplay

COLUMNS, LINES = 12, 6


class Terminal(io.StringIO):
    """Does what an xterm does with the few sequences used, and keeps every line ever scrolled away."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[int, tuple[str, bool]]] = [{}]
        self._row = self._column = 0
        self._dim = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        rest = text
        while rest:
            rest = self._sequence(rest) if rest.startswith("\x1b[") else self._character(rest)
        return len(text)

    @property
    def screen(self) -> list[str]:
        """Every line, without the blanks at its end."""
        lines = ["".join(row.get(c, (" ", False))[0] for c in range(COLUMNS)) for row in self.rows]
        return [line.rstrip() for line in lines]

    def dim(self) -> str:
        """What is shown dimly."""
        return "".join(character for row in self.rows for character, dim in row.values() if dim)

    def _sequence(self, text: str) -> str:
        end = next(i for i, c in enumerate(text) if c.isalpha())
        argument, kind = text[2:end], text[end]
        if kind == "m":
            self._dim = argument == "2"
        elif kind == "A":
            self._row -= int(argument)
            assert len(self.rows) - self._row <= LINES, "above the screen"
        elif kind == "C":
            self._column = min(self._column, COLUMNS - 1) + int(argument)
            assert self._column < COLUMNS
        else:
            assert (kind, argument) == ("J", "")
            assert self._column < COLUMNS, "it would erase the last character of the line"
            del self.rows[self._row + 1 :]
            row = self.rows[self._row]
            self.rows[self._row] = {c: cell for c, cell in row.items() if c < self._column}
        return text[end + 1 :]

    def _character(self, text: str) -> str:
        character = text[0]
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._down()
        else:
            if self._column == COLUMNS:
                self._down()
            self.rows[self._row][self._column] = (character, self._dim)
            self._column += 1
        return text[1:]

    def _down(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self.rows):
            self.rows.append({})


class Letters(IncrementalText):
    """A text whose tokens are characters."""

    def __init__(self) -> None:
        self.given = ""

    def push(self, tokens: object) -> str:
        new = "".join(map(chr, tokens))  # type: ignore[call-overload]
        self.given += new
        return str(new)

    def preview(self, tokens: object) -> str:
        return "".join(map(chr, tokens))  # type: ignore[call-overload]

    def finish(self) -> str:
        return ""

    @property
    def text(self) -> str:
        return self.given


TOKENS = st.lists(st.sampled_from([*map(ord, "abcdefgh i"), 10]), max_size=40)


@given(steps=st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=6))
def test_what_was_provisional_leaves_no_trace(steps: list[tuple[list[int], list[int]]]) -> None:
    terminal, plain = Terminal(), Terminal()
    display = TextDisplay(terminal, Letters(), True, lambda: (COLUMNS, LINES))
    reference = TextDisplay(plain, Letters(), True, lambda: (COLUMNS, LINES))
    for committed, provisional in steps:
        display.commit(committed)
        reference.commit(committed)
        display.show_provisional(provisional)
        shown = terminal.dim().replace(" ", "")
        assert "".join(map(chr, provisional)).replace(" ", "").replace("\n", "").startswith(shown)
        assert shown or not "".join(map(chr, provisional)).strip()
    display.show_provisional([])
    assert terminal.dim() == ""
    assert terminal.screen == plain.screen


def test_the_text_alone_goes_where_no_terminal_is() -> None:
    stream = io.StringIO()
    display = TextDisplay(stream, Letters(), False, lambda: (COLUMNS, LINES))
    display.commit([97, 98])
    display.show_provisional([99])
    display.commit([100])
    display.finish()
    assert stream.getvalue() == "abd\n"


@given(first=TOKENS, provisional=TOKENS, then=TOKENS)
def test_what_others_write_gets_lines_of_its_own(
    first: list[int], provisional: list[int], then: list[int]
) -> None:
    terminal = Terminal()
    display = TextDisplay(terminal, Letters(), True, lambda: (COLUMNS, LINES))
    display.commit(first)
    display.show_provisional(provisional)
    display.leave_line()
    assert terminal.dim() == ""
    terminal.write("NOTICE\n")
    display.leave_line()
    terminal.write("ANOTHER\n")
    display.show_provisional(provisional)
    display.commit(then)
    display.finish()
    assert terminal.screen.count("NOTICE") == terminal.screen.count("ANOTHER") == 1
    assert terminal.screen.index("ANOTHER") == terminal.screen.index("NOTICE") + 1
    rest = "".join(line for line in terminal.screen if line not in ("NOTICE", "ANOTHER"))
    assert rest.replace(" ", "") == "".join(map(chr, first + then)).replace(" ", "").replace("\n", "")


def test_a_line_that_was_left_at_the_end_is_not_followed_by_an_empty_one() -> None:
    terminal = Terminal()
    display = TextDisplay(terminal, Letters(), True, lambda: (COLUMNS, LINES))
    display.commit([97, 98])
    display.leave_line()
    terminal.write("NOTICE\n")
    display.finish()
    assert terminal.screen == ["ab", "NOTICE", ""]


def test_provisional_text_is_there_again_below_what_others_wrote() -> None:
    terminal = Terminal()
    display = TextDisplay(terminal, Letters(), True, lambda: (COLUMNS, LINES))
    display.commit([97, 98])
    display.show_provisional([99, 100])
    display.leave_line()
    terminal.write("NOTICE\n")
    display.go_on()
    assert terminal.screen == ["ab", "NOTICE", "cd"]
    display.commit([101])
    display.leave_line()
    display.go_on()
    assert terminal.screen == ["ab", "NOTICE", "e", ""]


def test_provisional_text_at_the_end_stays_whatever_is_said_after_it() -> None:
    terminal = Terminal()
    display = TextDisplay(terminal, Letters(), True, lambda: (COLUMNS, LINES))
    display.commit([97, 98])
    display.show_provisional([99, 100])
    display.finish()
    display.leave_line()
    terminal.write("NOTICE\n")
    assert terminal.screen == ["abcd", "NOTICE", ""]


def test_a_text_that_breaks_off_keeps_what_is_committed_alone() -> None:
    terminal, nothing = Terminal(), Terminal()
    display = TextDisplay(terminal, Letters(), True, lambda: (COLUMNS, LINES))
    display.commit([97, 98])
    display.show_provisional([99, 100])
    display.break_off()
    assert terminal.screen == ["ab", ""]
    display = TextDisplay(nothing, Letters(), True, lambda: (COLUMNS, LINES))
    display.show_provisional([99, 100])
    display.break_off()
    assert nothing.screen == [""]


def test_the_text_elsewhere_is_not_broken_by_what_others_write() -> None:
    stream = io.StringIO()
    display = TextDisplay(stream, Letters(), False, lambda: (COLUMNS, LINES))
    display.commit([97])
    display.leave_line()
    display.commit([98])
    display.finish()
    assert stream.getvalue() == "ab\n"
