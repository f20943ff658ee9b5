"""What of a race's tree goes up, and when: ids, messages and the room on the link."""

from __future__ import annotations

import math

from acespec.edge_runtime.draft_order import by_paths, committing_forwards, ranked_for
from acespec.edge_runtime.race_tree import RaceNode, RaceTree
from acespec.edge_runtime.session import EdgeSession
from acespec.edge_runtime.uplink_pacing import (
    MESSAGE_BYTES,
    NODE_LINK_BITS,
    ROOTED_HEADER_BYTES,
    TOKEN_SHARE,
    UplinkPacer,
)
from acespec.edge_runtime.uplink_timetable import UplinkTimetable
from acespec.wire import (
    DRAFTED_MODULUS,
    MAX_DRAFT_NODES,
    Commit,
    DraftNode,
    DraftsHeard,
    token_bits,
)

LEAST_SENT_VALUE = 0.003
"""Nodes less likely than this to come true are kept back: the server feeds first what came first."""
HEADER_BYTES = ROOTED_HEADER_BYTES + 3.0
"""Of a message's payload what is no node's: its header, and protobuf's tag and length."""
OPENING_BYTES = MESSAGE_BYTES - HEADER_BYTES + 100.0
"""On the wire besides the introduction: its framing, and about what the answer has more than a commit."""
PROBE_NODES = 8
"""Most nodes of a message that is to tell if the link is slow: it must be smaller than the introduction."""
NODE_WEIGHT = 0.1
"""Weight of a new message in the mean of what a node takes."""


