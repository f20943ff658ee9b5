"""When a message of drafts leaves over a slow link, and how much it takes along.

On such a link a message takes a good part of a target step, and most of what it costs does not depend on its
nodes: so there is one for each forward of the target, as late as it may leave to be there when the forward
begins, with what was drafted until then. Of forwards under way nobody knows yet which path they take, but of
each path of the tree it is known how far they would get, by what was sent (`draft_order`). Where a message
brings less than it costs, the link is left alone. Pure: times are passed in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from acespec.edge_runtime.uplink_pacing import MESSAGE_BYTES
from acespec.edge_runtime.uplink_timing import ForwardTimes, UplinkDelay
from acespec.wire import GRPC_UPDATE_BYTES

SLOW_SHARE = 0.03
"""A link is slow on which a message without nodes takes more than this share of a target step."""
DOUBTFUL_MS = 60.0
"""If such a message takes longer, by the introduction's delay, the link may be slow."""
TOKENS_PER_STEP = 0.35
"""What nodes must bring for each target step of the link's time: every one, not only all together."""
COST_BYTES = float(GRPC_UPDATE_BYTES)
"""What a message costs the downlink, and must be worth at least: what gRPC adds to the next commit for it.
TCP's acknowledgement mostly travels with a commit."""
SMALL_MESSAGE_NODES = 4
"""Nodes of a small message: a forward that this would reach is one that the next message can be for."""
ROOMY_NODES = 64
"""Nodes of a message that has room for about all that is worth sending."""
SAME_SHARE = 0.2
"""Share by which a message's delay may differ from a larger one's where bytes take next to no time."""
LARGER_FACTOR = 1.5
"""How many times as large that one must be for this to say anything."""
PROBED_EVERY = 128
"""Commits after which a message goes that is not worth it, while that is in doubt."""
KEPT = 0.97
"""Weight of what one commit brought against the next."""
BELIEVED = 1.0
"""Tokens that count as expected, and as having come, beside those of this stream: before much was sent, the
nodes' estimated chances are believed."""


@dataclass(frozen=True)
class Slot:
    """What one message may be for."""

    forward: int
    """That it is to be there for, counted as by `ForwardTimes`."""
    gone_by_ms: float
    """When it must have left the link."""


@dataclass(frozen=True)
class Departure:
    """What to do now about a message."""

    count: int = 0
    """How many nodes it takes; 0: none goes now."""
    due_ms: float | None = None
    """When to ask again, if it is to go then; None: when something has changed."""
    gain: float = 0.0
    """Tokens it is expected to bring."""


