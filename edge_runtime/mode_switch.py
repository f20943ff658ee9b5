"""When to speculate and when to let the cloud decode: decided from what each is expected to take.

Pure: no clock, and what was observed is the only state. Neither a text nor its distribution hangs on it. In
coupled mode nothing changes the text; in residual mode what the cloud decodes is drawn from the target alone,
and every input here is time or was learned from final tokens (see ``Controller``).
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_GAIN = 0.05
"""Speculation begins only if it is expected to save this share of the time of a token."""
ALLOWED_LOSS = 0.02
"""How much later than the cloud alone a text may get by speculation that disappoints, before that ends."""
SHORTEST_TEXT = 128
"""Tokens whose time that share is of, in a text that is shorter yet."""
FIRST_BAR = 64
"""Tokens for which speculation that was seen to lose is not tried again; twice as many each time."""
TRUST = 4.0
"""Rounds' worth of belief in the model of time, against what rounds are seen to take."""
MEMORY = 64.0
"""Rounds that what they are seen to take rests on."""


@dataclass(frozen=True)
class Outlook:
    """What the two ways to go on are expected to take. Times in milliseconds."""

    cloud_ms: float
    """For a token that the cloud decodes by itself."""
    rounds_ms: float
    """For a token of rounds, by the model of time."""
    round_trip_ms: float
    """What it costs to go back to the cloud: it stands idle until it is asked."""
    tokens_left: int


class ModeSwitch:
    """Remembers how rounds compared with what was expected of them, and with the cloud."""

    def __init__(self) -> None:
        self._expected_ms = self._seen_ms = 0.0
        """Of rounds, forgetting; relative to one expected round each."""
        self._loss_ms = 0.0
        """How much later the text is by the rounds since they began."""
        self._barred_until = 0
        self._bar = FIRST_BAR

    @property
    def slowness(self) -> float:
        """What rounds take, relative to what the model says."""
        return (TRUST + self._seen_ms) / (TRUST + self._expected_ms)

    def enters(self, cautious: Outlook, generated: int) -> bool:
        """Whether to begin rounds behind ``generated`` tokens; ``cautious`` with acceptance taken low."""
        saved_ms = cautious.cloud_ms - cautious.rounds_ms * self.slowness
        if generated < self._barred_until or saved_ms < LEAST_GAIN * cautious.cloud_ms:
            return False
        self._loss_ms = 0.0
        return saved_ms * cautious.tokens_left > cautious.round_trip_ms

    def observe_round(self, round_ms: float, expected_ms: float, tokens: int, cloud_ms: float) -> None:
        """A round took ``round_ms`` where the model expects ``expected_ms`` of its kind on average."""
        keep = 1.0 - 1.0 / MEMORY
        self._expected_ms = keep * self._expected_ms + 1.0
        self._seen_ms = keep * self._seen_ms + round_ms / expected_ms
        self._loss_ms += round_ms - tokens * cloud_ms

    def leaves(self, outlook: Outlook, generated: int) -> bool:
        """Whether to end rounds behind ``generated`` tokens: they are expected, or were seen, to lose."""
        lost_ms = outlook.rounds_ms * self.slowness - outlook.cloud_ms
        if lost_ms * outlook.tokens_left > outlook.round_trip_ms:
            return True
        allowed_ms = ALLOWED_LOSS * outlook.cloud_ms * max(generated, SHORTEST_TEXT)
        if self._loss_ms <= allowed_ms + outlook.round_trip_ms or outlook.tokens_left <= 0:
            return False
        self._barred_until = generated + self._bar
        self._bar *= 2
        return True
