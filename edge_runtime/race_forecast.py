"""How fast a race is expected to be: a token-by-token simulation of edge, link and target.

Drafted tokens are taken for in the tree with one probability each, whatever stands before them. Each step of
the draft model makes the tree a token deeper on the target's path, up to the first token that is not in it;
from there the edge goes on when it hears of that token. A forward of the target commits those drafted tokens
that have come by its beginning, and one more. Pure: the same chances always give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from acespec.edge_runtime.time_model import OutcomeOdds
from acespec.wire import Eagerness

LEAST_GAIN = 0.05
"""Share of a token's time that a race at a server that waits for drafts must save."""
NUM_TOKENS = 4096
"""Of the text that is simulated: enough for a few percent, in about half a millisecond."""


@dataclass(frozen=True)
class RaceSetting:
    """What a race's speed follows from. Times in milliseconds."""

    target_ms: float
    """A forward of the target."""
    round_trip_ms: float
    step_ms: float
    """A growth step of the draft."""
    coverage: float
    """Probability that the target's token is among those drafted in its place."""
    uplink_ms: float = 0.0
    """What a message of drafts takes on the link besides, its queue included."""


@dataclass(frozen=True)
class RaceForecast:
    """What is expected of a race."""

    ms_per_token: float
    forwards_per_token: float


def coverage(odds: OutcomeOdds, width: int) -> float:
    """The chance that the target's token is in a tree that grows by ``width`` nodes a step.

    The draft's own token is. Of the others, a tree has room for about ``log2(width) / 4`` in each place on
    the target's path: the rest of its nodes hang on tokens that the target did not take. (Fitted to tables of
    random logits, whose races at an acceptance of 0.68 go as with 0.87 of the places covered.)
    """
    others = math.log2(max(width, 1)) / 4.0
    if others < 1.0:
        share = others * odds.first_rejected
    else:
        share = 1.0 - (1.0 - odds.first_rejected) * others**-odds.beta
    return odds.alpha + (1.0 - odds.alpha) * share


def forecast_race(setting: RaceSetting) -> RaceForecast:
    """Simulate `NUM_TOKENS` tokens of a race."""
    is_drafted = (_chances() < setting.coverage).tolist()
    half_ms, step_ms = setting.round_trip_ms / 2.0, setting.step_ms
    arrived_ms = [math.inf] * (NUM_TOKENS + 1)
    """When the target has each token as a drafted one."""
    row_ms, waits_for = half_ms, 0
    """When the edge has the row before the first token that it does not have drafted, and which that is."""
    began_ms, num_forwards, num_committed = 0.0, 0, 0
    while num_committed < NUM_TOKENS:
        while waits_for < NUM_TOKENS and is_drafted[waits_for]:
            arrived_ms[waits_for] = row_ms + half_ms + setting.uplink_ms
            row_ms += step_ms
            waits_for += 1
        while num_committed < NUM_TOKENS and arrived_ms[num_committed] <= began_ms:
            num_committed += 1
        num_committed += 1  # the target's own
        num_forwards += 1
        began_ms += setting.target_ms
        if num_committed > waits_for:
            heard_ms = began_ms + half_ms + step_ms / 2.0  # a step is under way, half of it on average
            row_ms, waits_for = max(row_ms, heard_ms) + step_ms, num_committed
    return RaceForecast(began_ms / num_committed, num_forwards / num_committed)


@lru_cache(maxsize=1)
def _chances() -> NDArray[np.float64]:
    return np.random.default_rng(0).random(NUM_TOKENS + 1)


def best_race(
    target_ms: float,
    round_trip_ms: float,
    step_ms: Mapping[int, float],
    odds: OutcomeOdds,
    uplink_ms: float = 0.0,
) -> RaceForecast:
    """The fastest race with steps of one width, of those that ``step_ms`` has the milliseconds of."""
    races = [
        RaceSetting(target_ms, round_trip_ms, step_ms[width], coverage(odds, width), uplink_ms)
        for width in step_ms
    ]
    return min(map(forecast_race, races), key=lambda forecast: forecast.ms_per_token)


def race_pays(eagerness: Eagerness | None, cloud_ms: float, race_ms: Callable[[], float]) -> bool:
    """Whether to race rather than to let the cloud decode alone, by what a token is expected to take of each.

    A race is no slower than the cloud alone (but for what a busy server that is ``BALANCED`` lets it wait
    while nothing is drafted), so it takes that one's place wherever it is granted, unless the server waits
    for drafts (``COST``): then it must save a share ``LEAST_GAIN``. ``race_ms`` is asked there alone: to
    tell takes a simulation.
    """
    if eagerness is Eagerness.COST:
        return race_ms() < (1.0 - LEAST_GAIN) * cloud_ms
    return eagerness is not None
