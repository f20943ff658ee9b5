"""One rank of a tensor-parallel target, as ``test_tensor_parallel_processes`` starts it.

Its arguments are ``books SILENCE_S`` or ``model FOLDER...``. Rank 0 prints one JSON value a line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from acespec.cloud_verifier.engine import Feed, TargetEngine
from acespec.cloud_verifier.tensor_parallel import TimeLimits, World, serve_over_ranks, tensor_parallel_world
from thread_ranks import BookEngine

LIMITS = TimeLimits(load_s=120.0, step_s=60.0, failed_step_s=1.0, silence_s=60.0, heartbeat_s=0.2)
PROMPT = [72, 101, 108, 108, 111]
NEW_TOKENS = 12
KV_BYTES = 2**20
"""What the last rank has for keys and values; rank 0 has twice as much."""


def say(value: object) -> None:
    print(json.dumps(value), flush=True)  # noqa: T201 - the test reads it


def feed(sequence: int, tokens: Sequence[int], num_logits: int) -> Feed:
    return Feed(sequence, np.array(tokens, np.int64), num_logits)


# --- scenarios over books, without a model --------------------------------------------------------------


def serve_books(engine: TargetEngine) -> None:
    """Says "ready", then its length after each of its steps that a line on standard input asks for."""
    sequence = engine.open(64)
    say("ready")
    for _ in sys.stdin:
        say(engine.step([feed(sequence, [1], 1)])[0].tolist())


def run_books(world: World, silence_s: float) -> None:
    limits = replace(LIMITS, silence_s=silence_s)
    serve_over_ranks(world, "cpu", lambda: BookEngine(slots=4), serve_books, limits)


# --- scenarios over a model -----------------------------------------------------------------------------


def run_model(world: World, folders: Sequence[Path]) -> None:
    """Says for each folder how the sharded target compares with the whole one, then fails half-way."""
    import torch

    from acespec.cloud_verifier.target_model import load_model, target_info
    from acespec.cloud_verifier.tensor_parallel_engine import LeaderEngine, follow
    from acespec.cloud_verifier.tensor_parallel_group import TorchRanks, Watchdog, end_process, joined
    from acespec.cloud_verifier.transformers_engine import TransformersEngine

    torch.set_num_threads(1)
    watchdog = Watchdog(end_process)
    watchdog.start()
    with joined(world, "cpu", LIMITS, watchdog):  # once for all folders: a process cannot join twice
        ranks = TorchRanks(LIMITS, watchdog, end_process)
        for folder in folders:
            model = load_model(folder, dtype="float32", tp=True)
            memory = 2 * KV_BYTES // (1 + world.rank)
            engine = TransformersEngine(model, target_info(folder), kv_memory_bytes=memory)
            if world.rank:
                follow(engine, ranks)
            else:
                with LeaderEngine(engine, ranks, heartbeat_s=LIMITS.heartbeat_s) as leader:
                    say(compare(leader, TransformersEngine.load(folder)))
        if world.rank:
            model.model.layers[1].mlp.register_forward_pre_hook(fail)
            follow(engine, ranks)
        else:
            with LeaderEngine(engine, ranks, heartbeat_s=LIMITS.heartbeat_s) as leader:
                leader.step([feed(leader.open(48), PROMPT, 1)])
                say("the step ended")


def compare(sharded: TargetEngine, whole: TargetEngine) -> dict[str, object]:
    """What the same work comes to on both, and what both say of their keys and values."""
    runs = [work(sharded), work(whole)]
    pairs = list(zip(runs[0][0], runs[1][0], strict=True))
    return {
        "difference": max(float(np.abs(a - b).max()) for a, b in pairs),
        "largest": max(float(np.abs(b).max()) for _, b in pairs),
        "texts": [run[1] for run in runs],
        "errors": [run[2] for run in runs],
        "kv_bytes_per_token": [engine.info.kv_bytes_per_token for engine in (sharded, whole)],
        "kv_tokens": sharded.info.kv_tokens,
    }


def work(engine: TargetEngine) -> tuple[list[NDArray[np.float32]], list[int], str]:
    """Logits, a greedy text and an error: two sequences side by side, a rollback, a bad step, a tree."""
    first, second = engine.open(48), engine.open(48)
    logits = engine.step([feed(first, PROMPT, 0), feed(second, [3, 1, 4, 1, 5, 9], 6)])
    engine.keep(second, 2)
    logits += engine.step([feed(second, [2, 6, 5], 3)])
    error = refused(lambda: engine.step([feed(second, [7] * 200, 1)]))
    engine.step([feed(second, [8], 0)])
    logits += engine.step([feed(second, [9], 1)])
    logits += engine.step([replace(feed(second, [7, 5, 8, 6], 4), parents=np.array([-1, 0, 0, 2]))])
    engine.keep(second, 8, [9, 10])
    logits += engine.step([feed(second, [4], 1)])
    engine.close(second)
    text = [PROMPT[0]]
    for _ in range(NEW_TOKENS):
        rows = engine.step([feed(first, text[-1:], 1)])
        logits += rows
        text.append(int(rows[0][-1].argmax()))
    engine.close(first)
    return [rows for rows in logits if rows.size], text, error


def refused(step: Callable[[], object]) -> str:
    """The name of the error a step past the context is refused with."""
    try:
        step()
    except Exception as error:
        return type(error).__name__
    return "none"


def fail(*_: object) -> None:
    """Where rank 0 already waits for this rank's part of the layer."""
    raise ArithmeticError("told to fail")


def main() -> None:
    world = tensor_parallel_world(int(os.environ["WORLD_SIZE"]))
    assert world is not None
    scenario, *arguments = sys.argv[1:]
    if scenario == "books":
        run_books(world, float(arguments[0]))
    else:
        assert scenario == "model"
        run_model(world, [Path(argument) for argument in arguments])


if __name__ == "__main__":
    main()
