"""The ``acespec plan`` command: which way to generate wins over a link, before anything is set up."""

from __future__ import annotations

import json
import math
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from acespec.edge_runtime.budget import fixed_budget
from acespec.edge_runtime.strategy_times import (
    AT_THE_EDGE,
    MESSAGE_BYTES,
    UPDATE_BYTES,
    Scenario,
    StrategyTime,
    all_strategies,
    break_even_ms,
)
from acespec.edge_runtime.time_model import FIRST_SHARE, GAMMAS, OutcomeOdds
from acespec.errors import AcespecError
from acespec.options import FiniteRange, RateType
from acespec.wire import MAX_CHAIN

MS = FiniteRange(min=0.0, min_open=True)
PROBABILITY = FiniteRange(0.0, 1.0, min_open=True, max_open=True)
QWEN_VOCABULARY = 151_936
DEFAULT_WIDTHS = (1, 8, 16, 32)


class StepTimesType(click.ParamType):  # type: ignore[type-arg]
    """``8.5``, or ``1=8.5,16=9.5``: milliseconds of a draft step by its width."""

    name = "ms|width=ms,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[int, float]:
        if isinstance(value, dict):
            return value
        if "=" not in value:
            return dict.fromkeys(DEFAULT_WIDTHS, MS.convert(value, param, ctx))
        times: dict[int, float] = {}
        for pair in value.split(","):
            width, _, step_ms = pair.partition("=")
            times[click.IntRange(1).convert(width.strip(), param, ctx)] = MS.convert(step_ms, param, ctx)
        return times


