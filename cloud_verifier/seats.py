"""Which sessions have their keys and values in the engine, and whose are given up when room is short."""

from __future__ import annotations

from dataclasses import dataclass

from acespec.cloud_verifier.batcher import Batcher
from acespec.cloud_verifier.engine import KvPoolFullError
from acespec.cloud_verifier.observer import Observer


@dataclass(eq=False)
class Seat:
    """One session's place in the engine. Times are the event loop's, in seconds."""

    max_tokens: int
    """Tokens its sequence may hold."""
    tenant: str
    sequence: int | None = None
    """The engine's handle; None while the session has no keys and values."""
    filled: int = 0
    """Committed tokens the sequence holds."""
    paid: int = 0
    """Committed tokens that the tenant's rate was charged for since the sequence was begun."""
    working: bool = False
    """Whether the session is using it: it cannot be given up now."""
    parked: bool = False
    """Whether the session has no stream: it is given up before those that have one."""
    last_used: float = 0.0


class NoRoomError(Exception):
    """All room for keys and values is taken by sessions that are at work."""


class Seats:
    """Seats sessions as long as there is room, and then instead of the one that was idle longest.

    What a session loses are keys and values alone: it keeps its committed tokens, from which they are
    computed anew.
    """

    def __init__(self, batcher: Batcher, room: int, evict_after_s: float, observer: Observer) -> None:
        """``room`` is how many tokens the engine has room for.

        A session with a stream gives its place up only after ``evict_after_s`` seconds of idleness.
        """
        self._batcher = batcher
        self._room = room
        self._evict_after_s = evict_after_s
        self._observer = observer
        self._seated: set[Seat] = set()

    @property
    def kv_tokens(self) -> int:
        """Tokens that room is set aside for."""
        return sum(seat.max_tokens for seat in self._seated)

    async def take(self, seat: Seat, now: float) -> None:
        """Give ``seat`` a sequence, an empty one if it had none, and hold it until ``rest``.

        Raises ``NoRoomError`` if every other seat is at work or was lately.
        """
        assert not seat.working
        seat.working = True
        try:
            while seat.sequence is None:
                seat.sequence = self._open(seat.max_tokens)
                if seat.sequence is None:
                    await self._evict_one(seat.max_tokens, now)
        except BaseException:
            seat.working = False
            raise
        self._seated.add(seat)

    def rest(self, seat: Seat, now: float) -> None:
        """The session has stopped using its seat for the moment."""
        seat.working = False
        seat.last_used = now

    def park(self, seat: Seat) -> None:
        """The session has lost its stream."""
        seat.parked = True
        if seat.sequence is not None:
            self._batcher.park(seat.sequence)

    def unpark(self, seat: Seat) -> None:
        """The session has a stream again."""
        seat.parked = False
        if seat.sequence is not None:
            self._batcher.wake(seat.sequence)

    async def leave(self, seat: Seat) -> None:
        """Free the seat, at work or not; whoever waits for its work gets ``StepAbandonedError``."""
        sequence, seat.sequence, seat.filled, seat.paid = seat.sequence, None, 0, 0
        self._seated.discard(seat)
        if sequence is not None:
            await self._batcher.close(sequence)

    def _open(self, max_tokens: int) -> int | None:
        """A sequence, or None if there is no room for it."""
        try:
            return self._batcher.open(max_tokens)
        except KvPoolFullError:
            return None

    async def _evict_one(self, wanted: int, now: float) -> None:
        """Free the seat that was idle longest, those without a stream first.

        None, if all of them would not make room for ``wanted`` tokens (what an engine rounds up aside).
        """
        idle = [
            seat
            for seat in self._seated
            if not seat.working and (seat.parked or now - seat.last_used >= self._evict_after_s)
        ]
        kept = self.kv_tokens - sum(seat.max_tokens for seat in idle)
        if not idle or kept + wanted > self._room:
            raise NoRoomError
        oldest = min(idle, key=lambda seat: (not seat.parked, seat.last_used))
        self._observer.evicted(oldest.tenant)
        await self.leave(oldest)
