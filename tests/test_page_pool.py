"""The page pool against a plain set of free pages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle as Values
from hypothesis.stateful import RuleBasedStateMachine, consumes, invariant, multiple, rule

from acespec.cloud_verifier.page_pool import PagePool, Pages

NUM_PAGES = 24


def longest_run(pages: set[int]) -> int:
    """How many of ``pages`` follow one another at most."""
    best = count = 0
    for page in range(NUM_PAGES):
        count = count + 1 if page in pages else 0
        best = max(best, count)
    return best


class PagePoolMachine(RuleBasedStateMachine):
    """Lends and takes back in any order."""

    lent = Values("lent")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.free = set(range(NUM_PAGES))

    @rule(target=lent, count=st.integers(1, NUM_PAGES))
    def allocate(self, count: int) -> Pages:
        if count > len(self.free):
            with pytest.raises(AssertionError):
                self.pool.allocate(count)
            return multiple()  # type: ignore[return-value]
        consecutive = longest_run(self.free) >= count
        runs = self.pool.allocate(count)
        pages = [page for run in runs for page in run]
        assert len(pages) == count
        assert set(pages) <= self.free, "a page was lent twice"
        assert all(one.stop < other.start for one, other in pairwise(runs))
        assert (len(runs) == 1) or not consecutive
        self.free -= set(pages)
        return runs

    @rule(runs=consumes(lent))
    def give_back(self, runs: Pages) -> None:
        self.pool.free(runs)
        self.free |= {page for run in runs for page in run}

    @rule(runs=lent)
    def lend_nothing_twice(self, runs: Pages) -> None:
        """A page that is lent cannot be among the free ones too."""
        assert not {page for run in runs for page in run} & self.free

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.num_free == len(self.free)


TestPagePool = PagePoolMachine.TestCase


def test_long_runs_last() -> None:
    """A short request takes the gap it fits in, and leaves the long run whole."""
    pool = PagePool(10)
    gap, middle = pool.allocate(2), pool.allocate(3)
    pool.free(gap)
    assert pool.allocate(1) == (range(1),)
    assert pool.allocate(5) == (range(5, 10),)
    assert middle == (range(2, 5),)


def test_what_is_lent_in_pieces_is_in_order() -> None:
    pool = PagePool(6)
    pieces = [pool.allocate(1) for _ in range(6)]
    for place in (0, 2, 3, 5):
        pool.free(pieces[place])
    assert pool.allocate(4) == (range(1), range(2, 4), range(5, 6))


def test_a_page_given_back_twice_is_a_bug() -> None:
    pool = PagePool(4)
    runs = pool.allocate(2)
    pool.free(runs)
    with pytest.raises(AssertionError, match="twice"):
        pool.free(runs)
