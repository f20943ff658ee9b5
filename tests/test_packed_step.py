"""Attention of a packed step against each sequence alone, computed as the definition says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.cloud_verifier.kv_store import PAGE_TOKENS
from acespec.cloud_verifier.packed_step import PackedStep, Part, grouped
from acespec.cloud_verifier.ragged_attention import FOLDED_QUERIES, ScoreRule
from token_trees import path_to, random_parents

NUM_PAGES = 40
HEADS, KV_HEADS, WIDTH, VALUE_WIDTH = 6, 2, 4, 3
SINKS = torch.linspace(-1.0, 2.0, HEADS, dtype=torch.float64)
RULES = [
    ScoreRule(0.5),
    ScoreRule(0.7, softcap=1.5),
    ScoreRule(0.3, sinks=SINKS),
    ScoreRule(1.1, softcap=2.0, sinks=SINKS),
]


@st.composite
def programs(draw: st.DrawFn) -> list[Part]:
    """Parts of a step, chains and trees, over pages in pieces or in one run."""
    free = list(range(NUM_PAGES))
    if draw(st.booleans()):
        draw(st.randoms(use_true_random=False)).shuffle(free)
    parts = []
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.sampled_from([0, 1, 7, 63, 64, 65, 130, 300]))
        count = draw(st.sampled_from([1, 1, 2, 5, 5, 17, FOLDED_QUERIES, FOLDED_QUERIES + 1, 70]))
        pages = sorted(free.pop() for _ in range(-(-(start + count) // PAGE_TOKENS)))
        parents = None
        if draw(st.booleans()):
            random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
            parents = np.array(random_parents(random, count))
        parts.append(Part(np.array(pages), start, count, parents))
    return parts


def expected_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    part: Part,
    window: int | None,
    rule: ScoreRule,
) -> torch.Tensor:
    """One token and head after the other: ``[n, H, V]`` of ``query`` ``[n, H, D]`` and all rows."""
    result = torch.empty(len(query), HEADS, VALUE_WIDTH, dtype=query.dtype)
    for i in range(len(query)):
        seen = [*range(part.start), *(part.start + token for token in own_path(part, i))]
        if window is not None:
            seen = seen[-window:]
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = keys[seen, kv_head] @ query[i, head] * rule.scale
            if rule.softcap is not None:
                scores = rule.softcap * torch.tanh(scores / rule.softcap)
            weights = torch.exp(scores)
            total = weights.sum()
            if rule.sinks is not None:
                total = total + torch.exp(rule.sinks[head])
            result[i, head] = weights @ values[seen, kv_head] / total
    return result


def own_path(part: Part, token: int) -> list[int]:
    """Tokens of the feed that ``token`` sees."""
    return [*range(token + 1)] if part.parents is None else path_to(part.parents.tolist(), token)


@pytest.mark.parametrize("padded", [False, True])
@given(parts=programs(), window=st.sampled_from([None, 1, 8, 64, 100]), rule=st.sampled_from(RULES))
@settings(max_examples=40, deadline=None)
def test_each_sequence_sees_its_own_rows_alone(
    padded: bool, parts: list[Part], window: int | None, rule: ScoreRule
) -> None:
    """Every row of the pool that is no one's is a NaN, which would spoil whatever it is weighed in with."""
    torch.manual_seed(len(parts))
    nan = torch.nan
    keys = torch.full((NUM_PAGES * PAGE_TOKENS, KV_HEADS, WIDTH), nan, dtype=torch.float64)
    values = torch.full((NUM_PAGES * PAGE_TOKENS, KV_HEADS, VALUE_WIDTH), nan, dtype=torch.float64)
    texts = [
        tuple(
            torch.randn(part.end, heads, width, dtype=torch.float64)
            for heads, width in ((HEADS, WIDTH), (KV_HEADS, WIDTH), (KV_HEADS, VALUE_WIDTH))
        )
        for part in parts
    ]
    for part, (_, own_keys, own_values) in zip(parts, texts, strict=True):
        held = torch.from_numpy(part.rows(0, part.start))
        keys[held], values[held] = own_keys[: part.start], own_values[: part.start]

    step = PackedStep(parts, padded=padded)
    query, new_keys, new_values = (
        torch.cat([texts[i][kind][parts[i].start :] for i in step.order]) for kind in range(3)
    )
    step.write(keys, new_keys)
    step.write(values, new_values)
    result = step.attend(query, keys, values, window, rule)

    assert step.positions.tolist() == [
        parts[i].start + len(own_path(parts[i], token)) - 1
        for i in step.order
        for token in range(parts[i].count)
    ]
    counts = [parts[i].count for i in step.order]
    for i, found in zip(step.order, torch.split(result, counts), strict=True):
        own_query, own_keys, own_values = texts[i]
        start = parts[i].start
        expected = expected_attention(own_query[start:], own_keys, own_values, parts[i], window, rule)
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_consecutive_pages_are_read_in_place() -> None:
    part = Part(np.array([3, 4, 7]), 0, 150)
    assert part.in_place(10, 128) == slice(3 * PAGE_TOKENS + 10, 5 * PAGE_TOKENS)
    assert part.in_place(130, 150) == slice(7 * PAGE_TOKENS + 2, 7 * PAGE_TOKENS + 22)
    assert part.in_place(10, 129) is None
    assert part.rows(126, 130).tolist() == [318, 319, 448, 449]


@given(
    shapes=st.lists(
        st.tuples(st.integers(0, 40_000), st.one_of(st.integers(1, 8), st.integers(1, 600))),
        min_size=1,
        max_size=60,
    ),
    padded=st.booleans(),
)
def test_groups_hold_each_part_once_and_pad_little(shapes: list[tuple[int, int]], padded: bool) -> None:
    parts = [Part(np.empty(0, np.int64), start, count) for start, count in shapes]
    groups = grouped(parts, padded=padded)
    assert sorted(i for group in groups for i in group) == list(range(len(parts)))
    for group in groups:
        if len(group) == 1:
            continue
        assert padded
        ends = [parts[i].end for i in group]
        assert max(parts[i].count for i in group) <= FOLDED_QUERIES
        assert max(ends) <= 256 or max(ends) <= 4 * min(ends)
        assert max(ends) * len(group) <= 1 << 17


def test_chains_of_similar_sequences_are_one_call() -> None:
    parts = [Part(np.empty(0, np.int64), 300 + 10 * i, 1 + i % 6) for i in range(16)]
    assert len(grouped(parts, padded=True)) == 1
    assert len(grouped(parts, padded=False)) == 16
