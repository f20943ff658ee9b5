"""How many drafted nodes a forward takes along: what they make it cost, and what they are likely to bring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

DEARER = 1.05
"""What a forward with drafted nodes may cost, of one without."""
WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Tokens of a forward up to which costs are kept together: a target's cost rises in such steps."""
SMOOTHING = 0.1
"""Weight of a new measurement in a running mean."""
ENOUGH = 3
"""Measurements before a width is found too dear: the first may have been compiled or allocated for."""
OUTLIER = 2.0
"""Of the mean; what takes longer was held up by something else and counts as this much."""
EXPLORED_EVERY = 32
"""Steps with nodes after which all are brought that there is room for."""
TRIED_AGAIN = 256
"""Forwards after which a cost is measured again: other sessions have come, and longer texts."""


@dataclass
class _Cost:
    """What one kind of forward takes."""

    seconds: float
    count: int = 1
    measured: int = 0
    """Number of the forward it was measured at last."""

    def observe(self, seconds: float, measured: int) -> None:
        self.count += 1
        self.measured = measured
        if self.count <= ENOUGH:
            self.seconds = min(self.seconds, seconds)
        else:
            self.seconds += SMOOTHING * (min(seconds, OUTLIER * self.seconds) - self.seconds)


class ForwardCosts:
    """Seconds of a forward, as measured: without drafted nodes by its tokens, with them by its width."""

    def __init__(self) -> None:
        self._plain: dict[int, _Cost] = {}
        self._wide: dict[int, _Cost] = {}
        self._num_forwards = 0
        self.typical = 0.0
        """Seconds of a forward without nodes, lately; 0.0 before the first."""

    def observe(self, num_tokens: int, num_nodes: int, seconds: float) -> None:
        """One forward of checks alone, ``num_nodes`` of whose tokens were drafted nodes, took ``seconds``."""
        self._num_forwards += 1
        costs, key = (self._wide, _width(num_tokens)) if num_nodes else (self._plain, num_tokens)
        if key in costs:
            costs[key].observe(seconds, self._num_forwards)
        else:
            costs[key] = _Cost(seconds, measured=self._num_forwards)
        if not num_nodes:
            self.typical = costs[key].seconds

    def room(self, num_tokens: int) -> int:
        """How many nodes a forward of ``num_tokens`` may take along for at most ``DEARER`` times its cost.

        One width beyond those measured is tried. None, while no plain forward of so many tokens or fewer is
        well known.
        """
        plain = self._plain_cost(num_tokens)
        if plain is None:
            return 0
        widest = num_tokens
        for width in WIDTHS:
            if width <= num_tokens:
                continue
            cost = self._wide.get(width)
            too_dear = cost is not None and cost.seconds > DEARER * plain.seconds
            if cost is not None and too_dear and cost.count >= ENOUGH and not self._is_old(cost):
                break
            widest = width
            if cost is None or too_dear:
                break
        return widest - num_tokens

    def dearer(self, num_tokens: int, num_nodes: int) -> float:
        """What ``num_nodes`` make a forward of ``num_tokens`` cost, as a factor; 1.0 where nobody knows."""
        plain = self._plain_cost(num_tokens)
        if plain is None or plain.seconds <= 0.0:
            return 1.0
        last = _width(num_tokens + num_nodes)
        between = [self._wide.get(width) for width in WIDTHS if num_tokens < width <= last]
        return max([1.0, *[cost.seconds / plain.seconds for cost in between if cost is not None]])

    def _plain_cost(self, num_tokens: int) -> _Cost | None:
        """That of the plain forward nearest to one of ``num_tokens``, of those that are not wider."""
        known = [
            tokens
            for tokens, cost in self._plain.items()
            if tokens <= num_tokens and cost.count >= ENOUGH and not self._is_old(cost)
        ]
        return self._plain[max(known)] if known else None

    def _is_old(self, cost: _Cost) -> bool:
        return self._num_forwards - cost.measured >= TRIED_AGAIN


def _width(num_tokens: int) -> int:
    """The smallest of ``WIDTHS`` that holds ``num_tokens``, the largest if none does."""
    return next((width for width in WIDTHS if width >= num_tokens), WIDTHS[-1])


@dataclass(frozen=True)
class Offer:
    """What a forward that is about to begin has for one session's nodes."""

    room: int
    """Nodes it may bring."""
    num_sequences: int
    """Sequences in the forward: all of them wait for a wider one."""
    dearer: Callable[[int], float]
    """What so many nodes make the forward cost, as a factor."""


@dataclass
class NodeWorth:
    """How often a session's nodes came true, by their place in the order they were fed in."""

    rates: list[float] = field(default_factory=list)
    num_steps: int = 0

    def width(self, offer: Offer, available: int) -> int:
        """How many of ``available`` nodes to bring: the number with most tokens for the forward's time.

        Without nodes a forward commits a token for each sequence. Now and then as many as there is room for:
        the worth of nodes is known only from bringing them.
        """
        most = min(offer.room, available)
        if self.num_steps % EXPLORED_EVERY == 0:
            return most
        best, best_speed, gain = 0, float(offer.num_sequences), 0.0
        for index in range(most):
            gain += self._rate(index)
            speed = (offer.num_sequences + gain) / offer.dearer(index + 1)
            if speed >= best_speed:
                best, best_speed = index + 1, speed
        return best

    def learn(self, num_nodes: int, came_true: tuple[int, ...]) -> None:
        """Of ``num_nodes`` fed those with the indexes ``came_true`` were committed."""
        self.num_steps += 1
        while len(self.rates) < num_nodes:
            self.rates.append(self._rate(len(self.rates)))
        for index in range(num_nodes):
            self.rates[index] += SMOOTHING / 2.0 * ((index in came_true) - self.rates[index])

    def _rate(self, index: int) -> float:
        return self.rates[index] if index < len(self.rates) else 1.0 / (index + 2)
