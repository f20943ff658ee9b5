"""Every strategy's closed form by hand, by a slow simulation, or by what must follow from it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.edge_runtime.strategy_times import (
    CHAINS_IN_FLIGHT,
    Scenario,
    acespec,
    acespec_forecast,
    all_strategies,
    autoregressive,
    break_even_ms,
    colocated,
    dssd,
    picospec,
    race,
    vanilla,
)
from acespec.edge_runtime.time_model import OutcomeOdds, expected_tokens
from acespec.wire import AcceptanceMode, Codec, Round, TokenVerdict

FREE = Scenario(
    round_trip_ms=50.0,
    bytes_per_ms=math.inf,
    target_step_ms=72.0,
    draft_step_ms={1: 8.5, 16: 8.5},
    odds=OutcomeOdds(0.59, 0.8),
    vocab_size=1024,  # 10 bits a token
)


def limited(rate_kbps: float, message_bytes: int = 0, update_bytes: int = 0) -> Scenario:
    return replace(FREE, bytes_per_ms=rate_kbps / 8.0, message_bytes=message_bytes, update_bytes=update_bytes)


def test_the_cloud_alone_is_as_fast_as_its_target_or_its_link() -> None:
    assert autoregressive(FREE).ms_per_token == 72.0
    assert autoregressive(limited(10.0)).ms_per_token == 72.0
    # position 3 bytes, duration 1, token 10 bits: 6 bytes, and 2 of protobuf; 92 of the message: 100 bytes
    assert autoregressive(limited(10.0, 92, update_bytes=26)).ms_per_token == pytest.approx(80.0)


def test_stop_and_wait_by_hand() -> None:
    one = vanilla(FREE)
    assert one.gamma is not None
    assert one.ms_per_token == pytest.approx((8.5 * one.gamma + 122.0) / expected_tokens(0.59, one.gamma))
    assert dssd(FREE).ms_per_token == pytest.approx(one.ms_per_token), "without a limit bytes are free"
    # 1 Mbps is 125 bytes/ms: a row of 2048 bytes takes 16.4 ms, up for each token or down if one is rejected
    up, down = vanilla(limited(1000.0)), dssd(limited(1000.0))
    assert up.gamma is not None
    assert down.gamma is not None
    tokens = expected_tokens(0.59, up.gamma)
    sent = up.gamma * (2048 + 1.25) + 2.25
    assert up.ms_per_token == pytest.approx((8.5 * up.gamma + 122.0 + sent / 125.0) / tokens)
    tokens = expected_tokens(0.59, down.gamma)
    sent = down.gamma * 3.25 + 1.0 + (1.0 - 0.59**down.gamma) * 2048
    assert down.ms_per_token == pytest.approx((8.5 * down.gamma + 122.0 + sent / 125.0) / tokens)


@pytest.mark.parametrize("alpha", [0.4, 0.8])
@pytest.mark.parametrize("round_trip_ms", [10.0, 200.0])
def test_a_single_chain_pipeline_is_what_its_chains_give_one_by_one(
    alpha: float, round_trip_ms: float
) -> None:
    scenario = replace(FREE, round_trip_ms=round_trip_ms, odds=OutcomeOdds(alpha, 0.8))
    expected = picospec(scenario)
    gamma = expected.gamma
    assert gamma is not None
    generator = np.random.default_rng(5)
    alone_ms = 8.5 * gamma + round_trip_ms + 72.0
    cycle_ms = max(8.5 * gamma, 72.0, alone_ms / CHAINS_IN_FLIGHT)
    time_ms, tokens = 0.0, 0
    for _ in range(20_000):  # from one rejection to the next
        accepted = 0
        while generator.random() < alpha:
            accepted += 1
        time_ms += accepted // gamma * cycle_ms + alone_ms
        tokens += accepted + 1
    assert expected.ms_per_token == pytest.approx(time_ms / tokens, rel=0.03)


def test_both_models_in_the_cloud_do_without_the_round_trip() -> None:
    near, far = (
        colocated(replace(FREE, cloud_draft_step_ms=2.0)),
        colocated(replace(FREE, cloud_draft_step_ms=2.0, round_trip_ms=500.0)),
    )
    assert near == far
    assert near.gamma is not None
    expected = (72.0 + 2.0 * near.gamma) / expected_tokens(0.59, near.gamma)
    assert near.ms_per_token == pytest.approx(expected)
    assert colocated(FREE).ms_per_token < near.ms_per_token, "1.1 ms by default"


def test_acespec_counts_the_bytes_its_codec_makes() -> None:
    codec = Codec(1024, AcceptanceMode.COUPLED)
    plain = replace(FREE, gamma=8, budget=24)
    forecast = acespec_forecast(plain, AcceptanceMode.COUPLED)
    slow = acespec_forecast(
        replace(plain, bytes_per_ms=2.0, message_bytes=70, update_bytes=20), AcceptanceMode.COUPLED
    )
    up = codec.encode_edge(Round(0, 0, (0,) * 8)).ByteSize()
    down = codec.encode_cloud(TokenVerdict(0, 0, 0)).ByteSize()
    longer_ms = (up + down + 180) / 2.0
    assert slow.hit_rate == pytest.approx(forecast.hit_rate), "there was time for the whole tree before"
    # rounds that a miss begins are as long: a redraft of 8 tokens, or fewer
    assert slow.round_ms - forecast.round_ms == pytest.approx(longer_ms, abs=3.0)
    residual = acespec(replace(plain, bytes_per_ms=2.0), AcceptanceMode.RESIDUAL)
    coupled = acespec(replace(plain, bytes_per_ms=2.0), AcceptanceMode.COUPLED)
    assert residual.ms_per_token > coupled.ms_per_token + 5.0, "weights up, draws down"


@pytest.mark.parametrize(
    ("target_ms", "draft_ms", "alpha", "measured"),
    [
        (72.0, 8.5, 0.59, {10.0: 1.90, 50.0: 1.34, 100.0: 0.97, 200.0: 0.63}),
        (146.0, 15.0, 0.59, {10.0: 2.10, 50.0: 1.69, 100.0: 1.36, 200.0: 0.99}),
    ],
)
def test_rounds_replayed_from_the_demo_pairs_ranks(
    target_ms: float, draft_ms: float, alpha: float, measured: dict[float, float]
) -> None:
    """An event simulation over recorded ranks, trees of 16 nodes a step, measured independently of this."""
    for round_trip_ms, speedup in measured.items():
        scenario = replace(
            FREE,
            round_trip_ms=round_trip_ms,
            target_step_ms=target_ms,
            draft_step_ms={1: draft_ms, 16: draft_ms},
            odds=OutcomeOdds(alpha, 0.8),
        )
        predicted = target_ms / acespec(scenario, AcceptanceMode.COUPLED).ms_per_token
        assert predicted == pytest.approx(speedup, rel=0.05)


def drafted(round_trip_ms: float, target_ms: float, draft_ms: float, alpha: float) -> Scenario:
    """With draft steps that are half as long again at 16 tokens."""
    return replace(
        FREE,
        round_trip_ms=round_trip_ms,
        target_step_ms=target_ms,
        draft_step_ms={1: draft_ms, 16: 1.5 * draft_ms},
        odds=OutcomeOdds(alpha, 0.8),
    )


@given(
    st.floats(0.0, 300.0),
    st.floats(5.0, 200.0),
    st.floats(1.0, 40.0),
    st.floats(0.05, 0.95),
)
def test_the_break_even_round_trip_is_where_rounds_stop_winning(
    round_trip_ms: float, target_ms: float, draft_ms: float, alpha: float
) -> None:
    scenario = drafted(round_trip_ms, target_ms, draft_ms, alpha)
    break_even = break_even_ms(scenario)

    def gain_ms(trip_ms: float) -> float:
        there = replace(scenario, round_trip_ms=trip_ms)
        return target_ms - acespec(there, AcceptanceMode.COUPLED).ms_per_token

    if break_even is None:
        assert gain_ms(0.0) < 0.0
        return
    assert gain_ms(break_even) >= -1e-9
    assert gain_ms(break_even + 0.011) < 0.0 or break_even == 10_000.0
    assert gain_ms(break_even + 2.0 * draft_ms) < 0.0 or break_even == 10_000.0
    strategies = {s.name: s for s in all_strategies(scenario)}
    best = min(strategies["acespec_coupled"].ms_per_token, strategies["race"].ms_per_token, target_ms)
    assert strategies["auto"].ms_per_token == best


@given(
    round_trip_ms=st.floats(0.0, 300.0),
    target_ms=st.floats(5.0, 150.0),
    draft_ms=st.floats(1.0, 50.0),
    alpha=st.floats(0.05, 0.95),
)
def test_a_race_is_never_slower_than_the_cloud_alone(
    round_trip_ms: float, target_ms: float, draft_ms: float, alpha: float
) -> None:
    scenario = drafted(round_trip_ms, target_ms, draft_ms, alpha)
    raced = race(scenario)
    assert raced.ms_per_token <= autoregressive(scenario).ms_per_token * (1.0 + 1e-9)
    assert raced.forwards_per_token == pytest.approx(raced.ms_per_token / target_ms)


def test_on_a_slow_link_a_race_takes_no_less_than_its_commits_do() -> None:
    scenario = limited(10.0, 66, update_bytes=26)
    raced = race(scenario)
    assert raced.forwards_per_token is not None
    commit_ms = autoregressive(scenario).ms_per_token
    assert raced.ms_per_token >= raced.forwards_per_token * commit_ms * (1.0 - 1e-9)
    assert race(FREE).ms_per_token < raced.ms_per_token
