"""What is written of the options that reach a verifier is what they are."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from acespec.edge_runtime.commands import generate
from acespec.edge_runtime.link_options import OPTIONS

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "resilience.md"


def documented() -> dict[str, str]:
    """The options of the document's table, each with what stands for its default."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = lines.index("| option | default | meaning |") + 2
    table = itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {name: default for names, default, _ in rows for name in re.findall(r"--[a-z-]+", names)}


def test_every_option_of_the_link_is_documented_with_its_default() -> None:
    values = generate.make_context("generate", ["--server", "verifier:50051", "-p", "text"]).params
    options = {option.opts[0]: values[option.name] for option in generate.params if option.name in OPTIONS}
    assert documented().keys() == options.keys()
    for name, default in documented().items():
        if default.isdigit():
            assert options[name] == float(default)
        else:
            assert not options[name], f"{name} has a default and the document says {default!r}"
