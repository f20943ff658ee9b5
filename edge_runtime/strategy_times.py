"""What each way to generate takes for a token, in closed form: the figures of ``acespec plan``.

Every formula stands in its function's docstring, with

* ``d``: a draft step at the edge, ``dc`` one in the cloud; ``T``: a step of the target, however many tokens
  of a chain go through it; all in milliseconds,
* ``a``: the probability that a drafted token is accepted; ``E(g) = (1 - a^(g+1)) / (1 - a)``: tokens a round
  of g drafted ones commits,
* ``up(b)`` and ``down(b)``: the time b bytes of payload take on the link at its rate, with what a message
  adds.

Prompt, first token and the end of the text are left out: it is the time of a token in the middle of a long
one. Chains are as long as is best for each strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from google.protobuf.message import Message

from acespec.edge_runtime.race_forecast import best_race
from acespec.edge_runtime.time_model import (
    GAMMAS,
    OutcomeOdds,
    RoundForecast,
    RoundSetting,
    best_forecast,
    expected_tokens,
)
from acespec.wire import (
    GRPC_BYTES,
    GRPC_UPDATE_BYTES,
    TCP_IP_BYTES,
    AcceptanceMode,
    Codec,
    Commit,
    Draft,
    DraftNode,
    RejectVerdict,
    Round,
    TargetDraws,
    TokenVerdict,
    token_bits,
)

MESSAGE_BYTES = GRPC_BYTES + TCP_IP_BYTES
"""What a message of one segment has on the wire beside its payload, in plaintext."""
UPDATE_BYTES = GRPC_UPDATE_BYTES
"""What one that answers another has besides."""
SPEEDUP_IN_CLOUD = 1555.0 / 204.8
"""How much faster the draft runs beside the target: an A100's memory against an AGX Orin's, in GB/s."""
HALF_BYTES = 2
"""Of a probability or logit on the wire, where a strategy sends whole distributions."""
CHAINS_IN_FLIGHT = 4
"""Chains PicoSpec sends ahead of their verdicts."""
DRAFTED_AT_ONCE = 4
"""Nodes in a message of the race: of a step's, those that are worth their bytes."""
FIRST_DRAWS = 8
"""Draws of the target that a rejection in residual mode comes with."""
AT_THE_EDGE = ("vanilla", "dssd", "picospec", "acespec_coupled", "acespec_residual", "race")
"""Strategies whose draft model runs at the edge."""
LONGEST_TRIP_MS = 10_000.0
"""Round trips beyond it are not looked at."""


@dataclass(frozen=True)
class Scenario:
    """A link, two models, and how well one guesses the other."""

    round_trip_ms: float
    bytes_per_ms: float
    """Each way; infinite for a link without a limit."""
    target_step_ms: float
    draft_step_ms: Mapping[int, float]
    """By width; the smallest drafts one token."""
    odds: OutcomeOdds
    vocab_size: int
    cloud_draft_step_ms: float | None = None
    """A draft step beside the target; None: `SPEEDUP_IN_CLOUD` times faster than at the edge."""
    message_bytes: int = MESSAGE_BYTES
    """Of every message beside its payload; 0 to count payload alone."""
    update_bytes: int = UPDATE_BYTES
    """The same, of one that answers another."""
    gamma: int | None = None
    """AceSpec's chain; None: the best."""
    budget: int | None = None
    """AceSpec's gamma and branches; None: the best."""

    @property
    def step_ms(self) -> float:
        """A draft step of one token at the edge."""
        return self.draft_step_ms[min(self.draft_step_ms)]

    def link_ms(self, payload_bytes: float) -> float:
        """Time a message that answers another takes on the link besides its delay."""
        return self.streamed_ms(payload_bytes + self.update_bytes)

    def streamed_ms(self, payload_bytes: float) -> float:
        """The same of one in a stream that nothing is sent against."""
        return (payload_bytes + self.message_bytes) / self.bytes_per_ms


@dataclass(frozen=True)
class StrategyTime:
    """What one strategy takes."""

    name: str
    ms_per_token: float
    gamma: int | None = None
    """Longest chain; None where nothing is drafted."""
    redraft: int | None = None
    """AceSpec: the chain after a miss."""
    budget: int | None = None
    """AceSpec: gamma and branches."""
    hit_rate: float | None = None
    forwards_per_token: float | None = None
    """Of the target; None where the formula does not tell."""

    @property
    def tokens_per_s(self) -> float:
        return 1000.0 / self.ms_per_token


def autoregressive(scenario: Scenario) -> StrategyTime:
    """The cloud decodes alone and streams: ``max(T, down(one token))``."""
    codec = Codec(scenario.vocab_size, AcceptanceMode.COUPLED)
    down_ms = scenario.streamed_ms(_size(codec.encode_cloud(Commit(0, (0,)))))
    return StrategyTime("autoregressive", max(scenario.target_step_ms, down_ms), forwards_per_token=1.0)


