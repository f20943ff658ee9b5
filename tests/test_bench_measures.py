"""Measures are ratios of sums; differences are bounded over prompts, as all resamples bound them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.bench.lab.measures import HIT_RATE, MEASURES, THROUGHPUT, TTFT, Runs, difference, quotient
from acespec.bench.lab.strategy import RunResult
from bench_world import RESULT

NAMES = "abcdefgh"


def run(total_ms: float = 1000.0, tokens: int = 4, hits: int = 1, lookups: int = 2) -> RunResult:
    return replace(RESULT, total_ms=total_ms, tokens=(1,) * tokens, hits=hits, lookups=lookups)


def by_prompt(*results: RunResult) -> Runs:
    return {name: [result] for name, result in zip(NAMES, results, strict=False)}


runs_of_prompts = st.lists(
    st.builds(run, st.floats(100.0, 5000.0), st.integers(1, 50), st.integers(0, 3), st.integers(3, 9)),
    min_size=6,
    max_size=6,
).map(lambda results: by_prompt(*results))


def test_a_measure_weighs_a_run_by_what_it_took() -> None:
    runs = by_prompt(run(1000.0, 10, hits=1, lookups=1), run(3000.0, 10, hits=0, lookups=3))
    assert THROUGHPUT.of(runs) == pytest.approx(5.0)  # not the mean of 10 and 3.3
    assert HIT_RATE.of(runs) == pytest.approx(0.25)
    assert TTFT.of(runs) == 200.0


def test_every_measure_is_what_its_run_says() -> None:
    assert {measure.name: measure.of(by_prompt(RESULT)) for measure in MEASURES} == pytest.approx(
        {
            "tokens_per_s": RESULT.tokens_per_s,
            "ttft_ms": 200.0,
            "hit_rate": RESULT.hit_rate,
            "ready_tokens_per_hit": 3.0,
            "acceptance": RESULT.acceptance,
            "target_forwards_per_token": 0.5,
            "payload_up_per_token": 10.0,
            "payload_down_per_token": 5.0,
            "wire_up_per_token": 100.0,
            "wire_down_per_token": 50.0,
            "edge_idle_share": 0.5,
            "inexact_share": 0.0,
        }
    )


def test_a_measure_without_anything_to_measure_is_none() -> None:
    nothing = by_prompt(run(hits=0, lookups=0))
    assert HIT_RATE.of(nothing) is None
    assert difference(HIT_RATE, nothing, by_prompt(RESULT)).value is None
    assert quotient(HIT_RATE, by_prompt(RESULT), by_prompt(run(hits=0))).value is None


@settings(max_examples=25)
@given(first=runs_of_prompts, second=runs_of_prompts)
def test_bounds_over_three_prompts_are_the_extremes_of_all_resamples(first: Runs, second: Runs) -> None:
    # Of the 27 resamples each is drawn with probability 1/27, more than the fortieth beyond a bound.
    first, second = ({name: runs[name] for name in "abc"} for runs in (first, second))
    slow = []
    for drawn in itertools.product("abc", repeat=3):
        ours, theirs = ([runs[name][0] for name in drawn] for runs in (first, second))
        slow.append(rate(ours) - rate(theirs))
    fast = difference(THROUGHPUT, first, second)
    assert (fast.low, fast.high) == (pytest.approx(min(slow)), pytest.approx(max(slow)))


def rate(results: Sequence[RunResult]) -> float:
    return sum(1000.0 * len(r.tokens) for r in results) / sum(r.total_ms for r in results)


def test_bounds_over_eight_prompts_are_binomial_where_one_prompt_makes_the_difference() -> None:
    same = by_prompt(*(run(1000.0, 10) for _ in NAMES))
    more = {**same, "a": [run(1000.0, 18)]}
    gain = difference(THROUGHPUT, more, same)
    # Prompt a is drawn n times of 8, each with probability 1/8, and gains n tokens a second:
    # P(n <= 2) = 0.933, P(n <= 3) = 0.989, and the bound has 0.975 below it.
    assert (gain.value, gain.low, gain.high) == (pytest.approx(1.0), pytest.approx(0.0), pytest.approx(3.0))


@given(first=runs_of_prompts, second=runs_of_prompts)
@settings(max_examples=25)
def test_differences_are_antisymmetric_and_quotients_invert(first: Runs, second: Runs) -> None:
    there, back = difference(THROUGHPUT, first, second), difference(THROUGHPUT, second, first)
    assert there.low is not None
    assert back.high is not None
    assert (there.value, there.low) == (pytest.approx(-(back.value or 0.0)), pytest.approx(-back.high))
    ratio, inverse = quotient(THROUGHPUT, first, second), quotient(THROUGHPUT, second, first)
    assert ratio.value == pytest.approx(1.0 / (inverse.value or math.nan))


@given(runs=runs_of_prompts)
@settings(max_examples=10)
def test_a_run_does_not_differ_from_itself(runs: Runs) -> None:
    same = difference(THROUGHPUT, runs, runs)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_pairing_tells_a_small_steady_gain_from_prompts_that_differ_much() -> None:
    slow = by_prompt(*(run(total_ms) for total_ms in (500.0, 900.0, 2000.0, 5000.0, 9000.0)))
    fast = {name: [replace(r, total_ms=r.total_ms * 0.99) for r in runs] for name, runs in slow.items()}
    gain = difference(THROUGHPUT, fast, slow)
    assert gain.low is not None
    assert gain.low > 0.0


@given(first=runs_of_prompts, second=runs_of_prompts)
@settings(max_examples=10)
def test_repeating_a_prompt_under_other_seeds_alone_does_not_narrow_bounds(first: Runs, second: Runs) -> None:
    once = difference(THROUGHPUT, first, second)
    thrice = difference(
        THROUGHPUT, *({name: [*runs] * 3 for name, runs in each.items()} for each in (first, second))
    )
    assert (thrice.low, thrice.high) == (pytest.approx(once.low), pytest.approx(once.high))


def test_a_single_prompt_has_no_bounds() -> None:
    one = difference(THROUGHPUT, by_prompt(run(500.0)), by_prompt(run(1000.0)))
    assert (one.value, one.low, one.high) == (pytest.approx(4.0), None, None)


def test_what_is_not_paired_is_not_compared() -> None:
    with pytest.raises(AssertionError):
        difference(THROUGHPUT, by_prompt(RESULT, RESULT), by_prompt(RESULT))
