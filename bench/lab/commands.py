"""The ``acespec bench`` commands: the paper's tables and figures, a free sweep, and real runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from acespec.bench.lab.bench_options import (
    REAL,
    ListOf,
    experiment_options,
    measuring_options,
    profiles_option,
    strategies_option,
)
from acespec.errors import AcespecError
from acespec.options import FiniteRange, RateType
from acespec.wire import MAX_CHAIN

if TYPE_CHECKING:
    from acespec.bench.lab.experiment import Experiment
    from acespec.models import Pair

PAIR_PROFILE = "orin-qwen3-0.6b/a100-70b"
"""The step times assumed for the demo pair (``models.pairs``)."""
ROUND_TRIP = FiniteRange(min=0.0)
TEMPERATURE = FiniteRange(0.0, 100.0)

rtt_option = click.option("--rtt", type=ROUND_TRIP, default=50.0, show_default=True, help="Round trip, ms.")
rtts_option = click.option(
    "--rtt",
    "rtts",
    type=ListOf(ROUND_TRIP),
    default="10,50,100,200",
    show_default=True,
    help="Round trips, ms.",
)


class BenchGroup(click.Group):
    """Takes ``--real`` for the command of that name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--real" in args and args[0] != REAL:
            args = [argument for argument in args if argument != "--real"]
            if args and args[0] in self.commands:
                raise click.UsageError(f"--real is a measurement of its own: leave {args[0]} out", ctx)
            args = [REAL, *args]
        return super().parse_args(ctx, args)


@click.group(cls=BenchGroup)
@click.option("--real", is_flag=True, expose_value=False, help="The command real: the rest are its options.")
def bench() -> None:
    """Measure strategies over simulated links, in virtual time, with models that really run.

    With --real, over real ones: processes, gRPC and the relay, in wall-clock time.

    Each command writes its name with .json, .md, .svg and .png into a folder, and a report.html on all that
    is there. Every run is kept there as soon as it is made: interrupted, a command goes on where it was. Runs
    that fail are shown as failed, and the exit status is then 1.
    """


@bench.command()
@experiment_options
@strategies_option
@profiles_option(
    "orin-qwen3-0.6b/a100-32b", "orin-qwen3-1.7b/a100-32b", "orin-llama-1b/a100-70b", PAIR_PROFILE
)
@rtts_option
def table1(**options: Any) -> None:
    """Every strategy, on every pair of devices, at every round trip."""
    from acespec.bench.lab import experiments
    from acespec.bench.lab.strategies import STRATEGY_NAMES

    _measure(
        options,
        lambda pair: experiments.table1(
            pair, options["strategies"] or STRATEGY_NAMES, options["profiles"], options["rtts"]
        ),
    )


@bench.command()
@experiment_options
@profiles_option(PAIR_PROFILE)
@rtt_option
def table2(**options: Any) -> None:
    """How branches are spread over depths: single, uniform, geometric, adaptive."""
    from acespec.bench.lab import experiments

    _measure(options, lambda pair: experiments.table2(pair, options["profiles"], options["rtt"]))


@bench.command()
@experiment_options
@strategies_option
@profiles_option("orin-qwen3-0.6b/a100-32b", PAIR_PROFILE)
@rtt_option
@click.option(
    "--rates",
    type=ListOf(RateType()),
    default="100Mbps,10Mbps,1Mbps,500kbps,100kbps,50kbps,25kbps,10kbps",
    show_default=True,
    help="Each way.",
)
def fig5(**options: Any) -> None:
    """Less and less bandwidth, taken up by messages alone, and by all bytes on the wire."""
    from acespec.bench.lab import experiments
    from acespec.bench.lab.strategies import STRATEGY_NAMES

    _measure(
        options,
        lambda pair: experiments.fig5(
            pair,
            options["strategies"] or STRATEGY_NAMES,
            options["profiles"],
            options["rtt"],
            [8.0 * rate for rate in options["rates"]],
        ),
    )


@bench.command()
@experiment_options
@profiles_option(PAIR_PROFILE)
@rtt_option
@click.option(
    "--budgets",
    type=ListOf(click.IntRange(1)),
    default="20,30,40,50,60,70,80",
    show_default=True,
    help="Tree nodes a step, the chain's included.",
)
def fig6(**options: Any) -> None:
    """The tree's budget."""
    from acespec.bench.lab import experiments

    def experiment(pair: Pair) -> Experiment:
        try:
            return experiments.fig6(pair, options["profiles"], options["rtt"], options["budgets"])
        except ValueError as error:
            raise AcespecError(str(error)) from None

    _measure(options, experiment)


@bench.command()
@experiment_options
@profiles_option(PAIR_PROFILE)
@rtt_option
@click.option(
    "--temperatures",
    type=ListOf(TEMPERATURE),
    default="0.3,0.5,0.7,0.9,1.1,1.3,1.5,1.7",
    show_default=True,
)
def fig7(**options: Any) -> None:
    """Temperature, in both modes of acceptance."""
    from acespec.bench.lab import experiments

    _measure(
        options,
        lambda pair: experiments.fig7(pair, options["profiles"], options["rtt"], options["temperatures"]),
    )