@click.command()
@click.option("--rtt", type=FiniteRange(min=0.0), required=True, help="Round trip of the link, ms.")
@click.option("--rate", type=RateType(), help="Limit each way, as 50kbps; by default none.")
@click.option(
    "--draft-step-ms",
    type=StepTimesType(),
    required=True,
    help="A draft step at the edge: one number for widths up to 32, or WIDTH=MS pairs (acespec profile).",
)
@click.option("--target-step-ms", type=MS, required=True, help="A step of the target.")
@click.option("--alpha", type=PROBABILITY, required=True, help="Share of drafted tokens that is accepted.")
@click.option(
    "--beta", type=MS, default=0.8, show_default=True, help="Exponent of the candidates' tail (paper, IV-C)."
)
@click.option(
    "--first-share",
    type=FiniteRange(0.0, 1.0),
    default=FIRST_SHARE,
    show_default=True,
    help="How often the draft's best other candidate replaces a rejected token.",
)
@click.option("--gamma", type=click.IntRange(1, MAX_CHAIN), help="AceSpec's chain.  [default: the best]")
@click.option(
    "--budget",
    type=click.IntRange(1),
    help="AceSpec's tree nodes a step, gamma included.  [default: the best]",
)
@click.option(
    "--cloud-draft-step-ms", type=MS, help="A draft step beside the target.  [default: 7.6 times faster]"
)
@click.option("--vocabulary", type=click.IntRange(2, 2**20), default=QWEN_VOCABULARY, show_default=True)
@click.option(
    "--count",
    type=click.Choice(["wire", "payload"]),
    default="wire",
    show_default=True,
    help="Bytes that the rate limits: all on the wire, or those of messages alone.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(as_json: bool, **options: Any) -> None:
    """Compare the ways to generate over a link, by the model of time that `generate --policy auto` uses.

    Steady state of a long text, sampled alike by all; what each formula leaves out is told beside it in
    strategy_times.py.
    """
    scenario = _scenario(options)
    strategies = all_strategies(scenario)
    break_even = break_even_ms(scenario)
    if as_json:
        click.echo(json.dumps(report(options, strategies, break_even)))
        return
    console = Console(markup=False, highlight=False)
    console.print(_table(strategies))
    for line in conclusions(strategies, break_even):
        click.echo(line)


def _scenario(options: dict[str, Any]) -> Scenario:
    """Raises ``AcespecError`` for a budget that does not fit."""
    gamma, budget, step_ms = options["gamma"], options["budget"], options["draft_step_ms"]
    if budget is not None:
        if gamma is not None and budget < gamma:
            raise AcespecError(f"--budget counts the chain too: it must be at least {gamma}, not {budget}")
        try:
            fixed_budget(budget, gamma or min(budget, GAMMAS[-1]), sorted(step_ms))
        except ValueError as error:
            raise AcespecError(str(error)) from None
    rate = options["rate"]
    return Scenario(
        round_trip_ms=options["rtt"],
        bytes_per_ms=math.inf if rate is None else rate / 1000.0,
        target_step_ms=options["target_step_ms"],
        draft_step_ms=step_ms,
        odds=OutcomeOdds(options["alpha"], options["beta"], options["first_share"]),
        vocab_size=options["vocabulary"],
        cloud_draft_step_ms=options["cloud_draft_step_ms"],
        message_bytes=MESSAGE_BYTES if options["count"] == "wire" else 0,
        update_bytes=UPDATE_BYTES if options["count"] == "wire" else 0,
        gamma=gamma,
        budget=budget,
    )


def ranked(strategies: list[StrategyTime]) -> list[StrategyTime]:
    """Best first, without ``auto``, which is one of them."""
    return sorted((s for s in strategies if s.name != "auto"), key=lambda s: s.ms_per_token)


def conclusions(strategies: list[StrategyTime], break_even: float | None) -> list[str]:
    """What the table says, in words."""
    first, second = ranked(strategies)[:2]
    by_name = {strategy.name: strategy for strategy in strategies}
    alone_ms, coupled = by_name["autoregressive"].ms_per_token, by_name["acespec_coupled"]
    lines = [f"{first.name} wins: {_tells(first, alone_ms)}, {_gain(first, second):.0%} over {second.name}."]
    edge = min((by_name[name] for name in AT_THE_EDGE), key=lambda s: s.ms_per_token)
    if edge is not first:
        lines.append(f"Best of those that draft at the edge is {edge.name}: {_tells(edge, alone_ms)}.")
    lines.append(
        f"Best for acespec_coupled: gamma {coupled.gamma}, after a miss {coupled.redraft}, "
        f"budget {coupled.budget}."
    )
    if break_even is None:
        lines.append("acespec_coupled is slower than the cloud alone at any round trip.")
    else:
        lines.append(f"acespec_coupled beats the cloud alone up to a round trip of {break_even:.0f} ms.")
    return lines


def _tells(strategy: StrategyTime, alone_ms: float) -> str:
    return (
        f"{strategy.tokens_per_s:.1f} tokens/s, {alone_ms / strategy.ms_per_token:.2f} times the cloud alone"
    )


def _gain(first: StrategyTime, second: StrategyTime) -> float:
    """How much faster ``first`` is, as a share."""
    return second.ms_per_token / first.ms_per_token - 1.0


def report(
    options: dict[str, Any], strategies: list[StrategyTime], break_even: float | None
) -> dict[str, Any]:
    """What ``--json`` prints."""
    alone_ms = next(s.ms_per_token for s in strategies if s.name == "autoregressive")
    first, second = ranked(strategies)[:2]
    rate = options["rate"]
    return {
        "settings": {**options, "rate": None if rate is None else 8.0 * rate},  # bits, as it is given
        "strategies": [
            {
                "strategy": s.name,
                "tokens_per_s": s.tokens_per_s,
                "speedup": alone_ms / s.ms_per_token,
                "ms_per_token": s.ms_per_token,
                "gamma": s.gamma,
                "redraft": s.redraft,
                "budget": s.budget,
                "hit_rate": s.hit_rate,
                "forwards_per_token": s.forwards_per_token,
            }
            for s in strategies
        ],
        "best": first.name,
        "gain_over_second": _gain(first, second),
        "break_even_rtt_ms": break_even,
    }


def _table(strategies: list[StrategyTime]) -> Table:
    alone_ms = next(s.ms_per_token for s in strategies if s.name == "autoregressive")
    best = ranked(strategies)[0].name
    table = Table()
    table.add_column("strategy", no_wrap=True)
    for heading in ("tokens/s", "speedup", "forwards", "gamma", "budget", "hits"):
        table.add_column(heading, justify="right")
    for s in strategies:
        gamma = "" if s.gamma is None else str(s.gamma)
        if s.redraft not in (None, s.gamma):
            gamma += f" ({s.redraft})"
        table.add_row(
            s.name,
            f"{s.tokens_per_s:.2f}",
            f"{alone_ms / s.ms_per_token:.2f}",
            "" if s.forwards_per_token is None else f"{s.forwards_per_token:.2f}",
            gamma,
            "" if s.budget is None else str(s.budget),
            "" if s.hit_rate is None else f"{s.hit_rate:.0%}",
            style="bold" if s.name == best else None,
        )
    return table