class RaceSender:
    """Sends each node once, best first; for a new stream or request what still stands goes again."""

    def __init__(self, session: EdgeSession, tree: RaceTree) -> None:
        self.is_held_up = False
        """Whether nodes wait for room on the link, or for the server to take us in."""
        self.due_ms: float | None = None
        """When a message is to leave that waits for its time; None: none does."""
        self._session = session
        self._tree = tree
        self._node_bytes = (TOKEN_SHARE * token_bits(session.vocab_size) + NODE_LINK_BITS) / 8.0
        self._taken_bytes = self._node_bytes
        """What a node took in the mean of the messages so far: that depends on their order and tokens."""
        self._introduction = -1
        self._race = (-1, -1)
        """The stream, and the request over it, that ids count in."""
        self._next_id = self._arrived = 0
        self._pacer = UplinkPacer(0.0)
        self._timetable = UplinkTimetable(0.0, None)

    def committed(self, commit: Commit, now_ms: float) -> None:
        """``commit`` came."""
        self._timetable.committed(now_ms, commit.compute_ms, len(commit.tokens))

    def arrived(self, drafts: DraftsHeard, now_ms: float, step_ms: float) -> None:
        """A commit that came at ``now_ms`` told of drafts."""
        ahead = (drafts.next_id - self._arrived) % DRAFTED_MODULUS
        if 0 < ahead <= self._next_id - self._arrived:
            self._arrived += ahead
            self._pacer.arrived(self._arrived, now_ms - drafts.age_ms, step_ms)
            self._timetable.arrived(self._arrived, now_ms - drafts.age_ms)

    async def send(self, now_ms: float, step_ms: float, draft_ms: float) -> None:
        """Send what is worth it and finds room, or on a slow link has its time.

        ``step_ms`` is the target's step and ``draft_ms`` the next one of the draft.
        """
        self.due_ms = None
        if not self._session.takes_drafts:
            self.is_held_up = True
            return
        self._note_stream(step_ms)
        likely = self._tree.nodes(LEAST_SENT_VALUE)
        waiting = self._waiting(likely)
        if self._timetable.governs and not self._session.waits_for_drafts:
            await self._send_in_time(likely, waiting, now_ms, draft_ms)
            return
        values = [self._tree.value(node) for node in waiting]
        count = self._pacer.batch(values, self._node_bytes, now_ms, step_ms)
        if self._timetable.probes:
            count = min(count, PROBE_NODES)
        self.is_held_up = count < len(waiting)
        for start in range(0, count, MAX_DRAFT_NODES):
            await self._send(waiting[start : min(start + MAX_DRAFT_NODES, count)], now_ms)

    async def _send_in_time(
        self, likely: list[RaceNode], waiting: list[RaceNode], now_ms: float, draft_ms: float
    ) -> None:
        """Send what of ``waiting`` helps the next forward that can be reached, once it is time to."""
        timetable, tree = self._timetable, self._tree
        self.is_held_up = False
        if not timetable.forwards.known:
            return
        committed_by = committing_forwards(tree.root, likely, timetable.forwards.begins_ms)
        for slot in timetable.slots(self._taken_bytes, now_ms):
            ranked, gains = ranked_for(slot.forward, waiting, committed_by, tree.value)
            gains = gains[:MAX_DRAFT_NODES]
            departure = timetable.departure(slot, gains, self._taken_bytes, now_ms, draft_ms)
            if departure.count:
                await self._send(by_paths(ranked[: departure.count]), now_ms, departure.gain)
                return
            if departure.due_ms is not None:
                self.due_ms, self.is_held_up = departure.due_ms, True
                return

    async def _send(self, nodes: list[RaceNode], now_ms: float, gain: float = 0.0) -> None:
        first_id = self._next_id
        for node_id, node in enumerate(nodes, start=first_id):
            node.wire_id = node_id
        root, connection = self._tree.root, self._session.connection
        told = tuple(
            DraftNode(node.token, None if node.parent is root or node.parent is None else node.parent.wire_id)
            for node in nodes
        )
        position = root.position if any(node.parent is None for node in told) else 0
        self._next_id += len(nodes)
        self._pacer.sent(self._next_id, len(nodes), self._node_bytes, now_ms)
        self._session.statistics.drafted_nodes += len(nodes)
        sent_before = connection.traffic.up
        await self._session.send_draft(first_id, position, told)
        nodes_bytes = max(connection.traffic.up - sent_before - HEADER_BYTES, 0.0)
        arrives_ms = self._timetable.sent(first_id + len(nodes), MESSAGE_BYTES + nodes_bytes, now_ms, gain)
        for node in nodes:
            node.arrives_ms = arrives_ms
        self._taken_bytes += NODE_WEIGHT * (nodes_bytes / len(nodes) - self._taken_bytes)

    def _waiting(self, likely: list[RaceNode]) -> list[RaceNode]:
        """What of ``likely`` may be sent and was not, best first and parents before what follows them."""
        opened = self._session.opened
        assert opened is not None
        waiting = [node for node in likely if node.wire_id is None]
        num_sent = len(likely) - len(waiting)  # all of them: a node's chance never falls
        return waiting[: max(opened.max_race_nodes - num_sent, 0)]

    def _note_stream(self, step_ms: float) -> None:
        """Begin anew where the server knows nothing of what was sent."""
        connection = self._session.connection
        race = (connection.num_streams, self._session.request_seq)
        if (self._introduction, self._race) == (connection.num_introductions, race):
            return
        self._introduction = connection.num_introductions
        if self._race != race:
            self._race = race
            self._next_id = 0
        self._arrived = self._next_id
        self._pacer = UplinkPacer(self._first_window(step_ms))
        self._timetable = UplinkTimetable(
            connection.introduction_bytes + OPENING_BYTES, connection.opening_ms
        )
        for node in self._tree.nodes(LEAST_SENT_VALUE):
            node.wire_id = None
            node.arrives_ms = math.inf

    def _first_window(self, step_ms: float) -> float:
        """What the link carries in a step at least: so much went up while the introduction was answered.

        Half of that before the first commit has told how long a step is.
        """
        connection = self._session.connection
        opening_ms = max(connection.opening_ms or 0.0, 1.0)
        return connection.introduction_bytes * (min(step_ms / opening_ms, 1.0) if step_ms else 0.5)