class UplinkTimetable:
    """Keeps the times of one stream."""

    def __init__(self, opening_bytes: float, opening_ms: float | None) -> None:
        """``opening_ms``: how long the introduction, of so many bytes on the wire, waited for its answer."""
        self.delay = UplinkDelay()
        self.forwards = ForwardTimes()
        self._opening = (opening_bytes, opening_ms or 0.0)
        self._doubted_byte_ms = 0.0
        """What a byte may take as far as the introduction tells; 0.0 once that is not to be feared."""
        if opening_ms is not None:
            self.delay.observe(opening_bytes, max(opening_ms, 0.0))
            byte_ms = opening_ms / opening_bytes
            self._doubted_byte_ms = byte_ms if MESSAGE_BYTES * byte_ms > DOUBTFUL_MS else 0.0
        self._under_way: dict[int, tuple[float, float]] = {}
        """By the id behind its last node: bytes, and when it left."""
        self._free_ms = self._surely_free_ms = -math.inf
        """When the link has carried what was sent: as expected, and at the latest."""
        self._expected = self._came = BELIEVED
        """Tokens of late that messages were expected to bring, and that commits had beyond one each."""
        self._silent = 0
        """Commits since the last message."""
        self._has_sent = False

    @property
    def probes(self) -> bool:
        """Whether one small message goes at once: a way that is merely long looks slow until it is heard."""
        return self._doubted_byte_ms > 0.0 and not self._has_sent

    @property
    def governs(self) -> bool:
        """Whether the link is so slow, or may be, that messages must leave by the timetable."""
        if self._doubted_byte_ms:
            return not self.probes
        message_ms = MESSAGE_BYTES * self.delay.least_byte_ms
        return self.forwards.known and message_ms > SLOW_SHARE * self.forwards.interval_ms

    def committed(self, now_ms: float, compute_ms: float, num_tokens: int) -> None:
        """A commit of ``num_tokens`` came, whose forward took ``compute_ms``."""
        self.forwards.committed(now_ms, compute_ms)
        self._expected = BELIEVED + KEPT * (self._expected - BELIEVED)
        self._came = BELIEVED + KEPT * (self._came - BELIEVED) + num_tokens - 1
        self._silent += 1

    def sent(self, end_id: int, num_bytes: float, now_ms: float, gain: float) -> float:
        """A message of ``num_bytes`` on the wire left, whose last node has the id ``end_id - 1``.

        ``gain``: tokens it is expected to bring. Returns when it is expected to be there.
        """
        if self._surely_free_ms <= now_ms:  # else its delay would tell of the queue
            self._under_way[end_id] = (num_bytes, now_ms)
        self._free_ms = max(self._free_ms, now_ms) + num_bytes * self.delay.byte_ms
        self._surely_free_ms = max(self._surely_free_ms, now_ms) + num_bytes * self.delay.most_byte_ms
        self._expected += gain
        self._silent = 0
        self._has_sent = True
        return self._free_ms + self.delay.base_ms

    def arrived(self, end_id: int, at_ms: float) -> None:
        """All nodes below ``end_id`` had come at ``at_ms``, the way back of a commit counted in."""
        newest = self._under_way.get(end_id)
        if newest is not None:
            num_bytes, left_ms = newest
            self.delay.observe(num_bytes, at_ms - left_ms)
            self._doubt_less(num_bytes, at_ms - left_ms)
        self._under_way = {end: sent for end, sent in self._under_way.items() if end > end_id}

    def slots(self, node_bytes: float, now_ms: float) -> list[Slot]:
        """What messages may be for now, the first first. ``forwards`` must be known.

        That is the first forward that a small message reaches which leaves as a commit comes: what is for a
        later one can wait for the next commit, and be chosen by what that says. Only if few nodes reach it is
        there another message behind that one, for the forward after it.
        """
        delay, forwards = self.delay, self.forwards
        overdue = forwards.overdue(now_ms)
        small_ms = delay.ms(MESSAGE_BYTES + SMALL_MESSAGE_NODES * node_bytes)
        first = overdue + forwards.begun_within(small_ms)
        slots = [Slot(first, self._gone_by_ms(first))]
        room_ms = slots[0].gone_by_ms - forwards.begins_ms(overdue) - delay.byte_ms * MESSAGE_BYTES
        if room_ms < delay.byte_ms * node_bytes * ROOMY_NODES:
            next_commit_ms = forwards.begins_ms(overdue + 1)
            slots.append(Slot(first + 1, min(self._gone_by_ms(first + 1), next_commit_ms)))
        return slots

    def departure(
        self, slot: Slot, gains: Sequence[float], node_bytes: float, now_ms: float, draft_ms: float
    ) -> Departure:
        """Whether a message leaves now for the forward of ``slot``.

        ``gains``: what its first 1, 2, … nodes would bring, and ``node_bytes`` what each takes. ``draft_ms``:
        the next step of the draft, which it may wait for. ``forwards`` must be known.
        """
        leaves_ms = max(now_ms, self._free_ms)
        node_ms = max(self.delay.byte_ms * node_bytes, 1e-6)
        spare_ms = slot.gone_by_ms - leaves_ms - self.delay.byte_ms * MESSAGE_BYTES
        count = min(self._best_count(gains, node_bytes), int(spare_ms / node_ms))
        if count < 1 or gains[count - 1] * min(self._came / self._expected, 1.0) < self._least_gain:
            return Departure()
        slack_ms = spare_ms - node_ms * count
        if slack_ms > draft_ms:
            return Departure(due_ms=now_ms + slack_ms - draft_ms)
        return Departure(count, gain=gains[count - 1])

    def _gone_by_ms(self, forward: int) -> float:
        """When a message must have left the link to be there for ``forward``."""
        return self.forwards.begins_ms(forward) - self.delay.ms(0.0)

    def _best_count(self, gains: Sequence[float], node_bytes: float) -> int:
        """How many nodes bring most, the time that their bytes take the link for subtracted."""
        price = TOKENS_PER_STEP * node_bytes * self.delay.byte_ms / self.forwards.interval_ms
        net = [gain - price * index for index, gain in enumerate(gains)]
        return net.index(max(net)) + 1 if net else 0

    def _doubt_less(self, num_bytes: float, delay_ms: float) -> None:
        """If a smaller message than the introduction took as long, it is the way that is long."""
        opening_bytes, opening_ms = self._opening
        is_same = abs(delay_ms - opening_ms) < SAME_SHARE * opening_ms
        if is_same and num_bytes < opening_bytes / LARGER_FACTOR and not self.forwards.held_up:
            self._doubted_byte_ms = 0.0

    @property
    def _least_gain(self) -> float:
        """Tokens that the link could carry in the time that a message costs it."""
        if self._doubted_byte_ms and self._silent >= PROBED_EVERY:
            return 0.0
        byte_ms = max(self.delay.byte_ms, self._doubted_byte_ms)
        return COST_BYTES * byte_ms / self.forwards.interval_ms
