"""Numbered pages of equal size, lent and taken back: which ones, and nothing of what they hold."""

from __future__ import annotations

from collections.abc import Iterable

Pages = tuple[range, ...]
"""Runs of consecutive pages in ascending order; each begins beyond the end of the one before."""


class PagePool:
    """Lends pages, as few runs of consecutive ones as it can.

    Rows of consecutive pages are one slice of memory, which attention can read in place.
    """

    def __init__(self, num_pages: int) -> None:
        """All pages ``0 .. num_pages - 1`` are free."""
        self.num_pages = num_pages
        self._free = joined([range(num_pages)])

    @property
    def num_free(self) -> int:
        return sum(map(len, self._free))

    def allocate(self, count: int) -> Pages:
        """Lend ``count`` pages, 1 <= count <= ``num_free``.

        From the smallest free run that holds them all, so that long runs last; without one, from the longest
        runs there are.
        """
        assert 0 < count <= self.num_free, f"{count} pages asked for, {self.num_free} are free"
        fitting = min((run for run in self._free if len(run) >= count), key=len, default=None)
        sources = sorted(self._free, key=len, reverse=True) if fitting is None else [fitting]
        lent: list[range] = []
        kept = [] if fitting is None else [run for run in self._free if run is not fitting]
        for run in sources:
            lent.append(run[:count])
            kept.append(run[count:])
            count -= len(lent[-1])
        self._free = joined(kept)
        return joined(lent)

    def free(self, pages: Pages) -> None:
        """Take back what ``allocate`` lent."""
        self._free = joined([*self._free, *pages])


def joined(runs: Iterable[range]) -> Pages:
    """The pages of ``runs``, none of which may share one, in as few runs as hold them."""
    result: list[range] = []
    for run in sorted((run for run in runs if len(run)), key=lambda run: run.start):
        if result and run.start < result[-1].stop:
            raise AssertionError(f"page {run.start} is there twice")
        if result and run.start == result[-1].stop:
            result[-1] = range(result[-1].start, run.stop)
        else:
            result.append(run)
    return tuple(result)
