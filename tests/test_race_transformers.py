"""Racing sessions on real attention: several at once, trees of any shape, token for token at float32."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.engine import TargetInfo
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.transformers_engine import TransformersEngine
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.wire import Commit, Draft, DraftNode, Open, memory_link
from racing_edge import Races
from tiny_target import MAX_CONTEXT, tiny_model
from verifier_client import VerifierClient, decoded_text, open_request, serve_stream

VOCAB = 257
NUM_SESSIONS = 4
INFO = TargetInfo("tiny", "f" * 64, "a" * 64, VOCAB, MAX_CONTEXT)


async def raced_text(verifier: Verifier, request: Open, truth: list[int], seed: int) -> list[int]:
    """What comes of a race to which trees are drafted, one path of each right as far as it goes."""
    draw = random.Random(seed)
    edge, cloud = memory_link()
    serving = asyncio.ensure_future(serve_stream(verifier, cloud))
    client = VerifierClient(edge, request)
    await client.begin()
    await client.send(replace(client.next_decode(client.remaining), race=True))
    next_id = 0
    while not client.finished:
        ahead = truth[len(client.committed) :]
        nodes: list[DraftNode] = []
        on_path: int | None = None
        for token in ahead[: draw.randrange(7)]:
            others = [DraftNode(draw.randrange(VOCAB), on_path) for _ in range(draw.randrange(3))]
            nodes += [other for other in others if other.token != token]
            nodes.append(DraftNode(token, on_path))
            on_path = next_id + len(nodes) - 1
        if nodes:
            await client.send(Draft(0, next_id, len(client.committed) - 1, tuple(nodes)))
            next_id += len(nodes)
        commit = await client.receive()
        assert isinstance(commit, Commit)
        client.committed += commit.tokens
    await edge.close()
    await serving
    return client.committed


@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_races_beside_each_other_reveal_the_texts_of_plain_decoding(architecture: str) -> None:
    engine = TransformersEngine(tiny_model(architecture), INFO)
    requests = [
        open_request(engine, [3 + k, 7, 11 * k][: 1 + k], seed=k, token_limit=MAX_CONTEXT - k, race=True)
        for k in range(NUM_SESSIONS)
    ]
    truths = [asyncio.run(decoded_text(engine, request)) for request in requests]
    races = Races()

    async def race() -> list[list[int]]:
        verifier = Verifier(engine, InlineRunner(), Limits(), races, latency_ms=lambda _: 10.0)
        texts = await asyncio.gather(
            *[
                raced_text(verifier, request, truth, k)
                for k, (request, truth) in enumerate(zip(requests, truths, strict=True))
            ]
        )
        await verifier.drain(0.0)
        return texts

    assert run_virtual(race()) == truths
    committed = sum(report.committed for report in races.reports)
    assert committed == sum(
        len(truth) - request.prompt_length for truth, request in zip(truths, requests, strict=True)
    )
    assert committed > 1.8 * len(races.reports), "trees were walked, and their rows kept"
