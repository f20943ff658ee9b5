"""``optimum-cli export acespec --model MODEL OUT``: the same as ``acespec export MODEL --out OUT``.

Optimum finds sub-commands in the namespace package ``optimum.commands.register``, so this file lies there,
and no folder above it may have an ``__init__.py``. Options, defaults, checks and errors are those of the
click command: argparse only collects words to hand on.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Mapping
from typing import Any

import click
from optimum.commands.base import BaseOptimumCLICommand, CommandInfo
from optimum.commands.export.base import ExportCommand

from acespec.export.commands import export

OWN_WORDS = ("model", "out")
"""Parameters that Optimum's commands spell in another way than click's."""


class AcespecExportCommand(BaseOptimumCLICommand):
    """Collects the command line and hands it to ``acespec export``."""

    COMMAND = CommandInfo(name="acespec", help="Export a draft model as an AceSpec bundle for the edge.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.description = click.unstyle((export.help or "").strip())
        parser.add_argument(
            "-m", "--model", required=True, help="A Hugging Face folder, or the name of a fetched model."
        )
        parser.add_argument("out", metavar="OUT", help="Folder of the bundle; replaced if it is one.")
        for option in passed_on():
            add_option(parser, option)

    def run(self) -> None:
        from acespec.cli import main

        assert self.args is not None
        main(click_words(vars(self.args)))


def passed_on() -> list[click.Option]:
    """The click command's options that keep their name and meaning."""
    return [p for p in export.params if isinstance(p, click.Option) and p.name not in OWN_WORDS]


def add_option(parser: ArgumentParser, option: click.Option) -> None:
    """Let ``parser`` take ``option`` and keep what was typed; left out, it leaves nothing behind."""
    shown: dict[str, Any] = {"dest": option.name, "default": SUPPRESS, "help": _help(option)}
    if option.is_flag:
        for spelling in (option.opts, option.secondary_opts):
            if spelling:
                parser.add_argument(*spelling, action="store_const", const=spelling[0], **shown)
        return
    metavar = option.make_metavar(click.Context(export))
    action = "append" if option.multiple else "store"
    parser.add_argument(*option.opts, metavar=metavar, action=action, **shown)


def _help(option: click.Option) -> str:
    """The option's help with its default, as click shows them, for argparse, which expands ``%``."""
    record = option.get_help_record(click.Context(export))
    return "" if record is None else record[1].replace("%", "%%")


def click_words(given: Mapping[str, Any]) -> list[str]:
    """The words of ``acespec export`` that mean what argparse collected."""
    words = ["export", f"--out={given['out']}"]
    for option in passed_on():
        value = given.get(option.name or "")
        if value is None:
            continue
        name = max(option.opts, key=len)
        if option.is_flag:
            words.append(value)
        else:
            words += [f"{name}={each}" for each in (value if option.multiple else [value])]
    return [*words, "--", given["model"]]


REGISTER_COMMANDS = [(AcespecExportCommand, ExportCommand)]
