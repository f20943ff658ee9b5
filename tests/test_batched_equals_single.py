"""A verifier full of sessions answers each as it would alone, token for token at float32."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.engine import TargetInfo
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import BatchReport, Observer
from acespec.cloud_verifier.transformers_engine import TransformersEngine
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.edge_runtime.generate import generate
from acespec.edge_runtime.request import DraftSettings, GenerationRequest
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from acespec.speculation import Allocation, SamplingParams
from acespec.wire import AcceptanceMode
from fake_draft import Table, TableDraftEngine
from in_process import FORWARD_MS, Streams, draft_model, link_delay
from tiny_target import MAX_CONTEXT, tiny_model

VOCAB = 257
NUM_SESSIONS = 64
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.6, top_p=0.9),
    SamplingParams(temperature=1.3, top_k=20, min_p=0.02),
    SamplingParams(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.1),
]
IDENTITY = SessionSettings(TargetIdentity(vocabulary_hash="a" * 64))


@dataclass(frozen=True)
class Edge:
    """One generation and the circumstances it happens in."""

    request: GenerationRequest
    gamma: int
    drafts: bool
    """False: the cloud decodes alone."""
    starts_at_ms: float
    link_ms: float
    stray: float
    """How often its draft has something else in mind than the target."""


def random_edge(index: int) -> Edge:
    draw = random.Random(index)
    prompt = tuple(draw.randrange(256) for _ in range(draw.choice([1, 2, 5, 17, 40, 70])))
    request = GenerationRequest(
        prompt=prompt,
        end_token_ids=(256,),
        max_new_tokens=draw.randint(1, min(40, MAX_CONTEXT - len(prompt) - 1)),
        sampling=draw.choice(SAMPLINGS),
        seed=draw.getrandbits(64),
        mode=draw.choice(list(AcceptanceMode)),
    )
    return Edge(
        request,
        gamma=draw.randint(1, 6),
        drafts=draw.random() < 0.8,
        starts_at_ms=draw.uniform(0.0, 200.0),
        link_ms=draw.choice([0.5, 5.0, 20.0, 60.0]),
        stray=draw.choice([0.0, 0.2, 0.5, 1.0]),
    )


def knowing_draft(text: tuple[int, ...], stray: float, seed: int) -> Table:
    """A draft that expects ``text`` where it follows it, but for some positions."""

    def logits(path: tuple[int, ...]) -> NDArray[np.float32]:
        values = np.random.default_rng([seed, *path]).standard_normal(VOCAB).astype(np.float32)
        if path == text[: len(path)] and len(path) < len(text) and random.Random(f"{path}").random() >= stray:
            values[text[len(path)]] += 8.0
        return values

    return logits


class Batches(Observer):
    """Keeps the forwards."""

    def __init__(self) -> None:
        self.reports: list[BatchReport] = []

    def batch(self, report: BatchReport) -> None:
        self.reports.append(report)


async def texts(
    engine: TransformersEngine, edges: list[Edge], texts_alone: list[list[int]], seen: Batches
) -> list[list[int]]:
    """What ``edges`` generate on one verifier, each at its time; their drafts know ``texts_alone``."""
    limits = Limits(token_budget=128)  # so that the longer prompts are cut
    verifier = Verifier(engine, InlineRunner(), limits, seen, latency_ms=lambda _: FORWARD_MS)

    async def run(edge: Edge, text_alone: list[int]) -> list[int]:
        await asyncio.sleep(edge.starts_at_ms / 1000.0)
        streams = Streams(verifier, link_delay([edge.link_ms]))
        text = (*edge.request.prompt, *text_alone)
        draft = TableDraftEngine(knowing_draft(text, edge.stray, 3), VOCAB, max_context=MAX_CONTEXT)
        result = await generate(
            streams,
            edge.request,
            VOCAB,
            draft_model(draft, 1.0) if edge.drafts else None,
            DraftSettings(gamma=edge.gamma, budget=edge.gamma + 6, allocation=Allocation.GEOMETRIC),
            IDENTITY,
        )
        await streams.ended()
        return result.tokens

    try:
        return await asyncio.gather(*map(run, edges, texts_alone))
    finally:
        await verifier.drain(0.0)


@pytest.fixture(scope="module")
def edges() -> list[Edge]:
    return [random_edge(index) for index in range(NUM_SESSIONS)]


def test_batched_equals_single(edges: list[Edge]) -> None:
    torch.set_num_threads(1)
    info = TargetInfo("tiny", "f" * 64, "a" * 64, VOCAB, MAX_CONTEXT)
    engine = TransformersEngine(tiny_model(), info)
    nothing: list[list[int]] = [[]]
    decoded = [run_virtual(texts(engine, [decoding_alone(edge)], nothing, Batches()))[0] for edge in edges]
    singly = [
        run_virtual(texts(engine, [edge], [text], Batches()))[0]
        for edge, text in zip(edges, decoded, strict=True)
    ]
    seen = Batches()
    together = run_virtual(texts(engine, edges, decoded, seen))
    assert together == singly
    coupled = [edge.request.mode is AcceptanceMode.COUPLED for edge in edges]
    assert [text for text, is_coupled in zip(together, coupled, strict=True) if is_coupled] == [
        text for text, is_coupled in zip(decoded, coupled, strict=True) if is_coupled
    ]
    assert 10 <= sum(coupled) <= NUM_SESSIONS - 10
    sizes = [report.num_sequences for report in seen.reports]
    assert max(sizes) >= 16
    assert np.mean(sizes) > 2.0, "most forwards serve several sessions"
    mixed = [report for report in seen.reports if 0 < report.prefill_tokens < report.num_tokens]
    assert mixed, "prompts go through together with chains"


def decoding_alone(edge: Edge) -> Edge:
    """The same generation without a draft."""
    return Edge(edge.request, edge.gamma, False, 0.0, edge.link_ms, edge.stray)
