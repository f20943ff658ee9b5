"""The Transformers engine against plain forwards of whole sequences, without any cache."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.cloud_verifier.engine import Feed, KvPoolFullError
from acespec.cloud_verifier.kv_store import PAGE_TOKENS
from acespec.cloud_verifier.transformers_engine import TransformersEngine
from acespec.errors import AcespecError
from served_target import INFO, SERVED, VOCAB, TwoForms, fresh_logits, ids, target
from tiny_families import CONTEXT
from tiny_target import MAX_CONTEXT, tiny_model
from token_trees import path_to, random_parents

IN_PROGRAMS = ("llama 3, scaled rotary", "qwen 3", "mistral", "gemma 3", "phi 3")
"""Their tiny models each have something else: no window, one, or layers with and without."""
LOOKED_AT = 12
"""Tokens of a feed that are compared at most: each of a tree's takes a forward of its own."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small only wait for their threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", IN_PROGRAMS)
@given(
    program=st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 4),  # which sequence
                st.sampled_from(["feed", "feed", "grow", "grow", "roll back", "reopen"]),
                st.sampled_from([1, 1, 3, 5, 6, 20, 40]),  # tokens
                st.integers(0, 40),  # of them, those with logits
            ),
            min_size=1,
            max_size=5,
            unique_by=lambda action: action[0],
        ),
        min_size=1,
        max_size=7,
    ),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=12, deadline=None)
def test_any_program_gives_what_each_sequence_alone_would(
    name: str, program: list[list[tuple[int, str, int, int]]], seed: int
) -> None:
    """Five sequences side by side; prefills, chains and trees in a step, rolled back and closed at any time.

    Of a tree a branch is kept, now and then none of it.
    """
    random = np.random.default_rng(seed)
    both = two_forms(name)
    handles = [both.open(MAX_CONTEXT) for _ in range(5)]
    for actions in program:
        fed: dict[int, tuple[list[int], int]] = {}
        trees: dict[int, list[int]] = {}
        for place, kind, count, wanted in actions:
            handle = handles[place]
            text = both.texts[handle]
            if kind == "roll back":
                both.keep(handle, max(0, len(text) - count))
            elif kind == "reopen":
                both.close(handle)
                handles[place] = both.open(MAX_CONTEXT)
            elif (fitting := min(count, MAX_CONTEXT - len(text))) > 0:
                fed[handle] = random.integers(0, VOCAB, fitting).tolist(), min(wanted, fitting, LOOKED_AT)
                if kind == "grow":
                    trees[handle] = random_parents(random, fitting)
        if fed:
            both.step(fed, trees)
        for handle, parents in trees.items():
            keep_a_branch(both, handle, parents, random)
    both.step({handle: ([5], 1) for handle in handles if len(both.texts[handle]) < MAX_CONTEXT})
    for handle in handles:
        both.close(handle)


def keep_a_branch(both: TwoForms, handle: int, parents: list[int], random: np.random.Generator) -> None:
    held = len(both.texts[handle]) - len(parents)
    token = int(random.integers(-1, len(parents)))
    both.keep(handle, held, [held + i for i in path_to(parents, token)] if token >= 0 else [])


_forms: dict[str, TwoForms] = {}


def two_forms(name: str) -> TwoForms:
    """One pair of engines for all programs, so that each finds the rows that others left."""
    if name not in _forms:
        _forms[name] = TwoForms(name)
    return _forms[name]


@pytest.mark.parametrize("name", SERVED)
def test_every_family_steps_ragged_batches(name: str) -> None:
    """Prefills beside chains over windows of eight positions, after rollbacks; the head's padding is cut."""
    both = TwoForms(name, CONTEXT)
    random = np.random.default_rng(3)

    def tokens(count: int) -> list[int]:
        drawn: list[int] = random.integers(0, VOCAB, count).tolist()
        return drawn

    first, second, third, fourth = (both.open(CONTEXT) for _ in range(4))
    both.step({first: (tokens(20), 0)})
    # In the padded form the long feed stands last, and the others' logits must still find their feeds.
    both.step({first: (tokens(5), 5), second: (tokens(33), 2), third: (tokens(1), 1), fourth: (tokens(3), 2)})
    both.keep(first, 22)
    both.keep(second, 30)
    both.step({first: (tokens(4), 4), third: (tokens(12), 3), second: (tokens(6), 6)})


