"""Vanilla, DSSD and co-located speculative decoding: their text, their bytes, their time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.bench.lab.baselines import Colocated, Dssd, Vanilla, colocated, rejection, vanilla
from acespec.bench.lab.baselines.messages import (
    ChainPart,
    Verdict,
    decode_chain_part,
    decode_full_chain,
    decode_tokens,
    decode_verdict,
    encode_chain_part,
    encode_full_chain,
    encode_tokens,
    encode_verdict,
)
from acespec.bench.lab.baselines.rejection import HalfPrecision, residual, to_half, to_sixteen_bits
from acespec.bench.lab.profiles import parse_profiles
from acespec.bench.lab.simulated_link import LinkConditions
from acespec.bench.lab.strategy import Strategy
from acespec.speculation import Distribution, SamplingParams
from acespec.wire import token_bits
from baseline_world import (
    END_TOKENS,
    GREEDY,
    TableModels,
    greedy_text,
    joint_p_values,
    make_request,
    make_tables,
    make_world,
    opposite,
    run_one,
    sampled_texts,
)

NUM_TEXTS = 1000
THRESHOLD = 1e-4
FAST_LINK = LinkConditions.symmetric(50.0, bytes_per_second=math.inf)
STRATEGIES = [Vanilla(2), Dssd(3), Colocated(2)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_texts_are_distributed_as_the_targets(strategy: Strategy) -> None:
    target, draft = make_tables()
    sampling = SamplingParams(temperature=0.9, top_p=0.95)
    texts, tested, accepted = sampled_texts(strategy, TableModels(target, draft), sampling, range(NUM_TEXTS))
    rounded = (
        (lambda exact: to_half(exact).distribution) if isinstance(strategy, Dssd) else (lambda exact: exact)
    )
    assert min(joint_p_values(texts, target, sampling, rounded)) > THRESHOLD
    assert 0.4 < accepted / tested < 0.8  # else there was little to see


@pytest.mark.parametrize(
    ("module", "name"), [(vanilla, "replacement"), (colocated, "replacement"), (vanilla, "bonus")]
)
def test_notices_another_distribution(module: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What replaces a rejected token drawn from the whole target; what follows a chain from its mode."""
    wrong = (
        (lambda target, _, seed, position: rejection.bonus(target, seed, position))
        if name == "replacement"
        else (lambda target, _seed, _position: int(target.ids[target.probs.argmax()]))
    )
    monkeypatch.setattr(module, name, wrong)
    target, draft = make_tables()
    strategy = Vanilla(2) if module is vanilla else Colocated(2)
    texts, _, _ = sampled_texts(strategy, TableModels(target, draft), SamplingParams(), range(NUM_TEXTS))
    assert min(joint_p_values(texts, target, SamplingParams())) < THRESHOLD


@pytest.mark.parametrize("gamma", [1, 2, 4])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_greedy_text_is_the_targets_own(strategy: Strategy, gamma: int) -> None:
    for seed in range(8):
        models = TableModels(*make_tables(seed))
        for limit in (1, 2, 9):
            world = run_one(
                replace(strategy, gamma=gamma),
                lambda models=models, limit=limit: make_world(
                    models, make_request(GREEDY, max_new_tokens=limit)
                ),
            )
            assert tuple(world.log.tokens) == greedy_text(seed, limit)
            assert world.finished


def test_vanilla_waits_for_every_round() -> None:
    """A draft that is the target: chains of three stand; a round costs its drafts, its link, a check."""
    target, _ = make_tables()
    models, pair = TableModels(target, target), parse_profiles("orin-qwen3-0.6b/a100-70b")
    request = replace(make_request(GREEDY, max_new_tokens=8), end_token_ids=())
    world = run_one(Vanilla(3), lambda: make_world(models, request, conditions=FAST_LINK))
    draft_ms, target_ms = pair.edge.step_ms(1), pair.cloud.forward_ms(1)
    # The prompt's forward is still under way when the first chain comes; the draft's gives a token too.
    assert world.log.first_token_ms == pytest.approx(25.0 + 2 * target_ms + 25.0)
    second = 3 * draft_ms + 50.0 + target_ms
    assert world.log.last_token_ms == pytest.approx(world.log.first_token_ms + second)
    assert (world.log.forwards, world.log.tested, world.log.accepted) == (2, 6, 6)


