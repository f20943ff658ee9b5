"""When to speculate and when to let the cloud decode: decided from what each is expected to take.

Whoever tries rounds where they lose pays for that: with the rounds it takes to see it, and with a round trip
to go back. So it is kept on record how much later the text is than the cloud alone had been, and the more of
what may be lost is lost or at stake, the surer it must be that rounds win.

Pure: no clock, and what was observed is the only state. Neither a text nor its distribution hangs on it. In
coupled mode nothing changes the text; in residual mode what the cloud decodes is drawn from the target alone,
and every input here is time or was learned from final tokens (see ``Controller``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LEAST_GAIN = 0.05
"""Speculation begins only if it is expected to save this share of the time of a token."""
ALLOWED_LOSS = 0.02
"""How much later than the cloud alone a text may get by speculation that disappoints, as a share."""
SHORTEST_TEXT = 128
"""Tokens whose time that share is of, in a text that is shorter yet and may become so long."""
LEAST_CAUTION = 0.5
"""Standard errors by which acceptance is taken for lower, at least, before rounds begin."""
MISTAKE_TRIPS = 2.0
"""Round trips that it costs to begin rounds where they lose: one is seen to fail, and one leads back."""
TRUST = 16.0
"""Rounds' worth of belief in the model of time: what a few take hangs on how many began by a hit."""
MEMORY = 64.0
"""Rounds that what they are seen to take rests on."""


@dataclass(frozen=True)
class Outlook:
    """What the two ways to go on are expected to take. Times in milliseconds."""

    cloud_ms: float
    """For a token that the cloud decodes by itself, or in a race."""
    rounds_ms: Callable[[float], float]
    """For a token of rounds by the model of time, acceptance so many standard errors above its estimate."""
    round_trip_ms: float
    """What it costs to go back to the cloud: it stands idle until it is asked."""
    tokens_left: int


class ModeSwitch:
    """Remembers how rounds compared with what was expected of them, and with the cloud."""

    def __init__(self) -> None:
        self._expected_ms = self._seen_ms = 0.0
        """Of rounds, forgetting; relative to one expected round each."""
        self._late_ms = 0.0
        """How much later the text is than the cloud alone had been; below 0 earlier."""

    @property
    def slowness(self) -> float:
        """What rounds take, relative to what the model says."""
        return (TRUST + self._seen_ms) / (TRUST + self._expected_ms)

    def enters(self, outlook: Outlook, generated: int) -> bool:
        """Whether to begin rounds behind ``generated`` tokens; never once all is lost that may be."""
        if self._at_stake(outlook, generated, 0.0) >= 1.0:
            return False
        caution = max(self._at_stake(outlook, generated, MISTAKE_TRIPS), LEAST_CAUTION)
        saved_ms = outlook.cloud_ms - outlook.rounds_ms(-caution) * self.slowness
        if saved_ms < LEAST_GAIN * outlook.cloud_ms:
            return False
        return saved_ms * outlook.tokens_left > outlook.round_trip_ms

    def observe_round(self, round_ms: float, expected_ms: float, tokens: int, cloud_ms: float) -> None:
        """A round took ``round_ms`` where the model expects ``expected_ms`` of its kind on average.

        The cloud alone takes ``cloud_ms`` for a token.
        """
        keep = 1.0 - 1.0 / MEMORY
        self._expected_ms = keep * self._expected_ms + 1.0
        self._seen_ms = keep * self._seen_ms + round_ms / expected_ms
        self._late_ms += round_ms - tokens * cloud_ms

    def observe_race(self, forward_ms: float, tokens: int, cloud_ms: float) -> None:
        """A forward of a race took ``forward_ms``: what it gains may be put at stake later."""
        self._late_ms += min(forward_ms - tokens * cloud_ms, 0.0)

    def leaves(self, outlook: Outlook, generated: int) -> bool:
        """Whether to end rounds behind ``generated`` tokens."""
        caution = max(self._at_stake(outlook, generated, 1.0), 0.0)
        lost_ms = outlook.rounds_ms(-caution) * self.slowness - outlook.cloud_ms
        if lost_ms * outlook.tokens_left <= outlook.round_trip_ms:
            return False
        self._late_ms += outlook.round_trip_ms
        return True

    def _at_stake(self, outlook: Outlook, generated: int, trips: float) -> float:
        """What is lost, and what ``trips`` round trips would add to it, as a share of what may be lost."""
        tokens = max(generated, min(generated + outlook.tokens_left, SHORTEST_TEXT))
        allowed_ms = ALLOWED_LOSS * outlook.cloud_ms * max(tokens, 1)
        return (self._late_ms + trips * outlook.round_trip_ms) / max(allowed_ms, 1e-6)
