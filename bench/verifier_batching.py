"""What it gains to put rounds of many sessions into one forward, with a real target on this machine.

The same server, the same sessions and the same rounds, all waiting at once: one server may batch them, the
other's token budget holds one round, so that they go through the target one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np

from acespec.bench.processes import Service
from acespec.bench.verifier_load import Edge, Streams, connect, decode_text, time_rounds
from acespec.bench.verifier_script import ROUND_TOKENS, Script, write_script
from acespec.bench.verifier_server import ONE_BY_ONE, SERVER
from acespec.models import resolve_model
from acespec.models.vocabulary import load_tokenizer, vocabulary_hash, vocabulary_size

NUM_CHANNELS = 4
SHORTEST_PROMPT, LONGEST_PROMPT = 16, 48
ROUNDS_A_TURN = 6


@dataclass(frozen=True)
class Batching:
    """Rounds a second of all sessions together: medians of several turns."""

    num_sessions: int
    batched_rounds_per_s: float
    one_by_one_rounds_per_s: float

    @property
    def speedup(self) -> float:
        return self.batched_rounds_per_s / self.one_by_one_rounds_per_s


async def measure_batching(model: str, num_sessions: int, threads: int | None, num_turns: int) -> Batching:
    """Time both servers in turns, so that what else the machine does hits them alike.

    Raises ``AcespecError`` if a verdict differs from the text the target decodes by itself.
    """
    options = ["--model", model] + ([] if threads is None else ["--threads", str(threads)])
    async with (
        Service(*options, module=SERVER) as batching,
        Service(*options, ONE_BY_ONE, module=SERVER) as single,
        connect(batching.address, NUM_CHANNELS) as batching_channels,
        connect(single.address, NUM_CHANNELS) as single_channels,
    ):
        scripts = await _write_scripts(batching_channels, model, num_sessions, num_turns)
        async with (
            _sessions(batching_channels, scripts) as batched_edges,
            _sessions(single_channels, scripts) as single_edges,
        ):
            batched, one_by_one = [], []
            for _ in range(num_turns):
                batched.append(await time_rounds(batched_edges, ROUNDS_A_TURN))
                one_by_one.append(await time_rounds(single_edges, ROUNDS_A_TURN))
    num_rounds = num_sessions * ROUNDS_A_TURN
    return Batching(
        num_sessions=num_sessions,
        batched_rounds_per_s=num_rounds / statistics.median(batched),
        one_by_one_rounds_per_s=num_rounds / statistics.median(one_by_one),
    )


async def _write_scripts(
    channels: Sequence[Streams], model: str, num_sessions: int, num_turns: int
) -> list[Script]:
    """Let the target decode a text for every session, whose rounds it is the chains of."""
    tokenizer_json = resolve_model(model) / "tokenizer.json"
    hashed, vocab_size = vocabulary_hash(tokenizer_json), vocabulary_size(load_tokenizer(tokenizer_json))
    generator = np.random.default_rng(0)
    lengths = np.linspace(SHORTEST_PROMPT, LONGEST_PROMPT, num_sessions, dtype=int)
    prompts = [generator.integers(vocab_size // 2, size=length).tolist() for length in lengths]
    num_tokens = ROUND_TOKENS * (1 + ROUNDS_A_TURN * num_turns)
    texts = await asyncio.gather(
        *[
            decode_text(channels[index % NUM_CHANNELS], hashed, vocab_size, prompt, num_tokens)
            for index, prompt in enumerate(prompts)
        ]
    )
    return [
        write_script(hashed, vocab_size, prompt, text) for prompt, text in zip(prompts, texts, strict=True)
    ]


@contextlib.asynccontextmanager
async def _sessions(channels: Sequence[Streams], scripts: Sequence[Script]) -> AsyncIterator[list[Edge]]:
    """A session of each script whose prompt is fed and whose first round is answered."""
    edges = [Edge(channels[index % NUM_CHANNELS], script) for index, script in enumerate(scripts)]
    await asyncio.gather(*[edge.open() for edge in edges])
    await asyncio.gather(*[edge.round() for edge in edges])
    yield edges
    await asyncio.gather(*[edge.close() for edge in edges])
