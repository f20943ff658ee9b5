"""Drafts for a slow link: only what is deep enough with what leads there, in an order that takes few bits."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from acespec.edge_runtime.draft_order import by_paths, ranked_below
from acespec.edge_runtime.race_tree import RaceNode
from acespec.wire import Draft, DraftNode
from acespec.wire.draft_codec import encode_draft

trees = st.lists(st.tuples(st.integers(0, 40), st.floats(0.05, 0.9)), min_size=1, max_size=60)
"""Of each node which one it follows (modulo those before it), and its chance then."""


def grown(shape: list[tuple[int, float]]) -> list[RaceNode]:
    """A tree's root, and its nodes best first."""
    nodes = [RaceNode(0, 10, None, 0.0)]
    for token, (follows, chance) in enumerate(shape, start=1):
        parent = nodes[follows % len(nodes)]
        nodes.append(RaceNode(token, parent.position + 1, parent, parent.log_chance + math.log(chance)))
    return [nodes[0], *sorted(nodes[1:], key=lambda node: (-node.log_chance, node.position))]


def value(node: RaceNode) -> float:
    return math.exp(node.log_chance)


def num_bytes(nodes: list[RaceNode]) -> int:
    ids = {id(node): index for index, node in enumerate(nodes)}
    told = tuple(DraftNode(node.token, ids.get(id(node.parent))) for node in nodes)
    return len(encode_draft(Draft(0, 0, 10, told), 16))


@given(trees, st.integers(0, 4), st.sets(st.integers(1, 60)))
def test_what_is_deep_enough_goes_with_what_leads_there(
    shape: list[tuple[int, float]], begun: int, sent: set[int]
) -> None:
    root, *nodes = grown(shape)
    waiting = [node for node in nodes if node.token not in sent]
    order, worths = ranked_below(waiting, root.position + begun, value)
    deep = [node for node in order if node.position > root.position + begun]
    assert deep == [node for node in waiting if node.position > root.position + begun]
    before = {id(root)} | {id(node) for node in nodes if node.token in sent}
    leads: set[int] = set()
    for node in reversed(order):
        assert node in deep or id(node) in leads, "nothing goes for its own sake that comes too late"
        leads.add(id(node.parent))
    for node in order:
        assert id(node.parent) in before, "a parent first"
        before.add(id(node))
    for count in range(1, len(order) + 1):
        worth = sum(value(node) for node in order[:count] if node in deep)
        assert math.isclose(worths[count - 1], worth, abs_tol=1e-9)


@given(trees)
def test_paths_take_fewer_bits_and_parents_come_first(shape: list[tuple[int, float]]) -> None:
    root, *nodes = grown(shape)
    ordered = by_paths(nodes)
    assert sorted(map(id, ordered)) == sorted(map(id, nodes))
    seen = {id(root)}
    for node in ordered:
        assert id(node.parent) in seen
        seen.add(id(node))
    assert num_bytes(ordered) <= num_bytes(nodes) + 1


def test_a_line_with_its_siblings_takes_two_bits_a_node_or_fewer() -> None:
    _, *nodes = grown([(0, 0.6), (0, 0.2), (1, 0.6), (1, 0.2), (3, 0.6), (3, 0.2), (5, 0.6)])
    assert [node.token for node in by_paths(nodes)] == [2, 1, 4, 3, 6, 5, 7]
