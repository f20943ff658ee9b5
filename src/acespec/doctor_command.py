"""The ``acespec doctor`` command. Prints plain text: what draws tables may be what is broken."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence

import click

from acespec import __version__
from acespec.doctor import ROLES, TENSORRT, Facts, Verdict, can_run, default_role, gather_facts, judge


@click.command()
@click.option(
    "--role",
    type=click.Choice(ROLES),
    help="What this machine is meant to run.  [default: cloud where PyTorch is installed, else edge]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(role: str | None, as_json: bool) -> None:
    """Say what this machine can run, what is missing for it, and the command that brings it.

    Every library is tried in a process of its own, so that a broken one is reported and hides no other. Exits
    with status 1 if the role cannot be run.
    """
    facts = gather_facts()
    verdicts = judge(facts)
    role = role or default_role(facts)
    runs = can_run(role, verdicts)
    if as_json:
        described = [{"runs": verdict.runs, **dataclasses.asdict(verdict)} for verdict in verdicts]
        click.echo(json.dumps({"role": role, "runs": runs, "roles": described, **as_dict(facts)}, indent=1))
    else:
        for line in lines(facts, verdicts):
            click.echo(line)
        click.echo(f"\n{role}: {'can be run here' if runs else 'cannot be run here'}")
    sys.exit(0 if runs else 1)


def as_dict(facts: Facts) -> dict[str, object]:
    """The facts for ``--json``."""
    return {"acespec": __version__, **dataclasses.asdict(facts)}


def lines(facts: Facts, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The report, line by line."""
    yield from _machine_lines(facts)
    yield "\nlibraries"
    for library in facts.libraries.values():
        yield _line(library.name, library.version or library.fault)
    for runtime, library in facts.tensorrt.items():
        yield _line(TENSORRT[runtime], library.version or library.cause)
    yield _line("CUDA device", f"compute {facts.cuda.version}" if facts.cuda.version else facts.cuda.cause)
    yield "\nONNX Runtime's providers"
    for provider in facts.providers:
        yield _line(provider.name, "runs" if provider.runs else f"does not run: {provider.reason}")
    yield "\nroles"
    for verdict in verdicts:
        yield _line(verdict.role, "can be run" if verdict.runs else "cannot be run")
        for fault in verdict.faults:
            yield f"      {fault.what}"
            if fault.remedy:
                yield f"        -> {fault.remedy}"
        for note in verdict.notes:
            yield f"      {note}"


def _machine_lines(facts: Facts) -> Iterator[str]:
    machine = facts.machine
    yield _line("acespec", __version__)
    yield _line("Python", f"{machine.python} ({machine.executable})")
    yield _line("system", machine.system)
    if machine.jetson is not None:
        jetson = machine.jetson
        yield _line("Jetson", f"{jetson.model}, Jetson Linux {jetson.linux}, JetPack {jetson.jetpack}")
    yield _line("processor", f"{machine.processor}, {machine.cores} cores")
    if machine.cpu_features:
        yield _line("  has", ", ".join(name for name, has in machine.cpu_features.items() if has) or "-")
        yield _line(
            "  lacks", ", ".join(name for name, has in machine.cpu_features.items() if not has) or "-"
        )
    yield _line("memory", f"{_gibibytes(machine.available_bytes)} of {_gibibytes(machine.memory_bytes)} free")
    yield _line(
        "cache", f"{facts.cache_folder or '?'}, {_gibibytes(facts.cache_free_bytes)} free on its disk"
    )


def _line(name: str, value: str) -> str:
    return f"  {name:<26}{value}"


def _gibibytes(count: int | None) -> str:
    return "?" if count is None else f"{count / 2**30:.1f} GiB"
