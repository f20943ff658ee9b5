"""The experiment in wall-clock time: its cells, its repeats, and what they are put together to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from acespec.bench.lab.acespec_strategies import AceSpec, Autoregressive
from acespec.bench.lab.bench_options import REAL
from acespec.bench.lab.document import Document, Origin, document
from acespec.bench.lab.experiment import Cell, Experiment, Label, Point, Scope
from acespec.bench.lab.machine_times import MachineTimes
from acespec.bench.lab.measures import THROUGHPUT
from acespec.bench.lab.profiles import ProfilePair
from acespec.bench.lab.real_laboratory import relayed_link
from acespec.bench.lab.runner import Outcome
from acespec.bench.lab.strategies import BASELINE, STRATEGY_NAMES, strategy
from acespec.bench.lab.tables import Row
from acespec.errors import AcespecError
from acespec.models import Pair
from acespec.wire import AcceptanceMode

Repeats = Sequence[Sequence[Outcome]]
"""The outcomes of all points, once for each time they were run."""


@dataclass(frozen=True)
class Links:
    """Every combination of these is a link."""

    rtts_ms: tuple[float, ...] = (50.0,)
    jitter_ms: float = 0.0
    rates: tuple[float, ...] = (100e6,)
    """Bits a second each way."""


def real_strategies(pair: Pair) -> tuple[str, ...]:
    """Names of the strategies that run over gRPC."""
    return tuple(
        name for name in STRATEGY_NAMES if isinstance(strategy(name, pair), AceSpec | Autoregressive)
    )


def check_strategies(pair: Pair, strategies: Sequence[str]) -> None:
    """Raises ``AcespecError`` for a strategy that runs over the simulated link alone."""
    possible = real_strategies(pair)
    for name in strategies:
        if name not in possible:
            raise AcespecError(
                f"{name} runs over the simulated link alone; over gRPC run {', '.join(possible)}"
            )


def real_experiment(pair: Pair, strategies: Sequence[str], profiles: ProfilePair, links: Links) -> Experiment:
    """Some strategies, or all that run over gRPC, over some links; cloud-only decoding is always there."""
    names = [BASELINE, *(name for name in strategies or real_strategies(pair) if name != BASELINE)]
    return Experiment(
        REAL,
        "Wall clock: strategies over gRPC through the relay",
        tuple(
            Cell(
                _labels(profiles, rate, rtt_ms, name),
                strategy(name, pair),
                profiles,
                relayed_link(rtt_ms, links.jitter_ms, rate / 8.0),
                pair.sampling,
            )
            for rate in links.rates
            for rtt_ms in links.rtts_ms
            for name in names
        ),
        ("strategy", BASELINE),
    )


def _labels(profiles: ProfilePair, rate: float, rtt_ms: float, name: str) -> dict[str, Label]:
    return {"profile": profiles.name, "rate_bps": rate, "rtt_ms": rtt_ms, "strategy": name}


def medians(repeats: Repeats) -> list[Outcome]:
    """Of each point the run with the median time, its time to the first token the median of all.

    Of an even number the lower median: nothing is shown that was not measured. A point of which a run failed
    has failed.
    """
    return [_median(outcomes) for outcomes in zip(*repeats, strict=True)]


def _median(outcomes: tuple[Outcome, ...]) -> Outcome:
    runs = [outcome.stored for outcome in outcomes if outcome.stored is not None]
    if len(runs) < len(outcomes):
        return next(outcome for outcome in outcomes if outcome.stored is None)
    middle = sorted(runs, key=lambda run: run.result.total_ms)[(len(runs) - 1) // 2]
    ttft_ms = statistics.median_low([run.result.ttft_ms for run in runs])
    shown = middle.model_copy(update={"result": replace(middle.result, ttft_ms=ttft_ms)})
    return Outcome(outcomes[0].point, shown)


def must_be_equal(point: Point) -> bool:
    """Whether the point's text must be cloud-only decoding's: that of coupled acceptance, and that itself."""
    chosen = point.cell.strategy
    return not isinstance(chosen, AceSpec) or chosen.mode is AcceptanceMode.COUPLED


def differing_texts(repeats: Repeats) -> list[Point]:
    """Points of runs whose text is not cloud-only decoding's although it must be."""
    references = _references(repeats)
    return [
        outcome.point
        for outcomes in repeats
        for outcome in outcomes
        if outcome.result is not None
        and must_be_equal(outcome.point)
        and _same_text(outcome, references) is False
    ]


def real_document(
    experiment: Experiment,
    scope: Scope,
    repeats: Repeats,
    origin: Origin,
    times: MachineTimes,
    pace_forward_ms: float | None,
) -> Document:
    """As ``document``, of the medians, with how far apart the repeats are and whether texts are the same."""
    content = document(experiment, scope, medians(repeats), origin)
    references = _references(repeats)
    for row in content["rows"]:
        row |= _repeated(row, repeats, references)
    settings = content["settings"]
    settings |= {
        "clock": "wall",
        "machine": times.machine,
        "repeats": len(repeats),
        "pace_forward_ms": pace_forward_ms,
        "times": times.model_dump(mode="json"),
    }
    wire = "bytes of the connection as the relay counts them, without headers of TCP and IP"
    settings["measures"] |= {
        "wire_up_per_token": wire,
        "wire_down_per_token": wire,
        "tokens_per_s_slowest": "tokens / s of all runs of one repeat, the slowest",
        "tokens_per_s_fastest": "tokens / s of all runs of one repeat, the fastest",
        "same_text": "share of runs with the text of cloud-only decoding",
    }
    return content


def _repeated(row: Row, repeats: Repeats, references: dict[str, tuple[int, ...]]) -> Row:
    """What a row has from all of its runs; nothing if one failed."""
    added: Row = dict.fromkeys(("tokens_per_s_slowest", "tokens_per_s_fastest", "same_text"))
    if row["failed"]:
        return added
    speeds: list[float] = []
    same: list[bool] = []
    for outcomes in repeats:
        mine = [outcome for outcome in outcomes if _is_of(outcome, row)]
        results = [outcome.result for outcome in mine if outcome.result is not None]
        speed = THROUGHPUT.of({str(index): [result] for index, result in enumerate(results)})
        assert speed is not None
        speeds.append(speed)
        same += [told for outcome in mine if (told := _same_text(outcome, references)) is not None]
    added |= {"tokens_per_s_slowest": min(speeds), "tokens_per_s_fastest": max(speeds)}
    if same:
        added["same_text"] = sum(same) / len(same)
    return added


def _is_of(outcome: Outcome, row: Row) -> bool:
    labels = outcome.point.cell.labels
    return outcome.point.case.dataset == row["dataset"] and all(row[name] == labels[name] for name in labels)


def _same_text(outcome: Outcome, references: dict[str, tuple[int, ...]]) -> bool | None:
    """Whether a run's text is cloud-only decoding's; None if that is not there."""
    reference = references.get(_request(outcome.point))
    return None if reference is None or outcome.result is None else outcome.result.tokens == reference


def _references(repeats: Repeats) -> dict[str, tuple[int, ...]]:
    """Texts of cloud-only decoding, by request; of its first run over any link."""
    texts: dict[str, tuple[int, ...]] = {}
    for outcomes in repeats:
        for outcome in outcomes:
            if isinstance(outcome.point.cell.strategy, Autoregressive) and outcome.result is not None:
                texts.setdefault(_request(outcome.point), outcome.result.tokens)
    return texts


def _request(point: Point) -> str:
    """Names what is asked for, whatever the link and the strategy."""
    return f"{point.case.dataset}/{point.case.id}/{point.conditions.seed}"
