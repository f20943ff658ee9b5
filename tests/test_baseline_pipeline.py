"""The single-chain pipeline as PicoSpec has it: it never waits, and a token that falls voids what follows."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from acespec.bench.lab.baselines import PicoSpec, picospec, pipeline, rejection
from acespec.bench.lab.baselines.messages import EPOCHS
from acespec.bench.lab.baselines.rejection import to_half
from acespec.bench.lab.simulated_link import LinkConditions
from acespec.speculation import SamplingParams
from baseline_world import (
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

SAMPLING = SamplingParams(temperature=0.9, top_p=0.95)
NUM_TEXTS = 1000
THRESHOLD = 1e-4
FAST_LINK = LinkConditions.symmetric(50.0, bytes_per_second=math.inf)


def test_texts_are_distributed_as_the_targets() -> None:
    target, draft = make_tables()
    texts, tested, accepted = sampled_texts(
        PicoSpec(2), TableModels(target, draft), SAMPLING, range(NUM_TEXTS)
    )
    assert min(joint_p_values(texts, target, SAMPLING, lambda row: to_half(row).distribution)) > THRESHOLD
    assert 0.4 < accepted / tested < 0.8


def test_notices_a_replacement_from_the_whole_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        picospec, "replacement", lambda target, _, seed, position: rejection.bonus(target, seed, position)
    )
    target, draft = make_tables()
    texts, _, _ = sampled_texts(PicoSpec(2), TableModels(target, draft), SAMPLING, range(NUM_TEXTS))
    assert min(joint_p_values(texts, target, SAMPLING)) < THRESHOLD


def test_a_text_depends_on_neither_chains_nor_time() -> None:
    """Every token is drafted and tested by draws of its position; where chains end decides nothing."""
    models = TableModels(*make_tables())
    for seed in range(25):
        request = make_request(SAMPLING, seed, max_new_tokens=12)
        texts = {
            tuple(
                run_one(PicoSpec(gamma, in_flight), lambda: make_world(models, request, rtt_ms)).log.tokens  # noqa: B023
            )
            for gamma, in_flight, rtt_ms in ((1, 1, 50.0), (3, 2, 5.0), (4, 4, 300.0), (2, 8, 90.0))
        }
        assert len(texts) == 1


@pytest.mark.parametrize(("gamma", "in_flight"), [(1, 1), (1, 3), (2, 2), (4, 1), (4, 3)])
def test_greedy_text_is_the_targets_own(gamma: int, in_flight: int) -> None:
    for seed, limit, rtt_ms in itertools.product(range(6), (1, 2, 9), (1.0, 150.0)):
        models = TableModels(*make_tables(seed))
        world = run_one(
            PicoSpec(gamma, in_flight),
            lambda: make_world(models, make_request(GREEDY, max_new_tokens=limit), rtt_ms),  # noqa: B023
        )
        assert tuple(world.log.tokens) == greedy_text(seed, limit)


def test_a_draft_that_is_right_is_checked_without_a_pause() -> None:
    target, _ = make_tables()
    request = replace(make_request(GREEDY, max_new_tokens=12), end_token_ids=())
    world = run_one(
        PicoSpec(3), lambda: make_world(TableModels(target, target), request, conditions=FAST_LINK)
    )
    assert (world.log.forwards, world.log.tested, world.log.accepted) == (4, 12, 12)
    # All four chains are there when the prompt's forward ends: then the cloud goes from one to the next.
    assert world.log.last_token_ms == pytest.approx(25.0 + 146.0 + 4 * 146.0 + 25.0)
    assert (world.log.lookups, world.log.hits, world.log.ready_tokens) == (3, 3, 9 + 6 + 3)


def test_a_rejection_voids_what_was_drafted_behind_it() -> None:
    """A draft that is never right: a forward, a link and a redraft for every token; no more is checked."""
    target, _ = make_tables()
    wrong = opposite(target)
    request = replace(make_request(GREEDY, max_new_tokens=5), end_token_ids=())
    world = run_one(
        PicoSpec(2), lambda: make_world(TableModels(target, wrong), request, conditions=FAST_LINK)
    )
    log = world.log
    assert (log.accepted, log.tested, log.forwards) == (0, 5, 5)
    assert (log.lookups, log.hits) == (4, 0)
    # Two tokens are drafted, sent and checked each time; where one is left, one.
    redraft = 2 * 8.5 + 50.0 + 146.0
    assert log.last_token_ms == pytest.approx(log.first_token_ms + 4 * redraft - 8.5)


def test_a_chain_whose_first_token_falls_by_the_row_at_hand_costs_no_forward() -> None:
    target, _ = make_tables()
    request = replace(make_request(GREEDY, max_new_tokens=6), end_token_ids=())
    text = _greedy_without_end(6)
    draft = target.copy()
    third = text[2]
    before = (text[0], text[1])
    draft[before] = opposite(target[before])
    world = run_one(
        PicoSpec(2, 2), lambda: make_world(TableModels(target, draft), request, conditions=FAST_LINK)
    )
    assert tuple(world.log.tokens) == text
    assert world.log.tested - world.log.accepted >= 1
    # Two of the first chain; the third falls at once; its replacement takes part in the next chain's forward.
    assert world.log.forwards == 3
    assert third == world.log.tokens[2]


def _greedy_without_end(length: int) -> tuple[int, ...]:
    target, _ = make_tables()
    text = [3, 4]
    while len(text) < length + 2:
        text.append(int(target[text[-2], text[-1]].argmax()))
    return tuple(text[2:])


def test_more_rejections_than_epochs_are_told_apart() -> None:
    target, _ = make_tables()
    request = replace(make_request(GREEDY, max_new_tokens=2 * EPOCHS + 3), end_token_ids=())
    world = run_one(PicoSpec(1), lambda: make_world(TableModels(target, opposite(target)), request))
    assert len(world.log.tokens) == 2 * EPOCHS + 3
    assert tuple(world.log.tokens[:20]) == _greedy_without_end(20)


def test_down_goes_the_support_alone() -> None:
    target, draft = make_tables(distance=3.0)
    sampling = SamplingParams(top_k=2)
    request = replace(make_request(sampling, max_new_tokens=12), end_token_ids=())
    world = run_one(PicoSpec(2), lambda: make_world(TableModels(target, draft), request))
    rejected = world.log.tested - world.log.accepted
    verdicts = world.link.down.traffic.messages
    assert rejected > 2
    # A byte each, and 3 bytes for each of two tokens (8 bits of token, 16 of probability); some have one.
    least, most = verdicts + 3 * rejected, verdicts + 6 * rejected
    assert least < world.link.down.traffic.payload_bytes <= most


def test_the_cloud_drops_a_void_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a cloud that takes chains of an old epoch for new ones does not give the target's text."""
    original = pipeline.decode_chain_part
    epochs = itertools.count(1)
    monkeypatch.setattr(
        pipeline,
        "decode_chain_part",
        lambda data, size: replace(original(data, size), epoch=next(epochs) % EPOCHS),
    )
    target, draft = make_tables(1, distance=2.0)
    request = replace(make_request(GREEDY, max_new_tokens=12), end_token_ids=())
    world = run_one(PicoSpec(1), lambda: make_world(TableModels(target, draft), request, 200.0))
    text = [3, 4]
    while len(text) < 14:
        text.append(int(target[text[-2], text[-1]].argmax()))
    assert world.log.tokens != text[2:]