@pytest.mark.parametrize("name", SERVED)
def test_every_family_verifies_trees(name: str) -> None:
    """Each token of a tree has the logits of its branch alone; a step after ``keep``, those of a fresh text.

    Trees of other sequences and chains are in the same step; one is deeper than the windows of eight.
    """
    both = TwoForms(name, CONTEXT)
    random = np.random.default_rng(4)
    first, second, third = (both.open(CONTEXT) for _ in range(3))
    both.step({first: ([5] * 11, 0), second: ([9, 8, 7], 0), third: ([1, 2], 1)})
    broad, deep = [-1, 0, 0, 1, 0, 2, 3, 3, 1], [-1, 0, 1, 2, 3, 3, 4, 5, 6, 8, 9, 7, 10]
    for _ in range(2):
        fed = {
            first: (random.integers(0, VOCAB, len(broad)).tolist(), len(broad)),
            second: (random.integers(0, VOCAB, len(deep)).tolist(), len(deep)),
            third: (random.integers(0, VOCAB, 3).tolist(), 3),
        }
        both.step(fed, {first: broad, second: deep})
        for handle, parents, token in ((first, broad, 7), (second, deep, 11)):
            held = len(both.texts[handle]) - len(parents)
            both.keep(handle, held, [held + i for i in path_to(parents, token)])
    both.step({first: ([3], 1), second: ([4, 5], 2), third: ([6], 1)})


def test_a_tree_wider_than_the_folded_queries_crosses_pages() -> None:
    both = TwoForms("mistral", max_context=1024, num_pages=26)
    sequence, other = both.open(400), both.open(400)
    random = np.random.default_rng(6)
    both.step({sequence: (random.integers(0, VOCAB, 2 * PAGE_TOKENS - 20).tolist(), 0), other: ([1], 0)})
    parents = random_parents(random, 80)
    both.step(
        {sequence: (random.integers(0, VOCAB, 80).tolist(), 80), other: ([2, 3, 4], 3)}, {sequence: parents}
    )
    held = len(both.texts[sequence]) - len(parents)
    both.keep(sequence, held, [held + i for i in path_to(parents, 79)])
    both.step({sequence: ([5, 6], 2), other: ([7], 1)})


def test_kept_rows_are_rolled_back_before_they_are_moved() -> None:
    both = TwoForms("llama 3, scaled rotary")
    sequence = both.open(64)
    both.step({sequence: ([1, 2, 3], 0)})
    both.step({sequence: ([4, 5, 6, 7, 8], 5)}, {sequence: [-1, 0, 0, 2, 3]})
    both.keep(sequence, 4, [5, 6, 7])
    both.keep(sequence, 6)
    both.step({sequence: ([9, 9], 2)})


def test_a_long_prompt_is_fed_beside_chains_over_many_pages() -> None:
    """Chunks of a prompt longer than the folded queries, over pages that lie in pieces."""
    both = TwoForms("smollm 2, tied head", max_context=1024, num_pages=26)
    # Pages of both are given back out of order, so that what is opened next gets pieces.
    spread = [both.open(PAGE_TOKENS) for _ in range(26)]
    for handle in spread[::2] + spread[1:8:2]:
        both.close(handle)
    long, short = both.open(700), both.open(200)
    random = np.random.default_rng(5)
    for start in range(0, 600, 100):
        both.step(
            {
                long: (random.integers(0, VOCAB, 100).tolist(), int(start == 500)),
                short: (random.integers(0, VOCAB, 4).tolist(), 4),
            }
        )
        both.keep(short, max(0, len(both.texts[short]) - 2))


