"""SmolLM2-135M-Instruct and its derived draft: the text of rounds is the text of the cloud alone.

Real models in simulated time: the link, the draft's steps and the target's forwards take what the case says,
so that hits, misses and preempted growth of a wide-area run happen here, and the same ones every time.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging

import pytest

from acespec.bench.demo import PAIR, prepare
from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.server import VerifierServer
from acespec.cloud_verifier.server_options import ServerOptions
from acespec.cloud_verifier.transformers_engine import TransformersEngine
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import ThreadRunner
from acespec.edge_runtime.draft_model import DraftModel
from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.grpc_transport import GrpcConnector
from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine
from acespec.edge_runtime.request import DraftSettings, FinishReason, GenerationRequest, SpeculationPolicy
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from acespec.edge_runtime.text import encode_prompt
from acespec.models import load_tokenizer, resolve_model
from acespec.models.manifest import Bundle
from acespec.speculation import Allocation, SamplingParams
from acespec.wire import AcceptanceMode
from in_process import generate_in_process, link_delay

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(900)]

logger = logging.getLogger(__name__)

PROMPTS = (
    "Explain why the sky is blue.",
    "Write a Python function that reverses a linked list.",
    "A train travels 60 km in 45 minutes. What is its speed in km/h?",
    "Name three uses of copper.",
    "Write a short poem about a lighthouse.",
    "What is the capital of Australia?",
    "Summarise the water cycle in two sentences.",
    "List the first ten prime numbers.",
    "How do I boil an egg?",
    "Translate to French: good morning, my friend.",
    "What does HTTP status 404 mean?",
    "Give me a recipe for pancakes.",
)
SAMPLING = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, top_k=50, top_p=0.95),
    SamplingParams(temperature=0.8, min_p=0.05, repetition_penalty=1.1),
)
SETTINGS = (
    DraftSettings(gamma=4),
    DraftSettings(gamma=6, budget=14, allocation=Allocation.UNIFORM),
    DraftSettings(gamma=2, budget=3, allocation=Allocation.SINGLE),
    DraftSettings(gamma=5, budget=25, allocation=Allocation.ADAPTIVE),
)
DELAYS_MS = (5.0, 25.0, 100.0)
NEW_TOKENS = 48


@functools.cache
def draft_bundle() -> Bundle:
    """The demo pair's, made if it is not in the cache yet."""
    return prepare(logger.info)


@functools.cache
def target() -> TransformersEngine:
    draft_bundle()
    return TransformersEngine.load(resolve_model(PAIR.target), threads=1)


@functools.cache
def draft() -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(draft_bundle(), threads=1)


def run(
    request: GenerationRequest, settings: DraftSettings | None, delay_ms: float = 25.0
) -> GenerationResult:
    """``settings`` None: the cloud alone."""
    engine = None if settings is None else draft()
    return run_virtual(
        generate_in_process(target(), engine, request, settings, link_delay([delay_ms]), step_ms=8.5)
    )


def request_for(
    prompt: str, sampling: SamplingParams, *, ends: bool = False, **fields: object
) -> GenerationRequest:
    """``ends``: an end token ends the text; otherwise it is ``NEW_TOKENS`` long whatever comes."""
    bundle = draft_bundle()
    ids = encode_prompt(load_tokenizer(bundle.tokenizer_path), bundle, prompt, chat=True)
    return GenerationRequest(
        prompt=ids,
        end_token_ids=bundle.manifest.end_token_ids if ends else (),
        max_new_tokens=NEW_TOKENS,
        sampling=sampling,
        **fields,  # type: ignore[arg-type]
    )


CASES = list(
    zip(
        PROMPTS,
        itertools.cycle(SAMPLING),
        itertools.cycle(SETTINGS),
        itertools.cycle(DELAYS_MS),
    )
)


@pytest.mark.parametrize(("prompt", "sampling", "settings", "delay_ms"), CASES)
def test_coupled_text_of_rounds_is_the_text_of_the_cloud_alone(
    prompt: str, sampling: SamplingParams, settings: DraftSettings, delay_ms: float
) -> None:
    request = request_for(prompt, sampling, seed=len(prompt))
    rounds = run(request, settings, delay_ms)
    cloud = run(request, None)
    assert rounds.tokens == cloud.tokens
    assert len(rounds.tokens) == NEW_TOKENS
    assert rounds.metrics.target_forwards_per_token < 1.0, "the draft is of use"


RACE = DraftSettings(gamma=None, policy=SpeculationPolicy.RACE)


@pytest.mark.parametrize(("prompt", "sampling", "_", "delay_ms"), CASES[:6])
def test_text_of_a_race_is_the_text_of_the_cloud_alone(
    prompt: str, sampling: SamplingParams, _: DraftSettings, delay_ms: float
) -> None:
    request = request_for(prompt, sampling, seed=len(prompt))
    raced = run(request, RACE, delay_ms)
    assert raced.tokens == run(request, None).tokens
    assert len(raced.tokens) == NEW_TOKENS
    assert raced.metrics.drafted_nodes > 0


def test_over_real_grpc_the_text_of_a_race_is_the_same() -> None:
    request = request_for(PROMPTS[2], SamplingParams(temperature=0.7, top_p=0.95), seed=4)

    async def raced_over_grpc() -> GenerationResult:
        edge, cloud = ThreadRunner("draft"), ThreadRunner("target")
        server = VerifierServer(Verifier(target(), cloud), ServerOptions(port=0))
        try:
            connector = GrpcConnector(await server.start())
            model = DraftModel(draft(), lambda _: dict.fromkeys(draft().buckets, 20.0), edge)
            session = SessionSettings(TargetIdentity(vocabulary_hash=target().info.vocabulary_hash))
            return await generate(connector, request, target().info.vocab_size, model, RACE, session)
        finally:
            await server.stop(0.0)
            edge.close()
            cloud.close()

    raced = asyncio.run(raced_over_grpc())
    assert raced.tokens == run(request, None).tokens
    assert raced.metrics.drafted_nodes > 0


def test_the_answer_ends_at_the_same_end_token() -> None:
    request = request_for("What is the capital of Australia?", SamplingParams(temperature=0.0), ends=True)
    rounds, cloud = run(request, DraftSettings(gamma=5)), run(request, None)
    assert rounds.tokens == cloud.tokens
    assert rounds.finish_reason is cloud.finish_reason is FinishReason.END_TOKEN


def test_residual_mode_accepts_and_hits() -> None:
    request = request_for(PROMPTS[0], SamplingParams(top_p=0.9), seed=3, mode=AcceptanceMode.RESIDUAL)
    metrics = run(request, DraftSettings(gamma=4)).metrics
    assert metrics.acceptance is not None
    assert 0.3 < metrics.acceptance < 0.95
    assert metrics.hit_rate is not None
    assert metrics.hit_rate > 0.3
