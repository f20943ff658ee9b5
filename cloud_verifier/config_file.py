"""One file for all options of a command, the environment above it, and what came of both.

Which wins: the command line, the environment (``ACESPEC_SERVE_PORT``), the file, the default. Click does most
of it; this is what names a key nobody knows and a value that does not fit.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from click.core import ParameterSource

from acespec.cloud_verifier.documents import read_document, toml_value
from acespec.errors import AcespecError

logger = logging.getLogger(__name__)

META = ("config", "print_config", "help")
"""Options about the configuration, which are none of it."""
SOURCES = {
    ParameterSource.COMMANDLINE: "command line",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
}


def configurable(command: click.Command) -> dict[str, click.Option]:
    """The options a file may set, by their keys."""
    return {
        option.name: option
        for option in command.params
        if isinstance(option, click.Option) and option.name is not None and option.name not in META
    }


def use_config(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:  # noqa: ARG001
    """Take what the command line and the environment leave open from the file at ``path`` (click's callback).

    Raises ``AcespecError``, one line, for a key that is no option or a value that is none of its option.
    """
    warn_of_unknown_variables(ctx)
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **checked_values(ctx, path)}
    return path


def checked_values(ctx: click.Context, path: Path) -> dict[str, str]:
    """What the file sets, as it would stand on the command line, so that one reading applies to both."""
    options = configurable(ctx.command)
    values = {}
    for key, value in read_document(path).items():
        if key not in options:
            raise AcespecError(f"{path}: unknown key {key!r}{suggestion(key, options)}")
        if isinstance(value, (dict, list)) or value is None:
            raise AcespecError(f"{path}: {key}: one value is wanted; leave the key out for its default")
        values[key] = str(value)
        try:
            options[key].type.convert(values[key], options[key], ctx)
        except click.BadParameter as error:
            raise AcespecError(f"{path}: {key}: {' '.join(error.message.split())}") from error
    return values


def suggestion(name: str, known: Iterable[str]) -> str:
    """`` (did you mean ...?)``, or nothing where nothing is near."""
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def warn_of_unknown_variables(ctx: click.Context) -> None:
    """Log variables that look like options and are none: a mistyped one would be passed over in silence.

    A warning and no error, for orchestrators set variables by patterns of their own.
    """
    prefix = f"{ctx.auto_envvar_prefix}_"
    known = [str(option.name).upper() for option in ctx.command.params]
    for variable in os.environ:
        name = variable.removeprefix(prefix)
        if variable.startswith(prefix) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; {prefix}{near[0]} is" if near else ""
            logger.warning("the environment's %s is no option%s", variable, hint)


def effective(ctx: click.Context) -> Iterator[str]:
    """The values in force, as lines of a TOML file that would bring the same about."""
    for key in configurable(ctx.command):
        value = ctx.params[key]
        if value is None:
            continue
        source = ctx.get_parameter_source(key)
        comment = f"  # {SOURCES[source]}" if source in SOURCES else ""
        yield f"{key} = {toml_value(value)}{comment}"
