"""Print one target of a Dockerfile as a shell script: ``dockerfile_steps.py DOCKERFILE TARGET``.

Lets a Dockerfile's steps be carried out where no container engine is, in a root that stands for the base
image (``make check-arm64``). The script wants the build context in ``/context``. It covers what AceSpec's
Dockerfiles use; any other instruction is an error, so that no step is left out silently.

The script ends with three functions, ``start``, ``default_start`` and ``healthy``: the entry point with
arguments, the entry point with the default command, and the health check.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

WITHOUT_STEPS = {"FROM", "HEALTHCHECK", "ENTRYPOINT", "CMD", "USER", "VOLUME", "EXPOSE"}
FROM = re.compile(r"(?P<base>\S+)(?: AS (?P<name>\S+))?$")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile, continuation lines joined."""

    keyword: str
    value: str


def parse(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile, in order; comments are dropped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = []
    for line in filter(str.strip, joined.splitlines()):
        keyword, _, value = line.strip().partition(" ")
        found.append(Instruction(keyword, value.strip()))
    return found


def stages(instructions: list[Instruction]) -> dict[str, list[Instruction]]:
    """The instructions of each target, its ``FROM`` first; a stage without a name is called by its number."""
    found: dict[str, list[Instruction]] = {}
    name = ""
    for instruction in instructions:
        if instruction.keyword == "FROM":
            match = FROM.match(instruction.value)
            assert match is not None, instruction
            name = match["name"] or str(len(found))
            found[name] = []
        if name:
            found[name].append(instruction)
    return found


def last(stage: list[Instruction], keyword: str) -> str:
    """The value that holds of an instruction which replaces the one before it; empty where there is none."""
    return next((found.value for found in reversed(stage) if found.keyword == keyword), "")


def exec_form(value: str) -> str:
    """A command in JSON form, as a shell would be given it; empty for none."""
    return shlex.join(json.loads(value)) if value else ""


def step(instruction: Instruction) -> str:
    """The shell's form of an instruction."""
    keyword, value = instruction.keyword, instruction.value
    if keyword == "RUN":
        return f"({value})"  # a shell of its own, whose failure ends the script wherever in a && b it happens
    if keyword == "ENV":
        return f"export {value}"
    if keyword == "ARG" and "=" in value:
        return value
    if keyword == "WORKDIR":
        return f"mkdir -p {value} && cd {value}"
    if keyword == "COPY" and len(value.split()) == 2 and "--" not in value:
        source, target = value.split()
        return f"cp -a /context/{source} {target}"
    raise SystemExit(f"dockerfile_steps.py: no shell form of: {keyword} {value}")


def shell_script(stage: list[Instruction]) -> str:
    """The steps of ``stage``, then functions that start it."""
    steps = [step(instruction) for instruction in stage if instruction.keyword not in WITHOUT_STEPS]
    entry, command = exec_form(last(stage, "ENTRYPOINT")), exec_form(last(stage, "CMD"))
    health = exec_form(last(stage, "HEALTHCHECK").partition("CMD ")[2])
    functions = [
        f'start() {{ {entry} "$@"; }}',
        f"default_start() {{ start {command}; }}",
        f"healthy() {{ {health}; }}",
    ]
    return "\n".join(["set -eu", *steps, *functions, ""])


if __name__ == "__main__":
    dockerfile, target = sys.argv[1:]
    sys.stdout.write(shell_script(stages(parse(Path(dockerfile).read_text(encoding="utf-8")))[target]))