def vanilla(scenario: Scenario) -> StrategyTime:
    """Stop and wait, draft distributions up: ``(g d + up(g rows of V) + RTT + T + down(1)) / E(g)``."""
    row_bytes = scenario.vocab_size * HALF_BYTES

    def round_ms(gamma: int) -> float:
        up_ms = scenario.link_ms(gamma * (row_bytes + _token_bytes(scenario)))
        return _waiting_ms(scenario, gamma) + up_ms + scenario.link_ms(_token_bytes(scenario) + 1)

    return _best_chain("vanilla", scenario, round_ms)


def dssd(scenario: Scenario) -> StrategyTime:
    """Stop and wait, a target distribution down if a token is rejected:
    ``(g d + up(g) + RTT + T + down((1 - a^g) V)) / E(g)``."""

    def round_ms(gamma: int) -> float:
        rejected = 1.0 - scenario.odds.alpha**gamma
        up_ms = scenario.link_ms(gamma * (_token_bytes(scenario) + HALF_BYTES))
        return (
            _waiting_ms(scenario, gamma)
            + up_ms
            + scenario.link_ms(1.0 + rejected * scenario.vocab_size * HALF_BYTES)
        )

    return _best_chain("dssd", scenario, round_ms)


def picospec(scenario: Scenario) -> StrategyTime:
    """One chain after another without waiting, until a token is rejected and all behind it is void.

    A stretch from one rejection to the next commits ``1 / (1 - a)`` tokens and spans ``n = 1 / (1 - a^g)``
    chains. They follow each other by ``c = max(g d, T, up(g), (g d + RTT + T) / in flight)``, and the last
    one's verdict must arrive before the next can be drafted:
    ``((n - 1) c + g d + up(g) + RTT + T + down(1)) (1 - a)``.
    """
    alpha = min(scenario.odds.alpha, 1.0 - 1e-6)

    def ms_per_token(gamma: int) -> float:
        up_ms = scenario.link_ms(gamma * (_token_bytes(scenario) + HALF_BYTES))
        alone_ms = _waiting_ms(scenario, gamma) + up_ms + scenario.link_ms(_token_bytes(scenario) + 1)
        cycle_ms = max(gamma * scenario.step_ms, scenario.target_step_ms, up_ms, alone_ms / CHAINS_IN_FLIGHT)
        return ((1.0 / (1.0 - alpha**gamma) - 1.0) * cycle_ms + alone_ms) * (1.0 - alpha)

    gamma = min(GAMMAS, key=ms_per_token)
    return StrategyTime("picospec", ms_per_token(gamma), gamma)


def colocated(scenario: Scenario) -> StrategyTime:
    """Both models in the cloud, commits streamed: ``max(g dc + T, down(E(g))) / E(g)``."""
    step_ms = scenario.cloud_draft_step_ms
    if step_ms is None:
        step_ms = scenario.step_ms / SPEEDUP_IN_CLOUD

    def round_ms(gamma: int) -> float:
        down_ms = scenario.link_ms(expected_tokens(scenario.odds.alpha, gamma) * _token_bytes(scenario))
        return max(gamma * step_ms + scenario.target_step_ms, down_ms)

    return _best_chain("colocated", scenario, round_ms)


def acespec(scenario: Scenario, mode: AcceptanceMode) -> StrategyTime:
    """Rounds at their best gamma and budget, by ``time_model``: a round takes
    ``RTT + T + up(g) + down(verdict)``, and after a miss a redraft."""
    forecast = acespec_forecast(scenario, mode)
    plan = forecast.plan
    return StrategyTime(
        f"acespec_{mode.value}",
        forecast.ms_per_token,
        plan.gamma,
        plan.redraft,
        plan.budget,
        forecast.hit_rate,
        1.0 / forecast.tokens,
    )


