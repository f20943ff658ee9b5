"""The edge's loop against the verifier's session: the text never depends on how it was speculated."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.acceptance import draws_at
from acespec.edge_runtime.generate import GenerationResult
from acespec.edge_runtime.request import DraftSettings, FinishReason, GenerationRequest
from acespec.speculation import Allocation, SamplingParams, Weighted, propose
from acespec.wire import AcceptanceMode, ErrorCode, SessionError, SparseTarget, TargetDraws
from fake_draft import Table, TableDraftEngine, hashed_table, mixed
from fake_target import TableTargetEngine
from in_process import generate_in_process, link_delay
from residual_simulator import Form, simulate

VOCAB = 13
TARGET = hashed_table(VOCAB, salt=1)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.9, 0.6]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.3]),
)


def draft_engine(
    closeness: float = 0.7, max_context: int = 512, top_k: int | None = None
) -> TableDraftEngine:
    """A draft that is ``closeness`` target and for the rest something else."""
    table = mixed(hashed_table(VOCAB, salt=2), TARGET, closeness)
    return TableDraftEngine(table, VOCAB, max_context=max_context, top_k=top_k)


def request_for(prompt: Sequence[int], max_new_tokens: int, **fields: object) -> GenerationRequest:
    fields.setdefault("end_token_ids", (0,))
    return GenerationRequest(prompt=tuple(prompt), max_new_tokens=max_new_tokens, **fields)  # type: ignore[arg-type]


def run(
    request: GenerationRequest,
    draft: TableDraftEngine | None,
    draft_settings: DraftSettings | None = None,
    delays: Sequence[float] = (0.0,),
    target_context: int = 1024,
    step_ms: float = 1.0,
) -> GenerationResult:
    target = TableTargetEngine(TARGET, VOCAB, max_context=target_context)
    result = run_virtual(
        generate_in_process(target, draft, request, draft_settings, link_delay(delays), step_ms)
    )
    assert not target.sequences, "the verifier freed the sequence"
    return result


@settings(max_examples=300, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5),
    max_new_tokens=st.integers(1, 24),
    end_token_ids=st.sampled_from([(), (0,), (3, 8)]),
    params=PARAMS,
    seed=st.integers(0, 2**64 - 1),
    gamma=st.none() | st.integers(1, 6),
    branches=st.none() | st.integers(0, 12),
    allocation=st.sampled_from(Allocation),
    closeness=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    delays=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    draft_context=st.sampled_from([2, 9, 512]),
    top_k=st.sampled_from([None, None, 1, 3, VOCAB]),
)
def test_coupled_text_equals_cloud_only_text(
    prompt: list[int],
    max_new_tokens: int,
    end_token_ids: tuple[int, ...],
    params: SamplingParams,
    seed: int,
    gamma: int | None,
    branches: int | None,
    allocation: Allocation,
    closeness: float,
    delays: list[int],
    draft_context: int,
    top_k: int | None,
) -> None:
    request = request_for(prompt, max_new_tokens, end_token_ids=end_token_ids, sampling=params, seed=seed)
    budget = None if branches is None else (gamma or 1) + branches
    speculated = run(
        request,
        draft_engine(closeness, draft_context, top_k),
        DraftSettings(gamma=gamma, budget=budget, allocation=allocation),
        delays,
    )
    alone = run(request, None)
    assert speculated.tokens == alone.tokens
    assert speculated.finish_reason == alone.finish_reason
    assert speculated.metrics.target_forwards_per_token <= 1.0


def test_an_end_token_or_the_limit_inside_a_chain_ends_the_text_there() -> None:
    reasons = set()
    for seed in range(40):
        request = request_for([4, 2], 9, seed=seed)
        result = run(request, draft_engine(1.0), DraftSettings(gamma=6))
        assert 0 not in result.tokens[:-1]
        assert len(result.tokens) <= 9
        ended = result.tokens[-1] == 0
        assert result.finish_reason is (FinishReason.END_TOKEN if ended else FinishReason.LENGTH)
        assert ended or len(result.tokens) == 9
        reasons.add(result.finish_reason)
    assert len(reasons) == 2, "the seeds cover both ends"


def test_a_perfect_draft_with_time_to_grow_always_hits() -> None:
    request = request_for([4, 2], 60, end_token_ids=())
    metrics = run(request, draft_engine(1.0), DraftSettings(gamma=4), delays=[40]).metrics
    assert metrics.acceptance == 1.0
    assert metrics.hit_rate == 1.0
    assert metrics.rounds == 12, "each round commits gamma + 1 tokens"
    assert metrics.target_forwards_per_token == pytest.approx(0.2)


def test_without_time_to_grow_only_the_first_round_can_hit() -> None:
    """A step longer than the wait is begun only while the round trip is unknown."""
    request = request_for([4, 2], 60, end_token_ids=())
    metrics = run(request, draft_engine(0.7), delays=[1], step_ms=50.0).metrics
    assert metrics.growth_steps == 1
    assert metrics.hit_rate is not None
    assert metrics.hit_rate * (metrics.rounds - 1) <= 1.0
    quick = run(request, draft_engine(0.7), delays=[1]).metrics
    assert quick.hit_rate is not None
    assert quick.hit_rate > 0.5


def test_a_full_draft_context_goes_on_by_cloud_decoding() -> None:
    request = request_for([4, 2], 30, end_token_ids=())
    result = run(request, draft_engine(0.9, max_context=12), DraftSettings(gamma=4), delays=[20])
    assert result.tokens == run(request, None).tokens
    assert result.metrics.rounds > 0
    assert result.metrics.messages_down > 30 - 13, "one commit a token once the draft's context is full"


def test_the_targets_context_ends_the_text() -> None:
    request = request_for([4, 2, 1], 30, end_token_ids=())
    for draft in (None, draft_engine(0.9)):
        result = run(request, draft, target_context=14)
        assert len(result.tokens) == 14 - 3
        assert result.finish_reason is FinishReason.LENGTH


def test_a_prompt_that_fills_the_targets_context_is_refused() -> None:
    with pytest.raises(SessionError, match="does not fit the target's context of 4") as caught:
        run(request_for([1, 2, 3, 4], 5), draft_engine(), target_context=4)
    assert caught.value.code is ErrorCode.FAILED_PRECONDITION


def test_statistics_count_what_the_codec_produced() -> None:
    request = request_for([4, 2], 40, end_token_ids=())
    result = run(request, draft_engine(0.7), DraftSettings(gamma=4), delays=[9])
    metrics = result.metrics
    assert metrics.tokens == len(result.tokens) == 40
    assert metrics.messages_down == metrics.rounds + 1, "a verdict each, and Opened"
    assert metrics.messages_up == metrics.rounds + 2, "a round each, Open and Close"
    assert metrics.bytes_up_per_token * 40 == pytest.approx(metrics.payload_bytes_up)
    assert metrics.acceptance is not None
    assert 0 < metrics.acceptance < 1
    total = metrics.prefill_ms + metrics.draft_ms + metrics.growth_ms + metrics.waiting_ms + metrics.own_ms
    assert total == pytest.approx(metrics.total_ms, rel=1e-6)


def by_last_two(table: np.ndarray) -> Table:
    """A table ``[V, V, V]`` as a function of the path (its first token has nothing before it: 0)."""
    return lambda path: table[(0, *path)[-2], path[-1]]


def residual_tables(noise: float) -> tuple[np.ndarray, np.ndarray]:
    """A target and a draft whose logits differ by ``noise``, standard deviation."""
    generator = np.random.default_rng(5)
    target = 2.0 * generator.standard_normal((8, 8, 8)).astype(np.float32)
    draft = (target + noise * generator.standard_normal((8, 8, 8))).astype(np.float32)
    target[3, :, 4:] = -1e9  # rows that share nothing with the draft's
    draft[3, :, :4] = -1e9
    return target, draft


def force_form(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every rejection travel as ``form``; which one is cheaper is the verifier's tests' concern."""

    def describe(target: Weighted, seed: int, position: int, first_index: int, _: int) -> Any:
        if form is Form.SPARSE:
            return SparseTarget(target.bits, tuple(target.ids.tolist()), tuple(target.weights.tolist()))
        ids = propose(target, seed, position, first_index, draws_at(first_index))
        return TargetDraws(
            target.bits, first_index, tuple(ids.tolist()), tuple(target.weights_of(ids).tolist())
        )

    monkeypatch.setattr("acespec.cloud_verifier.session.describe_target", describe)


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("noise", [1.5, 0.2])
@pytest.mark.parametrize(("delays", "step_ms"), [([0], 50.0), ([30], 1.0), ([3, 0, 11], 4.0)])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.3, top_k=6, min_p=0.02)])
def test_residual_mode_over_the_wire_is_the_simulated_protocol(
    params: SamplingParams,
    delays: list[int],
    step_ms: float,
    noise: float,
    form: Form,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the joint chi-square tests as a vectorised simulation is what the two sides really do.

    The closer the models, the more draws of a target fail: at the smaller noise more are asked for.
    """
    force_form(form, monkeypatch)
    target_table, draft_table = residual_tables(noise)
    seeds = np.arange(40, dtype=np.int64)
    limit, gamma, prompt = 14, 3, [1, 2]
    expected = simulate(target_table, draft_table, params, seeds, gamma, form, prompt, limit, [0])
    hits = misses = rejections = asked_again = 0
    for seed in seeds.tolist():
        target = TableTargetEngine(by_last_two(target_table), 8, max_context=64)
        draft = TableDraftEngine(by_last_two(draft_table), 8)
        request = request_for(
            prompt, limit - len(prompt), sampling=params, seed=seed, mode=AcceptanceMode.RESIDUAL
        )
        result = run_virtual(
            generate_in_process(
                target, draft, request, DraftSettings(gamma=gamma), link_delay(delays), step_ms
            )
        )
        padding = [-1] * (limit - len(prompt) - len(result.tokens))
        assert [*result.tokens, *padding] == expected[seed, len(prompt) :].tolist(), f"seed {seed}"
        if result.metrics.hit_rate is not None:
            hits += int(result.metrics.hit_rate > 0.0)
            misses += int(result.metrics.hit_rate < 1.0)
        rejections += int(result.metrics.acceptance != 1.0)
        asked_again += result.metrics.messages_up - result.metrics.rounds - 2  # besides Open and Close
    assert rejections > 20
    if form is Form.SPARSE:
        assert asked_again == 0
    elif noise == 0.2:
        assert asked_again > 5
    assert (misses if step_ms == 50.0 else hits) > 20


@pytest.mark.parametrize("form", Form)
def test_residual_mode_over_the_largest_logits_is_that_over_a_draft_of_no_others(
    form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_form(form, monkeypatch)
    target_table, draft_table = residual_tables(noise=1.0)
    others = np.argsort(-draft_table, axis=2)[:, :, 4:]
    cut_table = draft_table.copy()
    np.put_along_axis(cut_table, others, np.float32(-1e9), axis=2)
    params, prompt, limit = SamplingParams(top_p=0.95), [1, 2], 12
    seeds = np.arange(30, dtype=np.int64)
    expected = simulate(target_table, cut_table, params, seeds, 3, form, prompt, limit, [0])
    for seed in seeds.tolist():
        request = request_for(
            prompt, limit - len(prompt), sampling=params, seed=seed, mode=AcceptanceMode.RESIDUAL
        )
        target = TableTargetEngine(by_last_two(target_table), 8, max_context=64)
        draft = TableDraftEngine(by_last_two(draft_table), 8, top_k=4)
        result = run_virtual(
            generate_in_process(target, draft, request, DraftSettings(gamma=3), link_delay([4]), 1.0)
        )
        padding = [-1] * (limit - len(prompt) - len(result.tokens))
        assert [*result.tokens, *padding] == expected[seed, len(prompt) :].tolist(), f"seed {seed}"


def test_settings_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="budget 40 needs 37 branches"):
        run(request_for([1], 4), draft_engine(), DraftSettings(gamma=3, budget=40))
    with pytest.raises(ValueError, match="at least gamma"):
        DraftSettings(gamma=5, budget=4)
    with pytest.raises(ValueError, match="the prompt is empty"):
        request_for([], 4)
    with pytest.raises(ValueError, match="max_new_tokens"):
        request_for([1], 0)
    assert dataclasses.replace(request_for([1], 3), seed=2**64 - 1).token_limit == 4