@pytest.mark.parametrize("strategy", [Vanilla(2), Dssd(2)], ids=lambda strategy: strategy.name)
def test_a_rejection_costs_the_edge_a_whole_chain(strategy: Strategy) -> None:
    """A draft that is never right: what is fed of a rejected chain does not count."""
    target, _ = make_tables()
    models = TableModels(target, opposite(target))
    request = replace(make_request(GREEDY, max_new_tokens=4), end_token_ids=())
    world = run_one(strategy, lambda: make_world(models, request, conditions=FAST_LINK))
    # Chains of two, two, one and none: with two left one is drafted, with one none.
    steps_ms = (2 + 1) * 8.5
    assert world.log.last_token_ms == pytest.approx(world.log.first_token_ms + steps_ms + 3 * (50.0 + 146.0))


def test_colocated_streams_without_waiting() -> None:
    target, _ = make_tables()
    request = replace(make_request(GREEDY, max_new_tokens=8), end_token_ids=())
    strategy = Colocated(3, draft_speedup=2.0)
    world = run_one(strategy, lambda: make_world(TableModels(target, target), request, conditions=FAST_LINK))
    step = 8.5 / 2.0
    assert world.log.first_token_ms == pytest.approx(25.0 + 146.0 + 3 * step + 146.0 + 25.0)
    assert world.log.last_token_ms == pytest.approx(world.log.first_token_ms + 3 * step + 146.0)
    assert world.edge.busy_ms == 0.0


def test_what_each_sends() -> None:
    """Up: whole rows, or a token and a weight; down: a token, or a whole row where one was rejected."""
    target, draft = make_tables(distance=3.0)
    vocab, sampling = target.shape[-1], SamplingParams()
    request = replace(make_request(sampling, seed=1, max_new_tokens=16), end_token_ids=())
    worlds = {
        strategy.name: run_one(
            strategy, lambda strategy=strategy: make_world(TableModels(target, draft), request)
        )
        for strategy in (Vanilla(2), Dssd(2))
    }
    up = {name: world.link.up.traffic for name, world in worlds.items()}
    down = {name: world.link.down.traffic for name, world in worlds.items()}
    rounds = {name: world.log.forwards for name, world in worlds.items()}
    assert all(up[name].messages == rounds[name] + 1 == down[name].messages + 1 for name in worlds)
    assert down["vanilla"].payload_bytes == 2 * rounds["vanilla"]
    rejected = worlds["dssd"].log.tested - worlds["dssd"].log.accepted
    assert rejected > 2
    assert down["dssd"].payload_bytes == rejected * (1 + 2 * vocab) + (rounds["dssd"] - rejected) * 2
    chains = up["vanilla"].payload_bytes - up["dssd"].payload_bytes
    assert chains > 0  # even at six tokens a row is more than a weight


def test_nothing_but_tokens_is_sent_at_temperature_0() -> None:
    target, draft = make_tables()
    request = replace(make_request(GREEDY, max_new_tokens=9), end_token_ids=())
    world = run_one(Vanilla(2), lambda: make_world(TableModels(target, draft), request))
    assert world.link.down.traffic.payload_bytes == 2 * world.log.forwards
    world = run_one(Dssd(2), lambda: make_world(TableModels(target, draft), request))
    assert world.link.down.traffic.payload_bytes == 2 * world.log.forwards


vocab_sizes = st.sampled_from([5, 300, 49_152, 151_936])


