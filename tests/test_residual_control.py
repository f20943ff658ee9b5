"""Residual mode stays exact with chains, and turns between cloud and rounds, that follow how rounds ended."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from acespec.bench.virtual_clock import run_virtual
from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.mode_switch import ModeSwitch, Outlook
from acespec.edge_runtime.request import DraftSettings, GenerationRequest, SpeculationPolicy
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from acespec.speculation import SamplingParams
from acespec.wire import AcceptanceMode
from fake_draft import Table, TableDraftEngine
from fake_target import TableTargetEngine
from in_process import Streams, draft_model, link_delay, verifier_of
from joint_chi_square import WINDOW, expected_joint, joint_p_value
from residual_simulator import weigh

VOCAB = 6
PROMPT = (1, 2)
NEW_TOKENS = 9
END_TOKENS = (0,)
SAMPLING = SamplingParams(temperature=1.2, top_k=5)
NUM_TEXTS = 600


def tables() -> tuple[np.ndarray, np.ndarray]:
    """Target and draft logits ``[V, V, V]``, alike in some contexts and far apart in others."""
    generator = np.random.default_rng(7)
    target = generator.standard_normal((VOCAB,) * 3)
    noise = generator.choice([0.1, 2.5], size=(VOCAB, VOCAB, 1)) * generator.standard_normal((VOCAB,) * 3)
    return target.astype(np.float32), (target + noise).astype(np.float32)


def by_last_two(logits: np.ndarray) -> Table:
    return lambda path: logits[path[-2], path[-1]]


class FollowsOutcomes(ModeSwitch):
    """Turns to the cloud after a round that committed one token, and back at once."""

    def enters(self, cautious: Outlook, generated: int) -> bool:
        return True

    def observe_round(self, round_ms: float, expected_ms: float, tokens: int, cloud_ms: float) -> None:
        self._lost = tokens == 1

    def leaves(self, outlook: Outlook, generated: int) -> bool:
        return self._lost


def texts(policy: SpeculationPolicy, first_seed: int) -> list[GenerationResult]:
    """One text of each seed, with estimates that begin anew and so move a lot."""
    target, draft = tables()
    settings = DraftSettings(gamma=None, policy=policy, initial_alpha=0.5)

    async def generate_all() -> list[GenerationResult]:
        engine = TableTargetEngine(by_last_two(target), VOCAB, max_context=64)
        verifier = verifier_of(engine)
        identity = SessionSettings(TargetIdentity(vocabulary_hash=engine.info.vocabulary_hash))
        results = []
        for seed in range(first_seed, first_seed + NUM_TEXTS):
            request = GenerationRequest(
                PROMPT, END_TOKENS, NEW_TOKENS, SAMPLING, seed, AcceptanceMode.RESIDUAL
            )
            streams = Streams(verifier, link_delay([2.0]))
            model = draft_model(TableDraftEngine(by_last_two(draft), VOCAB, buckets=(1, 4)), 3.0)
            results.append(await generate(streams, request, VOCAB, model, settings, identity))
            await streams.ended()
        await verifier.drain(0.0)
        return results

    return run_virtual(generate_all())


def p_values(results: list[GenerationResult]) -> list[float]:
    """Chi-square p-values of the joints of three tokens, those in front and those behind."""
    tokens = np.full((len(results), NEW_TOKENS), -1)
    for row, result in zip(tokens, results, strict=True):
        row[: len(result.tokens)] = result.tokens
    probs = weigh(*tables(), SAMPLING).target_probs
    return [
        joint_p_value(tokens[:, skip : skip + WINDOW], expected_joint(probs, PROMPT, END_TOKENS, skip))
        for skip in (0, 3, NEW_TOKENS - WINDOW)
    ]


def test_chosen_chain_lengths_leave_the_distribution_alone() -> None:
    results = texts(SpeculationPolicy.ROUNDS, first_seed=0)
    budgets = Counter(round(result.metrics.mean_budget or 0.0, 1) for result in results)
    assert len(budgets) > 3, "plans differ from text to text"
    assert min(p_values(results)) > 1e-3 / 6


def test_turning_to_the_cloud_and_back_leaves_the_distribution_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("acespec.edge_runtime.auto_policy.ModeSwitch", FollowsOutcomes)
    monkeypatch.setattr("acespec.edge_runtime.auto_policy.FIRST_PIECE", 1)
    monkeypatch.setattr("acespec.edge_runtime.auto_policy.PIECES", (1, 1))
    results = texts(SpeculationPolicy.AUTO, first_seed=10**6)
    assert sum(result.metrics.rounds for result in results) > NUM_TEXTS
    assert sum(result.metrics.decoded_tokens for result in results) > 1.2 * NUM_TEXTS
    assert min(p_values(results)) > 1e-3 / 6
