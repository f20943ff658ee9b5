"""Batches equal those of a slow simulation of the rules, and nothing waits longer than its bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.cloud_verifier.scheduler import MOST_PASSED_OVER, Batch, Part, Scheduler, Work

NOBODY_ELSE = 0
MANY = 10**6


def check(sequence: int, num_tokens: int, arrival: float = 0.0) -> Work:
    return Work(sequence, num_tokens, arrival, deadline=arrival)


def prefill(sequence: int, num_tokens: int, arrival: float = 0.0, deadline: float = 0.5) -> Work:
    return Work(sequence, num_tokens, arrival, deadline, divisible=True)


def batch(scheduler: Scheduler, now: float = 1.0) -> list[tuple[int, int]]:
    """The next batch as (sequence, tokens), however long its work has waited."""
    taken = scheduler.next_batch(now, NOBODY_ELSE)
    return [] if taken is None else [(part.sequence, part.num_tokens) for part in taken.parts]


def test_work_waits_for_others_to_join() -> None:
    scheduler = Scheduler(token_budget=100, wait_s=0.002)
    scheduler.add(check(1, 5, arrival=10.0))
    assert scheduler.wake_at() == 10.002
    assert scheduler.next_batch(10.001, MANY) is None
    scheduler.add(check(2, 5, arrival=10.001))
    assert scheduler.wake_at() == 10.002, "the oldest counts"
    taken = scheduler.next_batch(10.002, MANY)
    assert taken == Batch((Part(1, 5), Part(2, 5)), num_tokens=10)
    assert scheduler.wake_at() is None
    assert scheduler.next_batch(99.0, NOBODY_ELSE) is None


def test_a_full_budget_does_not_wait() -> None:
    scheduler = Scheduler(token_budget=100, wait_s=0.002)
    scheduler.add(check(1, 60))
    assert scheduler.next_batch(0.0, MANY) is None
    scheduler.add(check(2, 40))
    assert batch(scheduler, 0.0) == [(1, 60), (2, 40)]


def test_nobody_is_waited_for_once_all_that_live_wait() -> None:
    scheduler = Scheduler(token_budget=100, wait_s=0.002)
    scheduler.add(check(1, 5))
    assert scheduler.next_batch(0.0, num_live=2) is None
    scheduler.add(check(2, 5))
    assert scheduler.next_batch(0.0, num_live=2) is not None


def test_checks_that_came_first_go_first() -> None:
    scheduler = Scheduler(token_budget=10, wait_s=0.0)
    for sequence in (3, 1, 2):
        scheduler.add(check(sequence, 5))
    assert batch(scheduler) == [(3, 5), (1, 5)]
    assert batch(scheduler) == [(2, 5)]


def test_a_check_without_room_is_passed_over_and_first_in_the_next_batch() -> None:
    scheduler = Scheduler(token_budget=10, wait_s=0.0)
    for sequence, num_tokens in ((1, 8), (2, 4), (3, 2)):
        scheduler.add(check(sequence, num_tokens))
    assert batch(scheduler) == [(1, 8), (3, 2)]
    scheduler.add(check(4, 10))
    assert batch(scheduler) == [(2, 4)]


def test_the_search_for_a_check_that_fits_is_bounded() -> None:
    scheduler = Scheduler(token_budget=10, wait_s=0.0)
    scheduler.add(check(0, 8))
    for sequence in range(1, MOST_PASSED_OVER + 1):
        scheduler.add(check(sequence, 5))
    scheduler.add(check(99, 2))
    assert batch(scheduler) == [(0, 8)]
    assert batch(scheduler) == [(1, 5), (2, 5)]


def test_a_prompt_alone_has_the_whole_budget() -> None:
    scheduler = Scheduler(token_budget=100, wait_s=0.0)
    scheduler.add(prefill(1, 250))
    assert [batch(scheduler) for _ in range(4)] == [[(1, 100)], [(1, 100)], [(1, 50)], []]


def test_a_prompt_goes_on_without_waiting_again() -> None:
    scheduler = Scheduler(token_budget=100, wait_s=0.002)
    scheduler.add(prefill(1, 150))
    assert batch(scheduler, 0.0) == [(1, 100)]
    assert scheduler.next_batch(0.001, MANY) is None
    assert scheduler.wake_at() == 0.002


def test_checks_go_before_a_prompt_that_is_not_urgent_yet() -> None:
    scheduler = Scheduler(token_budget=100, wait_s=0.0)
    scheduler.add(prefill(1, 1000))
    scheduler.add(check(2, 70))
    assert batch(scheduler) == [(2, 70), (1, 30)]


def test_urgent_prompts_take_half_of_the_budget_and_what_checks_leave() -> None:
    scheduler = Scheduler(token_budget=100, wait_s=0.0)
    scheduler.add(prefill(1, 30, deadline=0.0))
    scheduler.add(prefill(2, 60, deadline=0.0))
    scheduler.add(prefill(3, 60, deadline=0.0))
    for sequence in (4, 5, 6):
        scheduler.add(check(sequence, 20, arrival=1.0))
    assert batch(scheduler) == [(4, 20), (5, 20), (1, 30), (2, 30)]
    assert batch(scheduler) == [(6, 20), (2, 30), (3, 50)]
    assert batch(scheduler) == [(3, 10)]


def test_a_check_of_more_than_half_of_the_budget_takes_turns_with_an_urgent_prompt() -> None:
    scheduler = Scheduler(token_budget=10, wait_s=0.0)
    scheduler.add(prefill(1, 22, deadline=0.0))
    scheduler.add(check(2, 8, arrival=1.0))
    scheduler.add(check(3, 8, arrival=1.0))
    assert [batch(scheduler) for _ in range(4)] == [[(1, 10)], [(2, 8), (1, 2)], [(1, 10)], [(3, 8)]]


def test_a_chain_waits_for_one_batch_of_a_long_prompt_at_most() -> None:
    scheduler = Scheduler(token_budget=512, wait_s=0.002)
    scheduler.add(prefill(1, 5000))
    assert batch(scheduler, 0.002) == [(1, 512)]
    for step in range(1, 20):  # the prompt is urgent after half a second
        now = step / 10
        scheduler.add(check(2, 64, arrival=now))
        assert (2, 64) in batch(scheduler, now + 0.002)


def test_work_is_forgotten_when_it_is_cancelled() -> None:
    scheduler = Scheduler(token_budget=10, wait_s=0.002)
    scheduler.add(check(1, 10, arrival=1.0))
    scheduler.add(check(2, 5, arrival=2.0))
    assert scheduler.cancel(1)
    assert not scheduler.cancel(1)
    assert len(scheduler) == 1
    assert scheduler.wake_at() == 2.002
    assert scheduler.next_batch(2.0, MANY) is None, "the tokens are not counted any more"
    scheduler.add(check(1, 5, arrival=3.0))
    assert batch(scheduler) == [(2, 5), (1, 5)], "as new work, in its new place"


def test_what_cannot_go_into_a_batch_is_a_bug_of_the_caller() -> None:
    scheduler = Scheduler(token_budget=10, wait_s=0.0)
    scheduler.add(check(1, 10, arrival=1.0))
    for work in (check(1, 1, 1.0), check(2, 11, 1.0), check(2, 0, 1.0), check(2, 1, 0.5)):
        with pytest.raises(AssertionError):
            scheduler.add(work)


@dataclass
class Simulated:
    """Work in the slow simulation."""

    work: Work
    order: int
    left: int
    ahead: set[int] = field(default_factory=set)
    """Orders of checks that came before it while it waited."""
    tokens_ahead: dict[int, int] = field(default_factory=dict)
    """Tokens of prefills that came before it while it waited, by order."""
    batches_waited: int = 0

    @property
    def key(self) -> tuple[float, int]:
        return self.work.deadline, self.order


class Simulation:
    """The rules as they are written, over plain lists."""

    def __init__(self, budget: int, wait_s: float) -> None:
        self.budget = budget
        self.wait_s = wait_s
        self.share = max(1, budget // 2)
        self.waiting: list[Simulated] = []
        self.owed = False
        self.num_added = 0
        self.longest_check = 0

    def add(self, work: Work) -> None:
        new = Simulated(work, self.num_added, work.num_tokens)
        self.num_added += 1
        if not work.divisible:
            self.longest_check = max(self.longest_check, work.num_tokens)
        for old in self.waiting:
            first, second = sorted((new, old), key=lambda item: item.key)
            if first.work.divisible:
                second.tokens_ahead[first.order] = first.left
            else:
                second.ahead.add(first.order)
        self.waiting.append(new)

    def cancel(self, sequence: int) -> None:
        self.waiting = [item for item in self.waiting if item.work.sequence != sequence]

    def next_batch(self, now: float, num_live: int) -> list[Part]:
        if not self.waiting:
            return []
        oldest = min(item.work.arrival for item in self.waiting)
        full = sum(item.left for item in self.waiting) >= self.budget
        if not (now >= oldest + self.wait_s or full or len(self.waiting) >= num_live):
            return []
        checks = sorted((x for x in self.waiting if not x.work.divisible), key=lambda item: item.key)
        prefills = sorted((x for x in self.waiting if x.work.divisible), key=lambda item: item.key)
        reserved = 0
        if checks and not self.owed:
            reserved = min(self.share, sum(x.left for x in prefills if x.key < checks[0].key))
        taken: list[tuple[Simulated, int]] = []
        num_passed_over = 0
        room = self.budget - reserved
        for item in checks:
            if item.left <= room:
                room -= item.left
                taken.append((item, item.left))
            else:
                num_passed_over += 1
            if num_passed_over == MOST_PASSED_OVER:
                break
        self.owed = bool(checks) and checks[0] not in [item for item, _ in taken]
        room += reserved
        for item in prefills:
            taken.append((item, min(room, item.left)))
            room -= taken[-1][1]
        return self._take([(item, num_tokens) for item, num_tokens in taken if num_tokens])

    def _take(self, taken: list[tuple[Simulated, int]]) -> list[Part]:
        for item in self.waiting:
            item.batches_waited += 1
        for item, num_tokens in taken:
            item.left -= num_tokens
        for item in self.waiting:
            if not item.left:
                self._check_bound(item)
        self.waiting = [item for item in self.waiting if item.left]
        return [Part(item.work.sequence, num_tokens) for item, num_tokens in taken]

    def _check_bound(self, done: Simulated) -> None:
        """Each batch takes a check that is ahead of ``done``, or prefill tokens that are not behind it."""
        bound = 1 + len(done.ahead)
        if done.work.divisible:
            tokens = sum(done.tokens_ahead.values()) + done.work.num_tokens
            bound = len(done.ahead) + math.ceil(tokens / self.share)
        if self.longest_check > self.budget - self.share:
            bound *= 2
        assert done.batches_waited <= bound


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("check"), st.integers(1, 40), st.just(0.0)),
        st.tuples(st.just("prefill"), st.integers(1, 200), st.sampled_from([0.0, 0.004, 0.5])),
        st.tuples(st.just("batch"), st.integers(0, 30), st.sampled_from([0.0, 0.001, 0.003])),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0.0)),
    ),
    max_size=80,
)


@given(budget=st.integers(1, 64), longest=st.sampled_from([0.5, 1.0]), actions=ACTIONS)
def test_batches_are_those_of_the_slow_simulation_and_nothing_starves(
    budget: int, longest: float, actions: list[tuple[str, int, float]]
) -> None:
    scheduler, simulation = Scheduler(budget, wait_s=0.002), Simulation(budget, wait_s=0.002)
    now, sequence = 100.0, 0
    for kind, number, seconds in actions:
        if kind == "batch":
            now += seconds
            _compare(scheduler, simulation, now, number)
        elif kind == "cancel":
            waited = any(item.work.sequence == number for item in simulation.waiting)
            assert scheduler.cancel(number) == waited
            simulation.cancel(number)
        else:
            most = max(1, int(longest * budget)) if kind == "check" else number
            work = Work(sequence, min(number, most), now, now + seconds, divisible=kind == "prefill")
            scheduler.add(work)
            simulation.add(work)
            sequence += 1
    while simulation.waiting:
        _compare(scheduler, simulation, now, NOBODY_ELSE)
    assert scheduler.wake_at() is None


def _compare(scheduler: Scheduler, simulation: Simulation, now: float, num_live: int) -> None:
    expected = simulation.next_batch(now, num_live)
    taken = scheduler.next_batch(now, num_live)
    assert ([] if taken is None else list(taken.parts)) == expected
    if taken is not None:
        assert taken.num_tokens == sum(part.num_tokens for part in taken.parts) <= simulation.budget
        assert len({part.sequence for part in taken.parts}) == len(taken.parts)
    assert len(scheduler) == len(simulation.waiting)


# --- spare work ---------------------------------------------------------------------------------------------


def spare(sequence: int, until: float, arrival: float = 0.0) -> Work:
    return Work(sequence, 1, arrival, arrival, spare_until=until)


def test_spare_work_takes_room_in_a_batch_of_others_and_makes_none_due() -> None:
    scheduler = Scheduler(token_budget=8, wait_s=0.002)
    scheduler.add(spare(1, until=1.0))
    assert scheduler.next_batch(0.5, num_live=2) is None
    assert scheduler.wake_at() == 1.0
    scheduler.add(Work(2, 4, 0.5, 0.5))
    assert scheduler.wake_at() == pytest.approx(0.502)
    batch = scheduler.next_batch(0.502, num_live=3)
    assert batch is not None
    assert [part.sequence for part in batch.parts] == [2, 1]
    assert len(scheduler) == 0


def test_spare_work_yields_to_all_other_work() -> None:
    scheduler = Scheduler(token_budget=4, wait_s=0.0)
    scheduler.add(spare(1, until=1.0))
    scheduler.add(Work(2, 3, 0.0, 0.0))
    scheduler.add(Work(3, 9, 0.0, 5.0, divisible=True))
    batch = scheduler.next_batch(0.0, num_live=3)
    assert batch is not None
    assert [(part.sequence, part.num_tokens) for part in batch.parts] == [(2, 3), (3, 1)]


def test_spare_work_runs_where_nobody_else_can_come() -> None:
    scheduler = Scheduler(token_budget=8, wait_s=0.002)
    for sequence in (1, 2):
        scheduler.add(spare(sequence, until=9.0))
    batch = scheduler.next_batch(0.0, num_live=2)
    assert batch is not None
    assert batch.num_tokens == 2


@pytest.mark.parametrize("how", ["its time is over", "pressed"])
def test_spare_work_becomes_work_like_any_other(how: str) -> None:
    scheduler = Scheduler(token_budget=8, wait_s=0.002)
    scheduler.add(spare(1, until=1.0))
    if how == "pressed":
        scheduler.press(1, 0.25)
        scheduler.press(7, 0.25)
    now = 0.25 if how == "pressed" else 1.0
    assert scheduler.next_batch(now, num_live=9) is None
    assert scheduler.wake_at() == pytest.approx(now + 0.002)
    assert scheduler.next_batch(now + 0.002, num_live=9) is not None


def test_spare_work_can_be_cancelled() -> None:
    scheduler = Scheduler(token_budget=8, wait_s=0.002)
    scheduler.add(spare(1, until=1.0))
    assert scheduler.cancel(1)
    assert not scheduler.cancel(1)
    assert scheduler.wake_at() is None