def test_a_place_given_back_keeps_nothing_of_its_last_tenant() -> None:
    both = TwoForms("llama 3, scaled rotary", num_pages=2)
    first = both.open(100)
    both.step({first: ([7] * 90, 0)})
    both.close(first)
    second = both.open(100)
    both.step({second: ([1, 2, 3], 3)})


@pytest.mark.parametrize("padded", [False, True])
def test_a_sequence_that_computes_no_numbers_fails_alone(padded: bool) -> None:
    """Rows of infinities and NaNs, its own and those it left behind, do not reach the others of a step."""
    model, reference = target("mistral"), target("mistral")
    engine = TransformersEngine(model, INFO, padded=padded, kv_memory_bytes=1 << 20)
    token = 200
    with torch.no_grad():
        model.get_input_embeddings().weight[token] = torch.inf  # type: ignore[index]
    spoilt = engine.open(MAX_CONTEXT)
    engine.step([Feed(spoilt, ids(*[token] * 90), 0)])
    engine.close(spoilt)
    healthy, ill = engine.open(MAX_CONTEXT), engine.open(MAX_CONTEXT)
    engine.step([Feed(healthy, ids(1, 2, 3), 0), Feed(ill, ids(*[token] * 30), 0)])
    logits, no_numbers = engine.step([Feed(healthy, ids(4, 5), 2), Feed(ill, ids(9), 1)])
    np.testing.assert_allclose(logits, fresh_logits(reference, [1, 2, 3, 4, 5])[3:], atol=1e-5, rtol=0)
    assert np.isnan(no_numbers).all()


# --- a step ---------------------------------------------------------------------------------------------


def test_the_head_sees_only_rows_whose_logits_are_wanted() -> None:
    model = tiny_model()
    engine = TransformersEngine(model, INFO)
    rows: list[int] = []
    model.lm_head.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[1]))
    first, second = engine.open(64), engine.open(64)
    engine.step([Feed(first, ids(1, 2, 3), 0)])
    engine.step([Feed(first, ids(4, 5), 1), Feed(second, ids(1, 2, 3, 4), 2)])
    assert rows == [0, 3]


def test_no_padding_goes_through_the_matrices() -> None:
    """The tokens of a step, however long its feeds, are as many rows."""
    model = tiny_model()
    engine = TransformersEngine(model, INFO, padded=True)
    rows: list[int] = []
    model.model.layers[0].mlp.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[1]))
    sequences = [engine.open(64) for _ in range(3)]
    counts = (40, 1, 5)
    engine.step(
        [Feed(sequence, np.arange(count), 0) for sequence, count in zip(sequences, counts, strict=True)]
    )
    assert rows == [46]