def race(scenario: Scenario) -> StrategyTime:
    """The cloud decodes and takes along what has been drafted: `race_forecast`, whose drafts take
    ``up(a step's token and its siblings)`` longer; not more than one commit in ``down(one token)``."""
    codec = Codec(scenario.vocab_size, AcceptanceMode.COUPLED)
    typical = 1 << token_bits(scenario.vocab_size) // 2  # of half the bits, and half of them told before
    nodes = tuple(DraftNode(typical + index // 2, None) for index in range(DRAFTED_AT_ONCE))
    up_ms = scenario.link_ms(_size(codec.encode_edge(Draft(0, 0, 0, nodes))))
    commit_bytes = _size(codec.encode_cloud(Commit(0, (0,))))
    forecast = best_race(
        scenario.target_step_ms,
        scenario.round_trip_ms + scenario.link_ms(commit_bytes),
        scenario.draft_step_ms,
        scenario.odds,
        up_ms,
    )
    ms_per_token = max(
        forecast.ms_per_token, forecast.forwards_per_token * scenario.streamed_ms(commit_bytes)
    )
    return StrategyTime("race", ms_per_token, forwards_per_token=forecast.forwards_per_token)


def acespec_forecast(scenario: Scenario, mode: AcceptanceMode) -> RoundForecast:
    """What rounds are expected to take. In residual mode the verdict on a rejected chain brings draws."""
    codec = Codec(scenario.vocab_size, mode)
    residual = mode is AcceptanceMode.RESIDUAL
    short, long = 8, 40
    short_bytes, long_bytes = (
        _size(codec.encode_edge(Round(0, 0, (0,) * n, (1,) * n if residual else ()))) for n in (short, long)
    )
    token_bytes = (long_bytes - short_bytes) / (long - short)
    empty_bytes = short_bytes - short * token_bytes
    accepted_bytes = _size(codec.encode_cloud(TokenVerdict(0, 0, 0)))
    draws = TargetDraws(16, 0, (0,) * FIRST_DRAWS, (1,) * FIRST_DRAWS)
    rejected_bytes = _size(codec.encode_cloud(RejectVerdict(0, 0, draws))) if residual else accepted_bytes

    def best(rejected: float) -> RoundForecast:
        down_bytes = rejected * rejected_bytes + (1.0 - rejected) * accepted_bytes
        setting = RoundSetting(
            scenario.round_trip_ms
            + scenario.target_step_ms
            + scenario.link_ms(empty_bytes)
            + scenario.link_ms(down_bytes),
            scenario.draft_step_ms,
            scenario.odds,
            chain_token_ms=token_bytes / scenario.bytes_per_ms,
        )
        gammas = None if scenario.gamma is None else (scenario.gamma,)
        return best_forecast(setting, gammas, scenario.budget)

    forecast = best(rejected=1.0)
    return best(1.0 - scenario.odds.alpha**forecast.plan.gamma) if residual else forecast


def all_strategies(scenario: Scenario) -> list[StrategyTime]:
    """Every strategy there is a formula for; ``auto`` is the best of the cloud alone, the race and rounds."""
    alone, raced = autoregressive(scenario), race(scenario)
    coupled = acespec(scenario, AcceptanceMode.COUPLED)
    auto = replace(min(raced, coupled, alone, key=lambda s: s.ms_per_token), name="auto")
    return [
        alone,
        vanilla(scenario),
        dssd(scenario),
        picospec(scenario),
        colocated(scenario),
        coupled,
        acespec(scenario, AcceptanceMode.RESIDUAL),
        raced,
        auto,
    ]


def break_even_ms(scenario: Scenario, mode: AcceptanceMode = AcceptanceMode.COUPLED) -> float | None:
    """The longest round trip at which rounds are no slower than the cloud alone; None if there is none.

    Rounds take a little less at some longer round trips, where one more step of the tree fits in; what is
    found is the last crossing, to a hundredth of a millisecond.
    """
    alone_ms = autoregressive(scenario).ms_per_token

    def gain_ms(round_trip_ms: float) -> float:
        there = replace(scenario, round_trip_ms=round_trip_ms)
        return alone_ms - acespec_forecast(there, mode).ms_per_token

    # E(g) is below 1 / (1 - a): beyond this not even free drafts would win.
    limit_ms = alone_ms / max(1.0 - scenario.odds.alpha, 1e-6) - scenario.target_step_ms
    longest_ms = min(max(limit_ms, 0.0), LONGEST_TRIP_MS)
    if gain_ms(longest_ms) >= 0.0:
        return longest_ms
    steps = 200
    wins = next((n for n in range(steps - 1, -1, -1) if gain_ms(n * longest_ms / steps) >= 0.0), None)
    if wins is None:
        return None
    low, high = wins * longest_ms / steps, (wins + 1) * longest_ms / steps
    while high - low > 0.01:
        middle = (low + high) / 2.0
        low, high = (middle, high) if gain_ms(middle) >= 0.0 else (low, middle)
    return low


def _best_chain(name: str, scenario: Scenario, round_ms: Callable[[int], float]) -> StrategyTime:
    def ms_per_token(gamma: int) -> float:
        return round_ms(gamma) / expected_tokens(scenario.odds.alpha, gamma)

    gamma = min(GAMMAS, key=ms_per_token)
    forwards = 1.0 / expected_tokens(scenario.odds.alpha, gamma)
    return StrategyTime(name, ms_per_token(gamma), gamma, forwards_per_token=forwards)


def _waiting_ms(scenario: Scenario, gamma: int) -> float:
    """Paper, III-A: T_naive, the bytes left out."""
    return gamma * scenario.step_ms + scenario.round_trip_ms + scenario.target_step_ms


def _token_bytes(scenario: Scenario) -> float:
    return max(8, math.ceil(math.log2(scenario.vocab_size))) / 8.0


def _size(message: Message) -> int:
    return message.ByteSize()