@bench.command()
@experiment_options
@strategies_option
@profiles_option(PAIR_PROFILE)
@rtts_option
@click.option(
    "--rates", type=ListOf(RateType()), default="100Mbps", show_default=True, help="Each way, all bytes."
)
@click.option("--temperatures", type=ListOf(TEMPERATURE), help="[default: the pair's]")
@click.option(
    "--gammas",
    type=ListOf(click.IntRange(1, MAX_CHAIN)),
    help="Chains of those strategies that do not choose.  [default: each strategy's own]",
)
def sweep(**options: Any) -> None:
    """Every combination of round trips, rates, temperatures and chains."""
    from acespec.bench.lab import experiments
    from acespec.bench.lab.strategies import STRATEGY_NAMES

    _measure(
        options,
        lambda pair: experiments.sweep(
            pair,
            options["strategies"] or STRATEGY_NAMES,
            options["profiles"],
            options["rtts"],
            [8.0 * rate for rate in options["rates"]],
            options["temperatures"] or (pair.sampling.temperature,),
            options["gammas"] or (),
        ),
    )


@bench.command()
@experiment_options
@profiles_option(
    "orin-qwen3-0.6b/a100-32b", "orin-qwen3-1.7b/a100-32b", "orin-llama-1b/a100-32b", PAIR_PROFILE
)
@rtts_option
@click.option("--rate", type=RateType(), default="100Mbps", show_default=True, help="Each way, all bytes.")
@click.option(
    "--gammas",
    type=ListOf(click.IntRange(1, MAX_CHAIN)),
    default="2,3,4,6,8,12",
    show_default=True,
    help="Chains of rounds.",
)
@click.option(
    "--budgets",
    type=ListOf(click.IntRange(1)),
    default="10,16,22",
    show_default=True,
    help="Tree nodes of rounds, the chain's included, besides what follows the network.",
)
@click.option(
    "--cloud-draft-step-ms",
    type=FiniteRange(min=0.0, min_open=True),
    default=2.0,
    show_default=True,
    help="A draft step beside the target, for drafting in the cloud.",
)
def race(**options: Any) -> None:
    """The race and auto against cloud-only decoding, drafting in the cloud, and rounds of any settings."""
    from acespec.bench.lab import experiments

    _measure(
        options,
        lambda pair: experiments.race(
            pair,
            options["profiles"],
            options["rtts"],
            8.0 * options["rate"],
            options["gammas"],
            options["budgets"],
            options["cloud_draft_step_ms"],
        ),
    )


@bench.command(name=REAL)
@measuring_options
@strategies_option
@click.option(
    "--rtt", "rtts", type=ListOf(ROUND_TRIP), default="50", show_default=True, help="Round trips, ms."
)
@click.option("--jitter", type=ROUND_TRIP, default=0.0, help="Up to this much more each way, ms.")
@click.option("--rates", type=ListOf(RateType()), default="100Mbps", show_default=True, help="Each way.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Medians are shown.")
@click.option(
    "--pace",
    type=FiniteRange(0.0, 600_000.0),
    help="What a forward takes at least, ms.  [default: the pair's]",
)
@click.option("--no-pace", is_flag=True, help="Let the verifier run as fast as this machine does.")
def real(**options: Any) -> None:
    """Strategies in wall-clock time, through the relay to a verifier in a process of its own.

    Those that speak the project's own protocol: autoregressive, acespec_*, auto and race; the other baselines
    run over the simulated link alone. Exit status 1 if a text differs from cloud-only decoding's that must
    not.
    """
    from acespec.bench.lab import real_measuring
    from acespec.bench.lab.real_experiment import Links

    real_measuring.measure_real(
        real_measuring.RealSettings(
            **_asked(options),
            strategies=options["strategies"] or (),
            links=Links(options["rtts"], options["jitter"], tuple(8.0 * rate for rate in options["rates"])),
            repeats=options["repeats"],
            paced=not options["no_pace"],
            pace_forward_ms=options["pace"],
        ),
        real_measuring.demo_real_bench,
    )


def _measure(options: dict[str, Any], experiment: Callable[[Pair], Experiment]) -> None:
    """Measure ``experiment`` of the demo pair, or of the models named, and write what it gave."""
    from acespec.bench.lab import measuring

    measuring.measure(
        experiment,
        measuring.Settings(
            **_asked(options),
            store=options["store"],
            part=options["part"],
        ),
        measuring.bench_of(options["draft"], options["target"]),
    )


def _asked(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of ``measuring.Asked``."""
    return {
        "output": options["output"],
        "prompts": (*options["prompts"], *options["more_prompts"]),
        "limit": options["limit"],
        "max_new_tokens": options["max_new_tokens"],
        "seeds": options["seeds"],
        "end_tokens": options["end_tokens"],
        "fresh": options["fresh"],
        "plots": not options["no_plots"],
        "command": shlex.join(["acespec", *sys.argv[1:]]),
    }
