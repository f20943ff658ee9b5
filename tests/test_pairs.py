"""The registry of models and pairs is consistent with itself and with the paper."""

from __future__ import annotations

import pytest

from acespec.edge_runtime.outcome_estimates import OutcomeEstimates
from acespec.errors import AcespecError
from acespec.models import DEMO_PAIR, MODELS, PAIRS, Pair, pair

TABLE_I_TOKENS_PER_SECOND = {"qwen3-32b": 13.89, "llama-3.1-70b": 6.87}
"""Autoregressive rates of the paper's Table I on GSM8K."""


@pytest.mark.parametrize("known", PAIRS.values(), ids=PAIRS.keys())
def test_a_pair_names_known_models_and_settings_that_work(known: Pair) -> None:
    assert pair(known.name) is known
    draft = MODELS[known.draft]
    assert MODELS[known.target].derived is None
    assert draft.derived is None or draft.derived.target == known.target
    assert list(known.buckets) == sorted(set(known.buckets))
    assert known.buckets[0] == 1
    assert known.gamma <= known.buckets[-1]
    assert 0 < known.initial_alpha < 1
    assert known.initial_beta > 0
    assert known.draft_step_ms < known.target_step_ms
    outcomes = OutcomeEstimates(known.allocation, known.initial_alpha, known.initial_beta)
    branches = outcomes.allocation(12, [0.5] * known.gamma)
    assert len(branches) == known.gamma + 1
    assert sum(branches) == 12


def test_target_steps_are_those_of_the_papers_table() -> None:
    for known in PAIRS.values():
        if known.name != DEMO_PAIR:
            expected = 1000 / TABLE_I_TOKENS_PER_SECOND[known.target]
            assert known.target_step_ms == pytest.approx(expected, abs=0.5)


def test_every_known_model_can_be_had() -> None:
    for model in MODELS.values():
        sources = [source for source in (model.hub_id, model.wheel, model.derived) if source is not None]
        assert sources, model.name
        if model.derived is not None:
            assert len(sources) == 1
            assert model.derived.target in MODELS
            layers = model.derived.skipped_layers
            assert list(layers) == sorted(set(layers))


def test_an_unknown_pair_lists_the_known_ones() -> None:
    with pytest.raises(AcespecError, match=DEMO_PAIR):
        pair("nothing")
