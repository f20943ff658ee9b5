"""What is drafted below the last token known: a tree that grows best first and goes along with the text.

A node is a drafted token. It is *open* once its parent has a row, from which it was drawn; a step *feeds*
open nodes, which gives them rows of their own and opens their children. Rows of fed nodes lie behind those of
the committed tokens, in the order fed. When tokens are committed the tree takes root anew in the last of
them: what hangs below it stays, rows included, the rest goes. A token that was not in the tree leaves
nothing: the draft model goes on from the truth.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from acespec.edge_runtime.budget import bucket_for
from acespec.edge_runtime.drafter import Drafter
from acespec.edge_runtime.node_values import Choice, NodeValues
from acespec.edge_runtime.reliability import LEAST_CHANCE
from acespec.speculation import CandidateRow, LogitsRow, tree_mask

LEAST_VALUE = 2e-3
"""A node less likely than this to come true is neither kept nor fed."""


@dataclass(eq=False, slots=True)
class RaceNode:
    """A drafted token, or the root: the last committed one."""

    token: int
    position: int
    parent: RaceNode | None
    log_chance: float
    """Logarithm of the chance that the target gets to it from where the tree began."""
    wire_id: int | None = None
    """Its id on the stream under way; None: not sent over it."""
    arrives_ms: float = math.inf
    """When it is expected to be there for a forward, by the sender's clock; infinite if it was not sent."""
    offset: int | None = None
    """Place of its row behind the committed ones; None: it has none there."""
    row: CandidateRow | None = None
    """What may follow, by the draft; None: not fed yet."""
    children: dict[int, RaceNode] = field(default_factory=dict)

    @property
    def is_fed(self) -> bool:
        return self.row is not None


