"""How much may be sent on the uplink now, and what: so that no queue builds up before it.

Drafted nodes are worth something only while they are in time; on a slow link every byte that waits there
delays those behind it. Commits tell what has arrived of them and when (``Commit.drafts``), so it is seen how
long messages take, and what one takes longer than the fastest did is queueing. The bytes under way are kept
in a window that grows while there is less queueing than a third of a target step and shrinks while there is
more (the controller of LEDBAT, RFC 6817, in proportion). On a fast link the window is never full, and nodes
go at once. On a slow one they gather until the next message may go, and the best for their bytes go with it.

Pure: times are passed in. Bytes are those on the wire, what a message costs besides its content included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from acespec.wire import GRPC_BYTES, GRPC_UPDATE_BYTES, TCP_IP_BYTES, TLS_BYTES

ROOTED_HEADER_BYTES = 8
"""A ``Draft`` before its nodes, with the position of a committed token."""
MESSAGE_BYTES = float(GRPC_BYTES + GRPC_UPDATE_BYTES + TLS_BYTES + TCP_IP_BYTES + ROOTED_HEADER_BYTES)
"""What a message takes besides its nodes: the most, for it may travel without TLS or follow no commit."""
TOKEN_SHARE = 0.6
"""About what a drafted token takes in a message, of the bits of a token: as sent for the demo's pair."""
NODE_LINK_BITS = 3
"""About what a node takes beside its token, as sent for the same."""
LEAST_WINDOW = 1.5 * MESSAGE_BYTES
HISTORY = 64
"""Messages among which the fastest is looked for."""
RECENT = 3
"""Messages of which the fastest tells how long the queue is now: a link has jitter."""
GAIN = 0.25
"""Share by which the window changes at most, once it has been too wide, while a window's bytes arrive."""
QUEUE_STEPS = 0.35
"""Target steps that the queue is to take. It is seen late, so that at times it is twice as long."""
PATIENCE_STEPS = 6.0
"""Target steps after which what is under way counts as arrived or lost, though nothing says so."""


@dataclass(frozen=True)
class _Sent:
    """A message under way."""

    end_id: int
    """Id behind that of its last node."""
    num_bytes: float
    at_ms: float


class UplinkPacer:
    """Keeps the window of one stream."""

    def __init__(self, first_window: float) -> None:
        """``first_window``: bytes that may be under way before anything is known."""
        self._window = max(first_window, LEAST_WINDOW)
        self._under_way: deque[_Sent] = deque()
        self._delays_ms: deque[float] = deque(maxlen=HISTORY)
        self._was_full = False
        self._starts = True
        """Whether the window has never been too wide: it then doubles."""

    @property
    def window(self) -> float:
        """Bytes that may be under way."""
        return self._window

    @property
    def under_way(self) -> float:
        """Bytes sent that are not known to have arrived."""
        return sum(sent.num_bytes for sent in self._under_way)

    @property
    def queue_ms(self) -> float:
        """How much longer messages take now than the fastest did."""
        if not self._delays_ms:
            return 0.0
        return min(list(self._delays_ms)[-RECENT:]) - min(self._delays_ms)

    def batch(self, values: Sequence[float], node_bytes: float, now_ms: float, step_ms: float) -> int:
        """How many of the nodes with ``values``, best first, to send now, ``node_bytes`` each; 0: wait.

        Once the window is full, a message waits until all that are worth their bytes fit, or nothing is under
        way.
        """
        self._forget(now_ms, step_ms)
        if not values:
            return 0
        room = self._window - self.under_way
        everything = MESSAGE_BYTES + node_bytes * len(values)
        if everything <= room / 2.0:
            return len(values)
        count = worth_sending(values, MESSAGE_BYTES, node_bytes)
        if MESSAGE_BYTES + node_bytes * count <= room:
            return count
        self._was_full = True
        if self._under_way:
            return 0
        return max(min(count, int((self._window - MESSAGE_BYTES) / node_bytes)), 1)

    def sent(self, end_id: int, num_nodes: int, node_bytes: float, now_ms: float) -> None:
        """A message of ``num_nodes`` was sent, whose last has the id ``end_id - 1``."""
        self._under_way.append(_Sent(end_id, MESSAGE_BYTES + node_bytes * num_nodes, now_ms))

    def arrived(self, end_id: int, at_ms: float, step_ms: float) -> None:
        """All nodes below ``end_id`` had come at ``at_ms``, give or take what is the same for all messages.

        ``step_ms``: what a step of the target takes, by which the queue is measured.
        """
        num_bytes, newest = 0.0, None
        while self._under_way and self._under_way[0].end_id <= end_id:
            newest = self._under_way.popleft()
            num_bytes += newest.num_bytes
        if newest is None:
            return
        self._delays_ms.append(at_ms - newest.at_ms)
        off_target = 1.0 - self.queue_ms / max(QUEUE_STEPS * step_ms, 1e-3)
        self._starts = self._starts and off_target > 0.0
        if off_target > 0.0 and not self._was_full:
            return  # it was not the window that held anything up
        gain = 1.0 if self._starts else GAIN
        self._window += gain * max(off_target, -1.0) * min(num_bytes, self._window)
        self._window = max(self._window, LEAST_WINDOW)
        self._was_full = False

    def _forget(self, now_ms: float, step_ms: float) -> None:
        """Give up on what nothing was heard of for long: a server that waits for drafts commits nothing."""
        slowest_ms = max(self._delays_ms, default=1000.0)
        limit_ms = slowest_ms + PATIENCE_STEPS * step_ms
        while self._under_way and now_ms - self._under_way[0].at_ms > limit_ms:
            self._under_way.popleft()


def worth_sending(values: Sequence[float], overhead: float, cost: float) -> int:
    """How many of ``values``, best first, make the most of a message's bytes: value / (overhead + n * cost).

    Another one is worth its bytes while it has more for them than the message so far has on average.
    """
    total, count = 0.0, 0
    for value in values:
        if count and value * (overhead + cost * count) < total * cost:
            break
        total += value
        count += 1
    return count
