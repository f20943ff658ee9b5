"""Options of one command in groups, as its help lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from pydantic import ByteSize, TypeAdapter, ValidationError

F = TypeVar("F", bound=Callable[..., Any])


class Size(click.ParamType):  # type: ignore[type-arg]  # no generic in older releases of click
    """A number of bytes, such as 4GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size = int(TypeAdapter(ByteSize).validate_python(value))
        except ValidationError:
            size = 0
        if size < 1:
            self.fail(f"{value!r} is no size such as 4GiB or 500MB.", param, ctx)
        return size


class GroupedOption(click.Option):
    """An option that knows its group."""

    def __init__(self, *args: Any, group: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.group = group

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """As click's, but the complaint about a variable names the variable and no option."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            assert self.name is not None
            if ctx.get_parameter_source(self.name) is ParameterSource.ENVIRONMENT:
                error.param_hint = f"{ctx.auto_envvar_prefix}_{self.name.upper()} in the environment"
            raise


class Whole(click.IntRange):
    """A whole number of a range; what is none is told the range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            bounds = f"from {self.min} on" if self.max is None else f"from {self.min} to {self.max}"
            self.fail(f"{value!r} is no whole number {bounds}.", param, ctx)


class GroupedCommand(click.Command):
    """A command whose help lists its options by group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(option, "group", "Other"), []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


class OptionGroup:
    """The options of one group, in order."""

    def __init__(self, title: str) -> None:
        self._title = title
        self.options: list[Callable[[Any], Any]] = []

    def add(self, name: str, help: str, **settings: Any) -> None:  # noqa: A002 - click's word
        """Declare the option ``name`` as ``click.option`` does; its default is shown where there is one."""
        settings.setdefault("show_default", settings.get("default") is not None)
        self.options.append(click.option(name, cls=GroupedOption, group=self._title, help=help, **settings))


def all_options(function: F, groups: Sequence[OptionGroup]) -> F:
    """``function`` with the options of all ``groups``."""
    for decorate in reversed([option for group in groups for option in group.options]):
        function = decorate(function)
    return function
