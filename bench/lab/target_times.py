"""Times a target's forwards on this machine, in a process of its own: one line of JSON.

As ``python -m acespec.bench.lab.target_times MODEL``: the process that measures at the edge has no torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from acespec.bench.step_times import Step, measure_steps
from acespec.cloud_verifier.engine import Feed, TargetEngine
from acespec.models import resolve_model

WIDTHS = (1, 2, 5, 9, 17, 33, 64)
"""Chains with the token before them, and a short prompt."""
ROOM = 1024
REPETITIONS = 8


def target_steps(engine: TargetEngine, context: int) -> Step:
    """Forwards of ``engine`` that check a chain behind ``context`` tokens."""
    sequence = engine.open(ROOM)
    engine.step([Feed(sequence, np.arange(5, 5 + context), num_logits=0)])

    def step(width: int) -> None:
        engine.step([Feed(sequence, np.arange(5, 5 + width), num_logits=width)])
        engine.keep(sequence, context)

    return step


def measured_points(engine: TargetEngine, context: int, widths: Sequence[int]) -> list[tuple[int, float]]:
    """(tokens, median ms) of forwards behind ``context`` tokens."""
    times = measure_steps({"target": target_steps(engine, context)}, widths, REPETITIONS)
    return [(width, times.median("target", width)) for width in widths]


def size_of(folder: Path) -> tuple[int, int]:
    """Layers and hidden size of a Hugging Face model."""
    config = json.loads((folder / "config.json").read_bytes())
    return int(config["num_hidden_layers"]), int(config["hidden_size"])


@click.command()
@click.argument("model")
@click.option("--threads", type=click.IntRange(1), default=1)
@click.option("--context", type=click.IntRange(1, ROOM - WIDTHS[-1]), default=128)
def main(model: str, threads: int, context: int) -> None:
    """Time MODEL's forwards."""
    from transformers.utils.logging import disable_progress_bar

    from acespec.cloud_verifier.transformers_engine import TransformersEngine

    disable_progress_bar()  # type: ignore[no-untyped-call]
    folder = resolve_model(model)
    engine = TransformersEngine.load(folder, threads=threads)
    num_layers, hidden_size = size_of(folder)
    points = measured_points(engine, context, WIDTHS)
    click.echo(json.dumps({"points": points, "num_layers": num_layers, "hidden_size": hidden_size}))


if __name__ == "__main__":
    main()
