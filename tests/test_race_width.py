"""How many drafted nodes a forward takes along follows from what was measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.cloud_verifier.race_width import (
    DEARER,
    ENOUGH,
    EXPLORED_EVERY,
    TRIED_AGAIN,
    ForwardCosts,
    NodeWorth,
    Offer,
)


def settled(cost: Callable[[int], float], plain: int = 1, steps: int = 60) -> ForwardCosts:
    """After ``steps`` forwards that used all the room there was, on a target that takes ``cost`` seconds."""
    costs = ForwardCosts()
    for _ in range(steps):
        room = costs.room(plain)
        costs.observe(plain + room, room, cost(plain + room))
    return costs


def test_nothing_is_taken_along_before_a_plain_forward_is_known() -> None:
    costs = ForwardCosts()
    for _ in range(ENOUGH):
        assert costs.room(1) == 0
        costs.observe(1, 0, 0.07)
    assert costs.room(1) == 1, "the next width is tried"
    assert costs.room(2) == 2, "what a wider one may cost is not known better"


def test_on_a_flat_target_widths_grow_to_the_widest() -> None:
    assert settled(lambda _: 0.072).room(1) >= 512


def test_on_a_target_whose_cost_follows_its_tokens_nothing_is_taken_along() -> None:
    costs = settled(lambda num_tokens: 0.01 * num_tokens)
    assert costs.room(1) == 0
    assert costs.dearer(1, 1) == pytest.approx(2.0)


@given(st.integers(0, 200), st.floats(0.0, 0.04), st.floats(1.1, 4.0), st.integers(1, 40))
def test_what_there_is_room_for_is_hardly_dearer(edge: int, slope: float, step: float, plain: int) -> None:
    """A cost that rises slowly, and by a step beyond ``edge`` tokens."""

    def cost(num_tokens: int) -> float:
        return 0.05 * (1.0 + slope * num_tokens / 1000.0) * (step if num_tokens > edge else 1.0)

    room = settled(cost, plain).room(plain)
    assert cost(plain + room) <= DEARER * cost(plain) * 1.0001


def test_one_slow_forward_rules_nothing_out() -> None:
    costs = ForwardCosts()
    for _ in range(ENOUGH):
        costs.observe(1, 0, 0.05)
    costs.observe(2, 1, 3.0)  # compiled for
    assert costs.room(1) == 1
    costs.observe(2, 1, 0.05)
    assert costs.room(1) == 3


def test_what_was_too_dear_is_tried_again_after_long() -> None:
    costs = settled(lambda num_tokens: 0.01 * num_tokens)
    rooms = []
    for _ in range(TRIED_AGAIN + 1):
        rooms.append(costs.room(1))
        costs.observe(1 + rooms[-1], rooms[-1], 0.01)
    assert sum(room > 0 for room in rooms[:-60]) == 0
    assert max(rooms) > 0, "and is cheap now"


def offer(room: int, dearer: Callable[[int], float] = lambda _: 1.0, num_sequences: int = 1) -> Offer:
    return Offer(room, num_sequences, dearer)


def taught(rates: list[float], steps: int = 400) -> NodeWorth:
    """A session whose nodes came true at ``rates``, spread evenly."""
    worth, due = NodeWorth(), [0.0] * len(rates)
    for _ in range(steps):
        came_true = []
        for index, rate in enumerate(rates):
            due[index] += rate
            if due[index] >= 1.0:
                due[index] -= 1.0
                came_true.append(index)
        worth.learn(len(rates), tuple(came_true))
    worth.num_steps = 1  # none at which all is tried
    return worth


def test_nodes_that_cost_nothing_are_all_brought() -> None:
    assert taught([0.5] * 10).width(offer(10), 10) == 10
    assert taught([0.0] * 10).width(offer(10), 10) == 10
    assert NodeWorth(num_steps=1).width(offer(10), 6) == 6


def test_nodes_are_brought_as_long_as_they_pay() -> None:
    """Each node makes the forward 1 % dearer: those that come true less often than that are left."""
    worth = taught([0.6, 0.3, 0.1, 0.001, 0.001, 0.0])
    assert worth.width(offer(6, lambda nodes: 1.0 + 0.01 * nodes), 6) == 3
    many = offer(6, lambda nodes: 1.0 + 0.01 * nodes, num_sequences=20)
    assert worth.width(many, 6) == 2, "in a shared forward all pay for the one who gains"
    assert taught([0.001] * 6).width(offer(6, lambda nodes: 1.0 + 0.01 * nodes), 6) == 0


def test_now_and_then_all_are_tried() -> None:
    worth = taught([0.0] * 6)
    dear = offer(6, lambda nodes: 1.0 + 0.04 * nodes)
    widths = []
    for worth.num_steps in range(2 * EXPLORED_EVERY):
        widths.append(worth.width(dear, 6))
    assert sorted(widths)[-3:] == [0, 6, 6]
