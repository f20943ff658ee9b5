"""A racing session's drafted tokens that may still come true: a tree below the last committed token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from acespec.wire import Draft, DraftNode

TIP = -1
"""What stands for the last committed token where a node's parent is named."""


@dataclass(frozen=True)
class Branches:
    """Nodes to be fed behind the last committed token, each after the one it follows."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    """Index of the node that each one follows; ``TIP``: it follows the last committed token."""


NO_BRANCHES = Branches((), ())


class _Node(NamedTuple):
    parent: int
    """Id of the node it follows, or ``TIP``."""
    token: int
    position: int
    """Where the token would stand."""


class DraftTree:
    """Takes nodes as they come and forgets those that what is committed contradicts.

    Nothing that is added can be wrong: what comes twice, too late, too early, or after something unknown is
    ignored, and what comes when the tree is full is dropped. A call costs no more than the nodes it holds.
    """

    def __init__(self, committed: Sequence[int], max_nodes: int) -> None:
        """``committed`` is looked at as it grows: ``advance`` says when."""
        self._committed = committed
        self._max_nodes = max_nodes
        self._tip = len(committed) - 1
        self._next_id = 0
        self._nodes: dict[int, _Node] = {}  # in the order sent, so that parents come first
        self._children: dict[tuple[int, int], int] = {}  # by parent and token
        self._twins: dict[int, int] = {}  # ids of nodes that say what another said before: the other's id
        self._passed: dict[int, int] = {}  # ids of nodes that came true: the position of their token

    def __len__(self) -> int:
        """Nodes that may still come true."""
        return len(self._nodes)

    @property
    def next_id(self) -> int:
        """The id behind that of the last node that was offered."""
        return self._next_id

    def add(self, draft: Draft) -> int:
        """Take the nodes of ``draft``; returns how many of them are new and may come true."""
        before = len(self._nodes)
        for node_id, node in enumerate(draft.nodes, draft.first_id):
            if node_id >= self._next_id:
                self._next_id = node_id + 1
                self._add(node_id, node, draft.root)
        return len(self._nodes) - before

    def advance(self) -> None:
        """Keep what stands below the tokens committed since, and drop the rest."""
        at: int | None = TIP
        for token in self._committed[self._tip + 1 :]:
            self._tip += 1
            at = None if at is None else self._children.get((at, token))
            if at is not None:
                self._note_passed(at, self._tip)
        if at != TIP:
            self._keep_below(at)

    def select(self, most: int, last_position: int) -> Branches:
        """The first ``most`` nodes in the order sent, none of which would stand beyond ``last_position``."""
        tokens: list[int] = []
        parents: list[int] = []
        indexes = {TIP: TIP}
        for node_id, node in self._nodes.items():
            if len(tokens) >= most:
                break
            if node.position <= last_position:
                indexes[node_id] = len(tokens)
                tokens.append(node.token)
                parents.append(indexes[node.parent])
        return Branches(tuple(tokens), tuple(parents))

    def _add(self, node_id: int, node: DraftNode, root: int) -> None:
        position = root if node.parent is None else self._passed.get(node.parent)
        if position is None:
            assert node.parent is not None
            parent = self._twins.get(node.parent, node.parent)
            if parent in self._nodes:
                self._hang(node_id, node.token, parent, self._nodes[parent].position + 1)
        elif position == self._tip:
            self._hang(node_id, node.token, TIP, position + 1)
        elif 0 <= position < self._tip and self._committed[position + 1] == node.token:
            self._note_passed(node_id, position + 1)  # late, but what follows it may be in time

    def _hang(self, node_id: int, token: int, parent: int, position: int) -> None:
        if len(self._nodes) + len(self._twins) >= self._max_nodes:
            return
        twin = self._children.setdefault((parent, token), node_id)
        if twin == node_id:
            self._nodes[node_id] = _Node(parent, token, position)
        else:
            self._twins[node_id] = twin

    def _note_passed(self, node_id: int, position: int) -> None:
        """Remember where the node's token stands, for nodes that follow it; of many, the latest."""
        self._passed[node_id] = position
        if len(self._passed) > self._max_nodes:
            del self._passed[next(iter(self._passed))]

    def _keep_below(self, top: int | None) -> None:
        """Make what follows ``top`` follow the tip, and drop the rest; None: everything."""
        kept: dict[int, _Node] = {}
        for node_id, node in self._nodes.items():
            if node.parent == top:
                kept[node_id] = node._replace(parent=TIP)
            elif node.parent in kept:
                kept[node_id] = node
        for twin, other in list(self._twins.items()):
            if other in self._passed:
                self._note_passed(twin, self._passed[other])
            if other not in kept:
                del self._twins[twin]
        self._nodes = kept
        self._children = {(node.parent, node.token): node_id for node_id, node in kept.items()}