@st.composite
def half_rows(draw: st.DrawFn, vocab_size: int) -> HalfPrecision:
    ids = draw(st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=6, unique=True))
    values = draw(st.lists(st.floats(2.0**-24, 1.0, width=16), min_size=len(ids), max_size=len(ids)))
    return HalfPrecision(np.array(sorted(ids)), np.array(values, np.float16))


@given(st.data(), vocab_sizes)
def test_messages_come_out_as_they_went_in(data: st.DataObject, vocab_size: int) -> None:
    tokens = st.lists(st.integers(0, vocab_size - 1), max_size=7)
    chain = data.draw(tokens)
    assert decode_tokens(encode_tokens(chain, vocab_size), vocab_size) == chain
    rows = [data.draw(half_rows(vocab_size)) for _ in chain[:2]]
    encoded = encode_full_chain(chain[:2], rows, vocab_size)
    assert len(encoded) == 1 + math.ceil(len(rows) * token_bits(vocab_size) / 8) + 2 * vocab_size * len(rows)
    found_tokens, found_rows = decode_full_chain(encoded, vocab_size)
    assert (found_tokens, list(map(described, found_rows))) == (chain[:2], list(map(described, rows)))
    weights = tuple(data.draw(st.integers(1, 1 << 16)) for _ in chain)
    part = ChainPart(
        tuple(chain),
        weights,
        data.draw(st.none() | st.integers(0, vocab_size - 1)),
        data.draw(st.integers(0, 63)),
        data.draw(st.booleans()),
    )
    assert decode_chain_part(encode_chain_part(part, vocab_size), vocab_size) == part
    for next_token in (None, data.draw(st.integers(0, vocab_size - 1))):
        verdict = Verdict(data.draw(st.integers(0, 63)), next_token)
        assert decode_verdict(encode_verdict(verdict, vocab_size), vocab_size) == verdict
    row = data.draw(half_rows(vocab_size))
    for sparse in (False, True):
        found = decode_verdict(encode_verdict(Verdict(3, target=row), vocab_size, sparse), vocab_size)
        assert found.accepted == 3
        assert found.target is not None
        assert described(found.target) == described(row)


def described(row: HalfPrecision) -> tuple[list[int], bytes]:
    return row.ids.tolist(), row.values.tobytes()


def test_rounding_keeps_a_distribution_close_and_both_sides_alike() -> None:
    generator = np.random.default_rng(5)
    for size in (1, 7, 500):
        exact = Distribution(np.arange(size), generator.dirichlet(np.full(size, 0.1)))
        for rounded in (to_half(exact).distribution, to_sixteen_bits(exact).distribution):
            full = np.zeros(size)
            full[rounded.ids] = rounded.probs
            assert rounded.probs.sum() == pytest.approx(1.0, abs=1e-12)
            assert np.abs(full - exact.probs).sum() / 2 < size * 2.0**-16 + 2.0**-11
            assert (rounded.probs > 0.0).all()


def test_the_residual_is_what_the_target_has_more_of() -> None:
    target = Distribution(np.array([1, 4, 9]), np.array([0.5, 0.25, 0.25]))
    draft = Distribution(np.array([0, 1, 9]), np.array([0.25, 0.625, 0.125]))
    found = residual(target, draft)
    assert found.ids.tolist() == [4, 9]
    assert found.probs.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert residual(target, target) is target


def test_an_error_in_the_cloud_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ArithmeticError("no verdict")

    monkeypatch.setattr(vanilla, "_verify", broken)
    with pytest.raises(ArithmeticError, match="no verdict"):
        run_one(Vanilla(), lambda: make_world(TableModels(*make_tables()), make_request(GREEDY)))


def test_an_end_token_of_the_prompt_ends_nothing() -> None:
    for strategy in STRATEGIES:
        world = run_one(strategy, lambda: make_world(TableModels(*make_tables()), make_request(GREEDY)))
        assert world.request.prompt[-1] in END_TOKENS
        assert world.log.tokens