class RaceTree:
    """Grows with one engine behind ``committed``, of which it keeps a copy: ``advance`` says what is new."""

    def __init__(
        self, drafter: Drafter, values: NodeValues, committed: Sequence[int], token_limit: int
    ) -> None:
        """Nothing is drafted from position ``token_limit - 1`` on: the target's own token ends the text.

        Of the engine's rows, those of ``committed`` but for its last token stay.
        """
        drafter.engine.truncate(min(drafter.engine.num_rows, len(committed) - 1))
        self._drafter = drafter
        self._values = values
        self._known = list(committed)
        self.token_limit = token_limit
        self._root = self._new_root()
        self._fed: list[RaceNode] = []
        """In the order of their rows."""
        self._unfed: list[RaceNode] = []

    @property
    def known(self) -> Sequence[int]:
        """The committed tokens it is behind."""
        return self._known

    @property
    def root(self) -> RaceNode:
        return self._root

    @property
    def num_fed(self) -> int:
        """Nodes below the root that have rows."""
        return len(self._fed)

    @property
    def needs_root(self) -> bool:
        """Whether the last known token must be fed before anything can grow."""
        return not self._root.is_fed

    def value(self, node: RaceNode) -> float:
        """Estimated probability that the target takes the path from the last known token to ``node``."""
        return math.exp(node.log_chance - self._root.log_chance)

    def nodes(self, least_value: float) -> list[RaceNode]:
        """All nodes of at least this value, best first: so that none comes before the one it follows."""
        floor = self._root.log_chance + math.log(least_value)
        likely = [node for node in chain(self._fed, self._unfed) if node.log_chance >= floor]
        return sorted(likely, key=_best_first)

    @property
    def line(self) -> list[int]:
        """The tokens the draft itself would go on with, as far as they are drafted."""
        return [node.token for node in self._line()]

    def advance(self, tokens: Iterable[int]) -> int:
        """Take root anew behind ``tokens``, which were committed; returns how many of them were in the tree.

        Each teaches what the row in its place was worth.
        """
        path: list[RaceNode] = []
        num_drafted, lost = 0, False
        for token in tokens:
            if not lost and self._root.row is not None:
                self._values.observe(self._root.row, len(self._known), token)
            self._known.append(token)
            child = None if lost else self._root.children.get(token)
            if child is None:
                lost = True
                continue
            num_drafted += 1
            self._root = child
            if child.is_fed:
                path.append(child)
        self._keep(path, lost)
        return num_drafted

    def can_feed_root(self) -> bool:
        """Whether the last known token is within the draft's context, and a drafted one may follow it."""
        return len(self._known) <= min(self._drafter.engine.max_context, self.token_limit - 2)

    async def feed_root(self) -> None:
        """Feed what is known and has no row."""
        pending = self._known[self._drafter.engine.num_rows :]
        logits = await self._drafter.feed(pending, "draft")
        self._open(self._root, logits)

    def open_nodes(self, most: int) -> list[RaceNode]:
        """The ``most`` likeliest nodes that a step may feed, best first."""
        floor = self._root.log_chance + math.log(LEAST_VALUE)
        last = min(self._drafter.engine.max_context - 1, self.token_limit - 3)
        ready = [node for node in self._unfed if node.log_chance >= floor and node.position <= last]
        return heapq.nsmallest(most, ready, key=_best_first)

    def width(self, nodes: Sequence[RaceNode], step_ms: Mapping[int, float]) -> int:
        """How many of ``nodes``, best first, to feed: most chance for the step's time. 0 if no step fits."""
        engine = self._drafter.engine
        values = [self.value(node) for node in nodes]
        rates: list[tuple[float, int]] = []
        for count in {min(bucket, len(nodes)) for bucket in engine.buckets}:
            bucket = bucket_for(max(count, 1), engine.buckets)
            if count and engine.num_rows + bucket <= engine.max_rows:
                rates.append((sum(values[:count]) / step_ms[bucket], count))
        return max(rates, default=(0.0, 0))[1]

    async def grow(self, nodes: Sequence[RaceNode]) -> None:
        """Feed ``nodes``, which are open, in one step."""
        num_prefix = self._drafter.engine.num_rows - len(self._fed)
        assert num_prefix == len(self._known), "the root has its row"
        for offset, node in enumerate(nodes, start=len(self._fed)):
            node.offset = offset
        self._fed += nodes
        parents = np.array([self._parent_offset(node) for node in self._fed], dtype=np.int64)
        mask = tree_mask(parents, num_prefix, len(nodes))
        tokens, positions = [node.token for node in nodes], [node.position for node in nodes]
        logits = await self._drafter.step(tokens, positions, mask, "growth")
        for index, node in enumerate(nodes):
            self._open(node, logits[index])
        self._unfed = [node for node in self._unfed if not node.is_fed]

    def can_extend_line(self) -> bool:
        """Whether the draft's own line can be made longer; its last token is then the next to be fed."""
        engine, line = self._drafter.engine, self._line()
        return (
            bool(line)
            and not line[-1].is_fed
            and line[-1].position <= min(engine.max_context - 1, self.token_limit - 3)
            and engine.num_rows + engine.buckets[0] <= engine.max_rows
        )

    async def extend_line(self) -> None:
        """Make the draft's own line a token longer."""
        await self.grow([self._line()[-1]])

    def clear(self) -> None:
        """Forget all that is drafted, rows included, and the last known token's: whoever goes on feeds it."""
        num_prefix = self._drafter.engine.num_rows - len(self._fed)
        self._drafter.engine.truncate(min(num_prefix, len(self._known) - 1))
        self._fed, self._unfed = [], []
        self._root = self._new_root()

    def _line(self) -> list[RaceNode]:
        line: list[RaceNode] = []
        node = self._root
        while node.row is not None and node.position + 1 <= self.token_limit - 2:
            picked = self._drafter.candidates(node.row, node.position + 1, 1, None)[0]
            if picked in self._drafter.rules.end_token_ids:
                break
            if picked not in node.children:
                self._add(node, Choice(picked, LEAST_CHANCE))
            node = node.children[picked]
            line.append(node)
        return line

    def _open(self, node: RaceNode, logits: LogitsRow) -> None:
        """``node`` has a row: keep it, and draft what may follow."""
        position = node.position + 1
        node.row = self._drafter.row(logits, self._known, self._path(node))
        if position <= self.token_limit - 2:
            for choice in self._values.choices(node.row, position):
                if choice.token not in self._drafter.rules.end_token_ids:  # nothing follows them
                    self._add(node, choice)

    def _add(self, parent: RaceNode, choice: Choice) -> None:
        log_chance = parent.log_chance + math.log(choice.chance)
        child = RaceNode(choice.token, parent.position + 1, parent, log_chance)
        parent.children[choice.token] = child
        self._unfed.append(child)

    def _below_root(self) -> Iterator[RaceNode]:
        waiting = list(self._root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def _path(self, node: RaceNode) -> list[int]:
        """Tokens from behind the root to ``node``."""
        path: list[int] = []
        while node is not self._root:
            path.append(node.token)
            assert node.parent is not None
            node = node.parent
        return path[::-1]

    def _parent_offset(self, node: RaceNode) -> int:
        parent = node.parent
        return -1 if parent is None or parent is self._root or parent.offset is None else parent.offset

    def _keep(self, path: Sequence[RaceNode], lost: bool) -> None:
        """Move the rows of ``path``, fed nodes that are committed now, and of what is below the root."""
        engine = self._drafter.engine
        num_prefix = engine.num_rows - len(self._fed)
        if lost:
            self._root = self._new_root()
        below: list[RaceNode] = []
        self._unfed = []
        for node in self._below_root():
            (below if node.is_fed else self._unfed).append(node)
        below.sort(key=_offset)
        kept = [*path, *below]
        if len(kept) < len(self._fed) or path:
            engine.compact(num_prefix, [num_prefix + _offset(node) for node in kept])
        for node in path:
            node.offset = None
        for offset, node in enumerate(below):
            node.offset = offset
        self._fed = below
        self._root.parent = None

    def _new_root(self) -> RaceNode:
        return RaceNode(self._known[-1], len(self._known) - 1, None, 0.0)


def _best_first(node: RaceNode) -> tuple[float, int]:
    return -node.log_chance, node.position


def _offset(node: RaceNode) -> int:
    assert node.offset is not None
    return node.offset
