"""Drafts for a slow link: only what is deep enough with what leads there, in an order that takes few bits."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from acespec.edge_runtime.draft_order import by_paths, committing_forwards, ranked_for
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


def forwards_of(path: list[RaceNode], begins: list[float]) -> list[int]:
    """By which forward each node of ``path``, a line from the root on, is committed if it comes true."""
    found: list[int] = []
    for forward, begins_ms in enumerate(begins):
        while len(found) < len(path) and path[len(found)].arrives_ms <= begins_ms:
            found.append(forward)
        if len(found) < len(path):
            found.append(forward)  # the target's own
    return found


@given(trees, st.data())
def test_forwards_commit_what_is_there_and_one_token_more(
    shape: list[tuple[int, float]], data: st.DataObject
) -> None:
    root, *nodes = grown(shape)
    begins = [10.0 * forward for forward in range(len(nodes) + 1)]
    for node in nodes:
        node.arrives_ms = data.draw(st.sampled_from([5.0, 10.0, 25.0, math.inf]))
    committed_by = committing_forwards(root, nodes, begins.__getitem__)
    for leaf in nodes:
        path = [leaf]
        while path[0].parent is not root:
            assert path[0].parent is not None
            path.insert(0, path[0].parent)
        assert [committed_by[id(node)] for node in path] == forwards_of(path, begins)


@given(trees, st.integers(0, 4), st.sets(st.integers(1, 60)))
def test_what_is_late_enough_goes_with_what_leads_there(
    shape: list[tuple[int, float]], forward: int, sent: set[int]
) -> None:
    root, *nodes = grown(shape)
    for node in nodes:
        node.arrives_ms = 15.0 if node.token in sent else math.inf
    waiting = [node for node in nodes if node.token not in sent]
    committed_by = committing_forwards(root, nodes, lambda number: 10.0 * number)
    order, worths = ranked_for(forward, waiting, committed_by, value)
    useful = {id(node) for node in waiting if committed_by[id(node)] >= forward}
    assert [node for node in order if id(node) in useful] == [node for node in waiting if id(node) in useful]
    before = {id(root)} | {id(node) for node in nodes if node.token in sent}
    leads: set[int] = set()
    for node in reversed(order):
        assert id(node) in useful | leads, "nothing goes for its own sake that will be known by then"
        leads.add(id(node.parent))
    for node in order:
        assert id(node.parent) in before, "a parent first"
        before.add(id(node))
    for count in range(1, len(order) + 1):
        worth = sum(value(node) for node in order[:count] if id(node) in useful)
        assert math.isclose(worths[count - 1], worth, abs_tol=1e-9)


def test_what_has_gone_up_already_makes_the_next_forwards_go_further() -> None:
    """A line of six: three are there for forward 0, which commits four; the fifth is forward 1's own."""
    root, *line = grown([(depth, 0.9) for depth in range(6)])
    for node in line[:3]:
        node.arrives_ms = -1.0
    committed_by = committing_forwards(root, line, lambda number: 72.0 * number)
    assert [committed_by[id(node)] for node in line] == [0, 0, 0, 0, 1, 2]
    order, worths = ranked_for(2, line[3:], committed_by, value)
    assert order == line[3:]
    assert worths == [0.0, 0.0, value(line[5])]


@given(trees)
def test_parents_come_first_and_bits_grow_by_a_byte_at_most(shape: list[tuple[int, float]]) -> None:
    root, *nodes = grown(shape)
    ordered = by_paths(nodes)
    assert sorted(map(id, ordered)) == sorted(map(id, nodes))
    seen = {id(root)}
    for node in ordered:
        assert id(node.parent) in seen
        seen.add(id(node))
    assert num_bytes(ordered) <= num_bytes(nodes) + 1


def test_siblings_stand_before_the_one_that_the_line_goes_on_from() -> None:
    _, *nodes = grown([(0, 0.6), (0, 0.2), (1, 0.6), (1, 0.2), (3, 0.6), (3, 0.2), (5, 0.6)])
    assert [node.token for node in by_paths(nodes)] == [2, 1, 4, 3, 6, 5, 7]
