"""What is measured of a cell: ratios of sums over its runs, and bounds of their differences.

Every measure is a ratio of two sums, so that a long text weighs what it takes. Bounds are bootstrapped over
prompts: the runs of one prompt (its seeds) are drawn together, for they are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acespec.bench.lab.strategy import RunResult

RESAMPLES = 10_000
LEVEL = 0.95
"""Share of resamples between the bounds."""
_TAILS = (1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0
_SEED = 20_260_101
"""Of the bootstrap: the same runs give the same bounds."""

Figure = Callable[[RunResult], float]
Runs = Mapping[str, Sequence[RunResult]]
"""Results by prompt."""


@dataclass(frozen=True)
class Measure:
    """``sum(numerator) / sum(denominator)`` over runs."""

    name: str
    numerator: Figure
    denominator: Figure
    meaning: str

    def of(self, runs: Runs) -> float | None:
        """Its value; None where the denominator is 0."""
        numerators, denominators = self.sums(runs)
        total = float(denominators.sum())
        return float(numerators.sum()) / total if total else None

    def sums(self, runs: Runs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Numerator and denominator of each prompt ``[P]``, in the order of their names."""
        by_prompt = [runs[name] for name in sorted(runs)]
        return (
            np.array([sum(map(self.numerator, results)) for results in by_prompt], np.float64),
            np.array([sum(map(self.denominator, results)) for results in by_prompt], np.float64),
        )


def _tokens(result: RunResult) -> float:
    return float(len(result.tokens))


THROUGHPUT = Measure("tokens_per_s", lambda r: 1000.0 * len(r.tokens), lambda r: r.total_ms, "tokens / s")
TTFT = Measure("ttft_ms", lambda r: r.ttft_ms, lambda _: 1.0, "from request to first token, mean, ms")
HIT_RATE = Measure(
    "hit_rate", lambda r: r.hits, lambda r: r.lookups, "answers for which one token at least was ready"
)
MEASURES = (
    THROUGHPUT,
    TTFT,
    HIT_RATE,
    Measure("ready_tokens_per_hit", lambda r: r.ready_tokens, lambda r: r.hits, "tokens ready at a hit"),
    Measure("acceptance", lambda r: r.accepted, lambda r: r.tested, "accepted of tested tokens"),
    Measure("target_forwards_per_token", lambda r: r.target_forwards, _tokens, "without the prompt's"),
    Measure("payload_up_per_token", lambda r: r.payload_up, _tokens, "bytes of messages, the prompt's too"),
    Measure("payload_down_per_token", lambda r: r.payload_down, _tokens, "bytes of messages"),
    Measure("wire_up_per_token", lambda r: r.wire_up, _tokens, "bytes on the wire, acknowledgements too"),
    Measure("wire_down_per_token", lambda r: r.wire_down, _tokens, "bytes on the wire, acknowledgements too"),
    Measure(
        "edge_idle_share",
        lambda r: r.edge_idle_share * r.total_ms,
        lambda r: r.total_ms,
        "time in which the edge computes nothing",
    ),
    Measure("inexact_share", lambda r: r.inexact, _tokens, "tokens the target would not have put there"),
)


@dataclass(frozen=True)
class Bounded:
    """A value with its bounds; bounds are None where they cannot be told, as from a single prompt."""

    value: float | None
    low: float | None = None
    high: float | None = None


def difference(measure: Measure, first: Runs, second: Runs) -> Bounded:
    """``first`` minus ``second``, which must be of the same prompts and seeds."""
    return _bounded(measure, first, second, np.subtract)


def quotient(measure: Measure, first: Runs, second: Runs) -> Bounded:
    """``first`` over ``second``, which must be of the same prompts and seeds."""
    return _bounded(measure, first, second, np.divide)


def resampled_ratio(numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> Bounded:
    """``sum(numerators) / sum(denominators)`` over prompts ``[P]``, bounded as a measure's difference is."""
    value = float(numerators.sum() / denominators.sum())
    if len(numerators) < 2:
        return Bounded(value)
    low, high = np.quantile(_ratios(_draws(len(numerators)), numerators, denominators), _TAILS)
    return Bounded(value, float(low), float(high))


def _bounded(measure: Measure, first: Runs, second: Runs, compare: np.ufunc) -> Bounded:
    assert {name: len(runs) for name, runs in first.items()} == {
        name: len(runs) for name, runs in second.items()
    }, "compared runs are paired"
    values = measure.of(first), measure.of(second)
    if values[0] is None or values[1] is None or (compare is np.divide and values[1] == 0.0):
        return Bounded(None)
    value = float(compare(*values))
    num_prompts = len(first)
    if num_prompts < 2:
        return Bounded(value)
    draws = _draws(num_prompts)
    with np.errstate(divide="ignore", invalid="ignore"):
        resampled = compare(*(_ratios(draws, *measure.sums(runs)) for runs in (first, second)))
    if not np.isfinite(resampled).all():
        return Bounded(value)
    low, high = np.quantile(resampled, _TAILS)
    return Bounded(value, float(low), float(high))


def _draws(num_prompts: int) -> NDArray[np.int64]:
    """How often each resample has each prompt ``[R, P]``."""
    generator = np.random.default_rng(_SEED)
    return generator.multinomial(num_prompts, np.full(num_prompts, 1.0 / num_prompts), RESAMPLES)


def _ratios(
    draws: NDArray[np.int64], numerators: NDArray[np.float64], denominators: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The measure in each resample ``[R]``."""
    return np.asarray((draws @ numerators) / (draws @ denominators), np.float64)
