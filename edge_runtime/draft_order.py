"""Which drafted nodes go up over a slow link, and in which order. Pure.

Forwards are counted as by `ForwardTimes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from acespec.edge_runtime.race_tree import RaceNode


def ranked_for(
    forward: int,
    waiting: Sequence[RaceNode],
    committed_by: Mapping[int, int],
    value: Callable[[RaceNode], float],
) -> tuple[list[RaceNode], list[float]]:
    """The nodes that can help ``forward`` and those that lead to them, and what the first 1, 2, … are worth.

    ``waiting`` are those not sent yet, best first; ``committed_by`` as `committing_forwards` tells. What an
    earlier forward commits is worth nothing by itself: it goes along where it leads to something.
    """
    order: list[RaceNode] = []
    worths: list[float] = []
    open_nodes = {id(node) for node in waiting}
    total = 0.0
    for node in waiting:
        if committed_by[id(node)] < forward:
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


def committing_forwards(
    root: RaceNode, nodes: Iterable[RaceNode], begins_ms: Callable[[int], float]
) -> dict[int, int]:
    """By which forward each of ``nodes`` (by ``id``) will be committed, if it comes true.

    ``nodes`` are the tree's below ``root``, parents first, and ``begins_ms(k)`` is when forward k begins. A
    forward commits the nodes that are there by then, and as a token of its own the one behind them. ``root``
    itself has -1: it is committed.
    """
    found = {id(root): (-1, False)}
    for node in nodes:
        forward, is_in_time = found[id(node.parent)]
        if not is_in_time:  # its parent is known, or that forward's own token: this one is for the next
            forward += 1
        found[id(node)] = forward, node.arrives_ms <= begins_ms(forward)
    return {key: forward for key, (forward, _) in found.items()}


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
