"""Options that the experiments' commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from acespec.errors import AcespecError

REAL = "real"
"""The command in wall-clock time."""

F = TypeVar("F", bound=Callable[..., Any])


class ListOf(click.ParamType):  # type: ignore[type-arg]
    """Values of another type with commas between them, each once."""

    def __init__(self, item: click.ParamType) -> None:  # type: ignore[type-arg]
        self._item = item
        self.name = f"{item.name},..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        items = (self._item.convert(part.strip(), param, ctx) for part in str(value).split(","))
        return tuple(dict.fromkeys(items))


class ProfilesType(click.ParamType):  # type: ignore[type-arg]
    """``EDGE/CLOUD``: the profiles at both ends."""

    name = "edge/cloud"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from acespec.bench.lab.profiles import ProfilePair, parse_profiles

        if isinstance(value, ProfilePair):
            return value
        try:
            return parse_profiles(str(value))
        except AcespecError as error:
            self.fail(str(error), param, ctx)


class StrategyType(click.ParamType):  # type: ignore[type-arg]
    """A strategy's name."""

    name = "strategy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from acespec.bench.lab.strategies import STRATEGY_NAMES

        if value not in STRATEGY_NAMES:
            self.fail(f"{value!r} is none; choose from {', '.join(STRATEGY_NAMES)}", param, ctx)
        return str(value)


class PartType(click.ParamType):  # type: ignore[type-arg]
    """``K/N``: the K-th of N parts."""

    name = "k/n"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        which, _, count = str(value).partition("/")
        if not (which.isdecimal() and count.isdecimal() and 1 <= int(which) <= int(count)):
            self.fail(f"{value!r} is not of the form K/N, with K from 1 to N", param, ctx)
        return int(which), int(count)


def measuring_options(function: F) -> F:
    """What everything that is measured takes: where to, on what, and whether again."""
    return _with_options(
        function,
        click.option(
            "-o",
            "--output",
            type=click.Path(file_okay=False, path_type=Path),
            required=True,
            help="Folder for JSON, Markdown, figures, the report, and what is measured.",
        ),
        click.option(
            "--prompts",
            type=click.Path(dir_okay=False, path_type=Path),
            multiple=True,
            required=True,
            help='A data set: JSON lines with "prompt"; more may follow.',
        ),
        click.argument("more_prompts", nargs=-1, type=click.Path(dir_okay=False, path_type=Path)),
        click.option("--limit", type=click.IntRange(1), help="Prompts of each data set.  [default: all]"),
        click.option("--max-new-tokens", type=click.IntRange(1), default=128, show_default=True),
        click.option("--seeds", type=ListOf(click.IntRange(0, 2**64 - 1)), default="0", show_default=True),
        click.option("--end-tokens", is_flag=True, help="Let texts end before they have all their tokens."),
        click.option("--fresh", is_flag=True, help="Measure again what is there already."),
        click.option("--no-plots", is_flag=True, help="Draw nothing."),
    )


def experiment_options(function: F) -> F:
    """What every simulated experiment takes besides."""
    function = _with_options(
        function,
        click.option(
            "--store",
            type=click.Path(file_okay=False, path_type=Path),
            help="Folder with what the models said.  [default: in the cache]",
        ),
        click.option(
            "--draft",
            type=click.Path(file_okay=False, path_type=Path),
            help="Bundle of the draft model.  [default: the demo's]",
        ),
        click.option("--target", help="The target: a fetched model's name or folder.  [default: the demo's]"),
        click.option(
            "--part",
            type=PartType(),
            help="Measure every N-th prompt alone, and write no tables: run parts side by side, then all.",
        ),
    )
    return measuring_options(function)


def _with_options(function: F, *options: Callable[[F], F]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def profiles_option(*default: str) -> Callable[[F], F]:
    """The pairs of devices."""
    return click.option(
        "--profiles",
        type=ListOf(ProfilesType()),
        default=",".join(default),
        show_default=True,
        help="Devices at both ends, several with commas.",
    )


def strategies_option(function: F) -> F:
    """The strategies to compare."""
    return click.option(
        "--strategies",
        type=ListOf(StrategyType()),
        help="Names with commas; cloud-only decoding is always there.  [default: all]",
    )(function)