@pytest.mark.parametrize("layer", [0, 1])
def test_a_step_that_fails_changes_nothing(layer: int) -> None:
    model, reference = target("llama 3, scaled rotary"), target("llama 3, scaled rotary")
    engine = TransformersEngine(model, INFO)
    first, second = engine.open(64), engine.open(64)
    engine.step([Feed(first, ids(1, 2, 3), 0)])

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    hook = model.model.layers[layer].mlp.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.step([Feed(first, ids(8, 8), 2), Feed(second, ids(9), 1)])
    hook.remove()
    after, fresh = engine.step([Feed(first, ids(4), 1), Feed(second, ids(6), 1)])
    np.testing.assert_allclose(after, fresh_logits(reference, [1, 2, 3, 4])[-1:], atol=1e-5, rtol=0)
    np.testing.assert_allclose(fresh, fresh_logits(reference, [6]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("tokens", "num_logits", "complaint"),
    [
        ([], 0, "a feed has a token"),
        ([1], 2, "2 logits of 1"),
        ([-1], 0, "has an id"),
        ([VOCAB], 0, "in the vocabulary"),
        ([1] * 9, 0, "9 tokens, 8 said"),
        ([1] * (MAX_CONTEXT + 1), 0, "within the context"),
    ],
)
def test_a_feed_that_cannot_be_is_a_bug(tokens: list[int], num_logits: int, complaint: str) -> None:
    engine = TransformersEngine(tiny_model(), INFO)
    sequence = engine.open(8 if len(tokens) < MAX_CONTEXT else 2 * MAX_CONTEXT)
    with pytest.raises(AssertionError, match=complaint):
        engine.step([Feed(sequence, ids(*tokens), num_logits)])


@pytest.mark.parametrize(
    ("parents", "complaint"),
    [([-1], "1 parents of 2"), ([-1, 1], "follows an earlier one"), ([-2, 0], "follows an earlier one")],
)
def test_parents_that_cannot_be_are_a_bug(parents: list[int], complaint: str) -> None:
    engine = TransformersEngine(tiny_model(), INFO)
    sequence = engine.open(8)
    with pytest.raises(AssertionError, match=complaint):
        engine.step([Feed(sequence, ids(1, 2), 1, ids(*parents))])


def test_nothing_is_fed_behind_branches() -> None:
    engine = TransformersEngine(tiny_model(), INFO)
    sequence = engine.open(8)
    engine.step([Feed(sequence, ids(1, 2), 0, ids(-1, 0))])  # a chain
    engine.step([Feed(sequence, ids(3, 4), 0, ids(-1, -1))])
    with pytest.raises(AssertionError, match="a branch is chosen before more is fed"):
        engine.step([Feed(sequence, ids(5), 0)])
    engine.keep(sequence, 2, [3])
    engine.step([Feed(sequence, ids(5), 0)])


def test_a_tree_may_hold_more_tokens_than_the_context_has_positions() -> None:
    both = TwoForms("llama 3, scaled rotary")
    sequence = both.open(MAX_CONTEXT + 3)
    both.step({sequence: ([3] * (MAX_CONTEXT - 1), 0)})
    both.step({sequence: ([1, 2, 3, 4], 4)}, {sequence: [-1, -1, -1, -1]})
    both.keep(sequence, MAX_CONTEXT - 1, [MAX_CONTEXT + 1])


def test_a_sequence_is_fed_once_a_step() -> None:
    engine = TransformersEngine(tiny_model(), INFO)
    sequence = engine.open(8)
    with pytest.raises(AssertionError, match="fed once a step"):
        engine.step([Feed(sequence, ids(1), 0), Feed(sequence, ids(2), 0)])


def test_a_closed_sequence_is_gone() -> None:
    engine = TransformersEngine(tiny_model(), INFO)
    sequence = engine.open(64)
    engine.close(sequence)
    with pytest.raises(KeyError):
        engine.step([Feed(sequence, ids(1), 0)])
    assert engine.open(64) != sequence


# --- memory ---------------------------------------------------------------------------------------------


def test_the_pool_holds_the_tokens_it_says() -> None:
    row_bytes = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width, float32
    engine = TransformersEngine(tiny_model(), INFO, kv_memory_bytes=5 * PAGE_TOKENS * row_bytes + 1)
    assert engine.info.kv_bytes_per_token == row_bytes
    assert engine.info.kv_tokens == 5 * PAGE_TOKENS
    handles = [engine.open(PAGE_TOKENS) for _ in range(5)]
    with pytest.raises(KvPoolFullError):
        engine.open(1)
    engine.close(handles[2])
    engine.open(1)


def test_memory_for_less_than_a_context_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        engine = TransformersEngine(tiny_model(), INFO, kv_memory_bytes=PAGE_TOKENS * 256)
    assert f"of {PAGE_TOKENS} tokens, less than the target's context of {MAX_CONTEXT}" in caplog.text
    with pytest.raises(KvPoolFullError):
        engine.open(MAX_CONTEXT)


@pytest.mark.parametrize(
    ("num_bytes", "complaint"),
    [(100, "100 bytes hold no keys and values"), (1 << 58, f"there are no {1 << 58} bytes")],
)
def test_memory_that_cannot_be_is_one_line(num_bytes: int, complaint: str) -> None:
    with pytest.raises(AcespecError, match=complaint) as caught:
        TransformersEngine(tiny_model(), INFO, kv_memory_bytes=num_bytes)
    assert "\n" not in str(caught.value)
