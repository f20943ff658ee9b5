"""The models of time against the real loop and verifier in simulated time."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.edge_runtime.budget import StepPlan, tree_time_ms
from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.request import DraftSettings, GenerationRequest
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from acespec.edge_runtime.time_model import expected_tokens, forecast
from acespec.speculation import paper_model
from fake_draft import Table, TableDraftEngine, mixed
from fake_target import TableTargetEngine
from in_process import Streams, draft_model, link_delay

VOCAB = 24
NEW_TOKENS = 160
LOGITS = 2.0 * np.random.default_rng(1).standard_normal((2, VOCAB, VOCAB, VOCAB)).astype(np.float32)


def by_last_two(logits: np.ndarray) -> Table:
    """A table ``[V, V, V]`` as a function of the path (its first token has nothing before it: 0)."""
    return lambda path: logits[path[-2] if len(path) > 1 else 0, path[-1]]


@dataclass(frozen=True)
class Setting:
    """A link and two machines, milliseconds."""

    round_trip: float
    verify: float
    step: float


@dataclass
class Measured:
    """Many rounds in simulated time."""

    round_ms: float
    tokens: float
    """A round."""
    acceptance: float
    hit_rate: float
    controller: Controller
    """At the end of the last text."""

    @property
    def ms_per_token(self) -> float:
        return self.round_ms / self.tokens


def measure(setting: Setting, closeness: float, settings: DraftSettings, num_texts: int = 5) -> Measured:
    """Texts by rounds; the first round of each, which comes with the prompt, is left out."""
    controllers: list[Controller] = []

    class Kept(Controller):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            controllers.append(self)

    async def main() -> list[GenerationResult]:
        target = TableTargetEngine(by_last_two(LOGITS[0]), VOCAB)
        verifier = Verifier(target, InlineRunner(), latency_ms=lambda _: setting.verify)
        identity = SessionSettings(TargetIdentity(vocabulary_hash=target.info.vocabulary_hash))
        table = mixed(by_last_two(LOGITS[1]), by_last_two(LOGITS[0]), closeness)
        results = []
        for seed in range(num_texts):
            streams = Streams(verifier, link_delay([setting.round_trip / 2.0]))
            model = draft_model(TableDraftEngine(table, VOCAB, buckets=(1, 4, 8, 16)), setting.step)
            request = GenerationRequest((4, 2), (), NEW_TOKENS, seed=seed)
            results.append(await generate(streams, request, VOCAB, model, settings, identity))
            await streams.ended()
        await verifier.drain(0.0)
        return results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["acespec.edge_runtime.generate"], "Controller", Kept)
        metrics = [result.metrics for result in run_virtual(main())]
    rounds = sum(m.rounds - 1 for m in metrics)
    total_ms = sum(m.total_ms - (m.time_to_first_token_ms or 0.0) for m in metrics)
    return Measured(
        round_ms=total_ms / rounds,
        tokens=sum(m.tokens for m in metrics) / sum(m.rounds for m in metrics),
        acceptance=float(np.mean([m.acceptance for m in metrics])),
        hit_rate=float(np.mean([m.hit_rate or 0.0 for m in metrics])),
        controller=controllers[-1],
    )


CELLS = [
    (Setting(50.0, 72.0, 8.5), 0.62, 4),
    (Setting(10.0, 72.0, 22.0), 0.62, 3),
    (Setting(200.0, 146.0, 15.0), 0.8, 8),
    (Setting(20.0, 30.0, 15.0), 0.4, 2),
]


@pytest.mark.parametrize(("setting", "closeness", "gamma"), CELLS)
def test_the_corrected_model_is_within_five_percent(setting: Setting, closeness: float, gamma: int) -> None:
    """What a round takes and commits, from acceptance and hit rate; and both with the hit rate predicted."""
    measured = measure(setting, closeness, DraftSettings(gamma=gamma, budget=gamma + 8))
    window_ms = setting.round_trip + setting.verify
    tokens = expected_tokens(measured.acceptance, gamma)
    assert tokens == pytest.approx(measured.tokens, rel=0.05)
    if tree_time_ms(gamma + 8, gamma, dict.fromkeys((1, 4, 8, 16), setting.step)) <= window_ms:
        round_ms = window_ms + (1.0 - measured.hit_rate) * gamma * setting.step
        assert round_ms == pytest.approx(measured.round_ms, rel=0.05)
        assert round_ms / tokens == pytest.approx(measured.ms_per_token, rel=0.05)
    learned = measured.controller.setting(NEW_TOKENS)
    odds = replace(learned.odds, alpha=measured.acceptance)  # of all texts, not of the last alone
    predicted = forecast(replace(learned, odds=odds), StepPlan(gamma, 8, 8))
    assert predicted.hit_rate == pytest.approx(measured.hit_rate, abs=0.12)
    assert predicted.ms_per_token == pytest.approx(measured.ms_per_token, rel=0.05)


@pytest.mark.parametrize(("setting", "closeness", "gamma"), CELLS)
def test_equation_4_is_a_lower_bound(setting: Setting, closeness: float, gamma: int) -> None:
    """Of the speed against stop and wait, with the hit rate that was met in place of Eq. 6."""
    naive = measure(setting, closeness, DraftSettings(gamma=gamma, budget=gamma), num_texts=2)
    tree = measure(setting, closeness, DraftSettings(gamma=gamma, budget=gamma + 8), num_texts=2)
    assert naive.hit_rate == 0.0
    assert naive.tokens == pytest.approx(tree.tokens, rel=0.02), "the same texts"
    draft_ms = gamma * setting.step
    naive_ms = paper_model.naive_cycle_ms(draft_ms, setting.round_trip, setting.verify)
    assert naive.round_ms == pytest.approx(naive_ms, rel=0.02)
    tree_ms = tree_time_ms(gamma + 8, gamma, dict.fromkeys((1, 4, 8, 16), setting.step))
    ideal_ms = paper_model.ideal_cycle_ms(tree_ms, setting.round_trip, setting.verify)
    bubble_ms = paper_model.bubble_ms(setting.round_trip, draft_ms)
    bound = paper_model.speedup_bound_by_ratio(naive_ms / ideal_ms, tree.hit_rate, bubble_ms / ideal_ms)
    assert naive.ms_per_token / tree.ms_per_token >= bound


def test_plans_chosen_by_the_model_beat_fixed_chains() -> None:
    setting = Setting(50.0, 72.0, 8.5)
    chosen = measure(setting, 0.62, DraftSettings(gamma=None), num_texts=3)
    fixed = [measure(setting, 0.62, DraftSettings(gamma=gamma), num_texts=3) for gamma in (4, 8)]
    assert chosen.ms_per_token < min(m.ms_per_token for m in fixed)
