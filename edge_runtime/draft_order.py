"""In which order drafted nodes go up over a slow link. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from acespec.edge_runtime.race_tree import RaceNode


def ranked_below(
    waiting: Sequence[RaceNode], position: int, value: Callable[[RaceNode], float]
) -> tuple[list[RaceNode], list[float]]:
    """The nodes behind ``position`` and those that lead to them, and what the first 1, 2, … are worth.

    ``waiting`` are those not sent yet, best first. What leads to a node comes before it and is worth nothing:
    it will be known before it is there.
    """
    order: list[RaceNode] = []
    worths: list[float] = []
    open_nodes = {id(node) for node in waiting}
    total = 0.0
    for node in waiting:
        if node.position <= position:
            continue
        path: list[RaceNode] = []
        at: RaceNode | None = node
        while at is not None and id(at) in open_nodes:
            open_nodes.remove(id(at))
            path.append(at)
            at = at.parent
        order += reversed(path)
        worths += [total] * (len(path) - 1)
        total += value(node)
        worths.append(total)
    return order, worths


def by_paths(nodes: Sequence[RaceNode]) -> list[RaceNode]:
    """``nodes`` so that they take few bits: what follows a node right behind it, siblings together."""
    chosen = {id(node) for node in nodes}
    children: dict[int, list[RaceNode]] = {}
    tops: dict[int, list[RaceNode]] = {}
    for node in nodes:
        group = children if id(node.parent) in chosen else tops
        group.setdefault(id(node.parent), []).append(node)
    ordered: list[RaceNode] = []
    waiting = [node for group in tops.values() for node in _leaves_first(group, children)][::-1]
    while waiting:
        node = waiting.pop()
        ordered.append(node)
        waiting += _leaves_first(children.get(id(node), []), children)[::-1]
    return ordered


def _leaves_first(siblings: list[RaceNode], children: dict[int, list[RaceNode]]) -> list[RaceNode]:
    return sorted(siblings, key=lambda node: id(node) in children)
