"""PipeSD and E²-SCI, which decode greedily: PipeSD exactly, E²-SCI nearly."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.bench.lab.baselines import e2sci
from acespec.bench.lab.baselines.e2sci import E2Sci, Leniency, binary_divergence
from acespec.bench.lab.baselines.messages import decode_batch, encode_batch
from acespec.bench.lab.baselines.pipesd import PipeSd, upload_costs
from acespec.bench.lab.baselines.sides import likeliest
from acespec.bench.lab.baselines.upload_plan import UploadCosts, batch_ends, finish_ms
from acespec.bench.lab.profiles import parse_profiles
from acespec.bench.lab.simulated_link import Charged, LinkConditions
from acespec.bench.lab.token_path import TokenPath
from acespec.bench.virtual_clock import run_virtual
from acespec.edge_runtime import GenerationRequest
from acespec.speculation import Distribution, SamplingParams
from baseline_world import (
    GREEDY,
    TableModels,
    TableWorld,
    greedy_text,
    make_request,
    make_tables,
    make_world,
    opposite,
    run_one,
)

FAST_LINK = LinkConditions.symmetric(50.0, bytes_per_second=math.inf)
SAMPLING = SamplingParams(temperature=0.8, top_p=0.9)
ms = st.floats(0.0, 30.0)


# --- PipeSD -----------------------------------------------------------------------------------------------


@given(st.integers(1, 8), st.builds(UploadCosts, ms, ms, ms))
def test_no_other_plan_finishes_sooner(num_tokens: int, costs: UploadCosts) -> None:
    inner = range(1, num_tokens)
    plans = [
        (*ends, num_tokens) for size in range(num_tokens) for ends in itertools.combinations(inner, size)
    ]
    found = batch_ends(num_tokens, costs)
    assert found in plans
    assert finish_ms(found, costs) == min(finish_ms(ends, costs) for ends in plans)


def test_plans_at_the_extremes() -> None:
    assert batch_ends(4, UploadCosts(startup_ms=0.0, token_ms=1.0, draft_ms=10.0)) == (1, 2, 3, 4)
    assert batch_ends(4, UploadCosts(startup_ms=100.0, token_ms=1.0, draft_ms=10.0)) == (4,)
    # Two are sent at 20 + 12 + 2 = 34, the others at 40 + 14 = 54; after the third alone it would be 57.
    assert batch_ends(4, UploadCosts(startup_ms=12.0, token_ms=1.0, draft_ms=10.0)) == (2, 4)


@pytest.mark.parametrize("thresholds", [(0.3, 0.3), (0.95, 0.95), (0.0, 0.0), (0.05, 0.6)])
def test_pipesd_gives_the_targets_greedy_text(thresholds: tuple[float, float]) -> None:
    for seed, limit, rtt_ms, sampling in itertools.product(
        range(6), (1, 2, 9, 30), (1.0, 300.0), (GREEDY, SAMPLING)
    ):
        models, request = TableModels(*make_tables(seed)), make_request(sampling, max_new_tokens=limit)
        world = run_one(PipeSd(*thresholds), lambda: make_world(models, request, rtt_ms))  # noqa: B023
        assert tuple(world.log.tokens) == greedy_text(seed, limit)


def constant_tables(confidence: float) -> TableModels:
    """Both models say 0 with this confidence, whatever came before, the others alike."""
    others = math.log((1.0 - confidence) / 5.0)
    table = np.full((6, 6, 6), others, np.float32)
    table[..., 0] = math.log(confidence)
    return TableModels(table, table)


def free_request(max_new_tokens: int) -> GenerationRequest:
    return replace(make_request(GREEDY, max_new_tokens=max_new_tokens), end_token_ids=())


def window_lengths(strategy: PipeSd, confidence: float, conditions: LinkConditions = FAST_LINK) -> list[int]:
    """Tokens in each window of a run whose draft is always right."""
    asked: list[list[int]] = [[]]
    world = run_one(
        strategy,
        lambda: recording(
            make_world(constant_tables(confidence), free_request(40), conditions=conditions), asked
        ),
    )
    assert world.log.tokens == [0] * 40
    return [sum(sizes) for sizes in asked[:-1]]


def recording(world: TableWorld, windows: list[list[int]]) -> TableWorld:
    """Add the size of each batch that goes up to the last of ``windows``; begin another after a check."""
    send = world.up.send

    def noted(data: bytes, num_bytes: int) -> None:
        if len(data) < 30:  # not the prompt
            tokens, ask = decode_batch(data, 6)
            windows[-1].append(len(tokens))
            if ask:
                windows.append([])
        send(data, num_bytes)

    world.up.send = noted  # type: ignore[method-assign]
    return world


def test_either_threshold_asks_for_a_check() -> None:
    assert set(window_lengths(PipeSd(0.5, 0.1), 0.9)[:-1]) == {7}  # 0.9^7 = 0.478
    assert set(window_lengths(PipeSd(0.01, 0.9), 0.85)[:-1]) == {1}
    assert set(window_lengths(PipeSd(0.0, 0.0), 0.9)[:-1]) == {20}  # the longest


def test_a_window_streams_in_planned_batches() -> None:
    windows: list[list[int]] = [[]]
    slow = LinkConditions.symmetric(50.0, bytes_per_second=50e3 / 8, charged=Charged.WIRE)

    def make() -> TableWorld:
        return recording(make_world(constant_tables(0.9), free_request(8), conditions=slow), windows)

    world = run_one(PipeSd(0.5, 0.1), make)
    costs = upload_costs(world)
    assert costs == UploadCosts(
        startup_ms=pytest.approx((1 + 14 + 52) / 6.25), token_ms=pytest.approx(1 / 6.25), draft_ms=8.5
    )
    sent_at = np.cumsum(windows[0])
    planned = [end for end in batch_ends(20, costs) if end < 7]
    assert len(planned) >= 2
    assert sent_at.tolist() == [*planned, 7]


def test_what_was_drafted_ahead_is_used_if_the_target_agrees() -> None:
    def make() -> TableWorld:
        return make_world(constant_tables(0.9), free_request(16), conditions=FAST_LINK)

    world = run_one(PipeSd(0.5, 0.1), make)
    # Two windows of seven and the target's tokens; the second was drafted while the first was checked.
    assert (world.log.forwards, world.log.accepted) == (2, 14)
    assert (world.log.lookups, world.log.hits, world.log.ready_tokens) == (1, 1, 7)
    assert world.log.last_token_ms == pytest.approx(world.log.first_token_ms + 146.0 + 50.0)


def test_what_was_drafted_ahead_goes_up_at_once() -> None:
    windows: list[list[int]] = [[]]
    cloud = parse_profiles("orin-qwen3-0.6b/a100-32b").cloud

    def make() -> TableWorld:
        models, request = constant_tables(0.99), free_request(60)
        return recording(make_world(models, request, cloud=cloud, conditions=FAST_LINK), windows)

    world = run_one(PipeSd(0.0, 0.0), make)
    assert world.log.hits == world.log.lookups == 2
    assert [sizes[0] for sizes in windows[1:3]] == [(72 + 50) // 8.5] * 2
    assert world.log.ready_tokens == 2 * ((72 + 50) // 8.5)


def test_what_was_drafted_behind_a_wrong_guess_is_dropped() -> None:
    """Windows of seven stand, and the target puts another token behind each than the draft supposed."""

    def make() -> TableWorld:
        world = make_world(constant_tables(0.9), free_request(24), conditions=FAST_LINK)

        def target(path: TokenPath) -> Distribution:
            return Distribution(np.array([int((path.length - 2) % 8 == 7)]), np.ones(1))

        world.target = target  # type: ignore[method-assign]
        return world

    world = run_one(PipeSd(0.5, 0.1), make)
    assert world.log.tokens == [0, 0, 0, 0, 0, 0, 0, 1] * 3
    assert (world.log.forwards, world.log.accepted, world.log.lookups, world.log.hits) == (3, 21, 2, 0)
    between = 7 * 8.5 + 50.0 + 146.0
    assert world.log.last_token_ms == pytest.approx(world.log.first_token_ms + 2 * between)


def test_a_wrong_guess_costs_a_whole_window() -> None:
    """The draft is right but for what follows its own chains: nothing drafted ahead is used."""
    target, _ = make_tables()
    models = TableModels(target, opposite(target))
    request = replace(make_request(GREEDY, max_new_tokens=4), end_token_ids=())
    world = run_one(PipeSd(1.0, 1.0), lambda: make_world(models, request, conditions=FAST_LINK))
    # Windows of a token, and of none when one is left; each is drafted when the verdict before it is known.
    assert (world.log.forwards, world.log.accepted, world.log.hits) == (4, 0, 0)
    assert world.log.last_token_ms == pytest.approx(world.log.first_token_ms + 2 * 8.5 + 3 * 196.0)


@given(st.lists(st.integers(0, 299), max_size=9), st.booleans())
def test_batches_come_out_as_they_went_in(tokens: list[int], ask: bool) -> None:
    assert decode_batch(encode_batch(tokens, ask, 300), 300) == (tokens, ask)


# --- E²-SCI -----------------------------------------------------------------------------------------------


def test_e2sci_counts_every_token_the_target_would_not_have_put_there() -> None:
    inexact = tokens = 0
    for seed, rtt_ms in itertools.product(range(6), (1.0, 50.0, 300.0)):
        models, request = TableModels(*make_tables(seed, 0.5)), make_request(SAMPLING, max_new_tokens=30)
        world = run_one(E2Sci(), lambda: make_world(models, request, rtt_ms))  # noqa: B023
        path, different = world.start(), 0
        for token in world.log.tokens:
            different += token != likeliest(world.target(path))
            path = path.then(token)
        assert world.log.inexact == different
        inexact, tokens = inexact + different, tokens + len(world.log.tokens)
    assert 0 < inexact < tokens


def test_e2sci_without_leniency_gives_the_targets_greedy_text() -> None:
    strict = Leniency(base=0.0, gain=0.0, least=0.0, most=0.0)
    for seed, limit, rtt_ms in itertools.product(range(6), (1, 2, 30), (1.0, 50.0, 300.0)):
        for strategy, sampling in ((E2Sci(leniency=strict), SAMPLING), (E2Sci(), GREEDY)):
            models, request = TableModels(*make_tables(seed)), make_request(sampling, max_new_tokens=limit)
            world = run_one(strategy, lambda: make_world(models, request, rtt_ms))  # noqa: B023
            assert tuple(world.log.tokens) == greedy_text(seed, limit)
            assert world.log.inexact == 0


def test_chains_grow_while_they_stand() -> None:
    def make() -> TableWorld:
        return make_world(constant_tables(0.9), free_request(35), conditions=FAST_LINK)

    one_at_a_time = run_one(E2Sci(growth=0.5, longest=9, max_in_flight=1), make)
    # Behind 4 comes a chain begun before any verdict, of 4 too; then 6, 9, 9, and the 3 that are left.
    assert one_at_a_time.log.forwards == 6
    assert run_one(E2Sci(growth=0.0, max_in_flight=1), make).log.forwards == 9


def test_chains_are_short_again_behind_a_rejection() -> None:
    rules = e2sci._EdgeRules(E2Sci(gamma=4, growth=0.5, longest=9))
    lengths = [rules.chain_length()]
    for all_stood in (True, True, True, False, True):
        rules.note(all_stood)
        lengths.append(rules.chain_length())
    assert lengths == [4, 6, 9, 9, 4, 6]


def test_good_chains_make_the_check_lenient_and_bad_ones_strict() -> None:
    """A token the target gives 0.3 where the draft gave 0.5: a divergence of 0.021 nats."""
    table = np.full((6, 6, 6), -np.inf, np.float32)
    table[..., 1], table[..., 2] = math.log(0.7), math.log(0.3)

    async def verdicts() -> list[bool]:
        world = make_world(TableModels(table, table), make_request(SamplingParams()))
        rules = e2sci._CloudRules(world, Leniency(base=0.02, gain=0.05, neutral=0.5, least=0.0, most=1.0))
        found = []
        for accepted in (0, 0, 4, 4, 4):
            found.append(rules.stands(world.start(), 2, 1 << 15))
            rules.note(accepted, 4)
        return found

    assert binary_divergence(0.3, 0.5) == pytest.approx(0.0210, abs=5e-5)
    # Smoothed acceptance before each: 0.5, 0.35, 0.245, 0.4715, 0.63; thresholds 0.02, 0.0125, ..., 0.0265.
    assert run_virtual(verdicts()) == [False, False, False, False, True]


def test_a_first_token_goes_ahead_while_others_wait() -> None:
    def make() -> TableWorld:
        return make_world(constant_tables(0.9), free_request(12), conditions=FAST_LINK)

    world = run_one(E2Sci(growth=0.0), make)
    # Three chains of four; the first goes as a whole, the others in two parts; and the prompt.
    assert world.link.up.traffic.messages == 1 + 1 + 2 + 2
    assert (world.log.tested, world.log.accepted) == (12, 12)


def test_the_threshold_follows_the_acceptance_rate_within_its_bounds() -> None:
    leniency = Leniency(base=0.1, gain=0.2, neutral=0.6, least=0.05, most=0.15)
    found = [leniency.threshold(rate) for rate in (0.0, 0.5, 0.6, 0.7, 1.0)]
    assert found == pytest.approx([0.05, 0.08, 0.1, 0.12, 0.15])


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5), st.data())
def test_the_divergence_of_one_token_is_no_more_than_that_of_all(
    weights: list[float], data: st.DataObject
) -> None:
    sizes = st.lists(st.floats(0.01, 1.0), min_size=len(weights), max_size=len(weights))
    first, second = (np.array(each) / sum(each) for each in (weights, data.draw(sizes)))
    middle = (first + second) / 2.0
    whole = sum(float((each * np.log(each / middle)).sum()) for each in (first, second)) / 2.0
    one = binary_divergence(float(first[0]), float(second[0]))
    assert -1e-12 < one <= whole + 1e-12
    assert binary_divergence(1.0, 0.0) == pytest.approx(math.log(2.0))
    assert binary_divergence(0.3, 0.3) == pytest.approx(0.0)
