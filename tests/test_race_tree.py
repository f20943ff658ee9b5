"""The race's tree: rows are those of a fresh prefill whatever was committed; the likeliest grow first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.bench.virtual_clock import run_virtual
from acespec.compute import InlineRunner
from acespec.edge_runtime.drafter import Drafter, DraftRules
from acespec.edge_runtime.estimators import StepTimes
from acespec.edge_runtime.node_values import CoupledValues, NodeValues, RankValues
from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine
from acespec.edge_runtime.race_tree import RaceNode, RaceTree
from acespec.edge_runtime.step_clock import StepClock
from acespec.speculation import LogitsRow, SamplingParams
from acespec.wire import AcceptanceMode
from fake_draft import TableDraftEngine, hashed_table
from tiny_bundle import tiny_bundle

VOCAB = 11
FREE = 10_000
PENALIZED = SamplingParams(temperature=1.2, repetition_penalty=1.3, presence_penalty=0.3)


def drafter_on(
    engine: TableDraftEngine | OnnxRuntimeEngine,
    params: SamplingParams | None = None,
    end_token_ids: Sequence[int] = (),
) -> Drafter:
    rules = DraftRules(params or SamplingParams(), 5, AcceptanceMode.COUPLED, frozenset(end_token_ids), 2)
    return Drafter(engine, rules, InlineRunner(), StepClock(StepTimes(dict.fromkeys(engine.buckets, 1.0))))


def table_engine(**options: int) -> TableDraftEngine:
    return TableDraftEngine(hashed_table(VOCAB, 4), VOCAB, buckets=(1, 4, 8), **options)


def tree_on(drafter: Drafter, committed: Sequence[int], limit: int = FREE) -> RaceTree:
    return RaceTree(drafter, CoupledValues(drafter.rules), committed, limit)


async def grow(tree: RaceTree, steps: int, width: int = 8) -> None:
    if tree.needs_root and tree.can_feed_root():
        await tree.feed_root()
    for _ in range(steps):
        nodes = tree.open_nodes(width)
        nodes = nodes[: tree.width(nodes, {1: 1.0, 4: 1.0, 8: 1.0, 16: 1.0})]
        if not nodes:
            return
        await tree.grow(nodes)


def path_of(tree: RaceTree, node: RaceNode) -> list[int]:
    """Tokens from behind the root to ``node``."""
    path: list[int] = []
    at: RaceNode | None = node
    while at is not tree.root:
        assert at is not None
        path.insert(0, at.token)
        at = at.parent
    return path


def all_nodes(tree: RaceTree) -> list[RaceNode]:
    return tree.nodes(1e-300)


turns = st.lists(
    st.tuples(st.integers(0, 4), st.lists(st.integers(0, 11), min_size=1, max_size=4)), min_size=1, max_size=8
)
"""Steps to grow, then for each token that is committed which of the candidates it is (beyond them: none)."""


def chosen(tree: RaceTree, choices: Sequence[int], vocab_size: int) -> list[int]:
    """Tokens that are in the tree while ``choices`` say so."""
    tokens: list[int] = []
    at: RaceNode | None = tree.root
    for choice in choices:
        children = [] if at is None else sorted(at.children)
        inside = choice < len(children)
        tokens.append(children[choice] if inside else choice % vocab_size)
        at = at.children.get(tokens[-1]) if at is not None else None
    return tokens


@given(turns=turns, params=st.sampled_from([SamplingParams(), PENALIZED, SamplingParams(temperature=0.0)]))
def test_rows_and_what_they_say_are_those_of_the_path(
    turns: list[tuple[int, list[int]]], params: SamplingParams
) -> None:
    """After any growth and any re-rooting; the engine asserts that each mask shows one path."""

    async def check() -> None:
        engine = table_engine()
        drafter = drafter_on(engine, params)
        committed = [1, 2]
        tree = tree_on(drafter, committed)
        table = hashed_table(VOCAB, 4)
        for steps, choices in turns:
            await grow(tree, steps)
            tokens = chosen(tree, choices, VOCAB)
            surviving = sum(1 for node in all_nodes(tree) if node.is_fed and below(tree, node, tokens))
            tree.advance(tokens)
            committed += tokens
            assert list(tree.known) == committed
            assert tree.num_fed == surviving
            prefix = engine.num_rows - tree.num_fed
            assert engine.rows[:prefix] == list(enumerate(committed[:prefix]))
            assert prefix == len(committed) - int(tree.needs_root) or tree.num_fed == 0
            for node in all_nodes(tree):
                path = path_of(tree, node)
                assert node.position == len(committed) - 1 + len(path)
                if node.offset is not None:
                    assert engine.rows[prefix + node.offset] == (node.position, node.token)
                if node.row is not None:
                    whole = (*committed, *path)
                    expected = drafter.row(LogitsRow(table(whole)), whole)
                    np.testing.assert_array_equal(node.row.scores, expected.scores)

    run_virtual(check())


def below(tree: RaceTree, node: RaceNode, tokens: Sequence[int]) -> bool:
    """Whether ``node`` stands behind ``tokens``."""
    path = path_of(tree, node)
    return len(path) > len(tokens) and path[: len(tokens)] == list(tokens)


@pytest.mark.parametrize("graph", ["portable", "ort"])
@settings(max_examples=12)
@given(prompt=st.lists(st.integers(0, 256), min_size=1, max_size=12), turns=turns)
def test_keys_and_values_of_a_real_model_equal_a_fresh_prefill(
    graph: str, prompt: list[int], turns: list[tuple[int, list[int]]]
) -> None:
    async def check() -> None:
        portable = tiny_bundle()
        bundle = portable if graph == "portable" else tiny_bundle(graph=graph)
        engine = OnnxRuntimeEngine(bundle, threads=1, tree_rows=256)
        reference = OnnxRuntimeEngine(portable, threads=1, tree_rows=256)
        tree = tree_on(drafter_on(engine), prompt, limit=80)
        for steps, choices in turns:
            await grow(tree, steps, width=16)
            tree.advance(chosen(tree, choices, 257))
            known = list(tree.known)
            prefix = engine.num_rows - tree.num_fed
            for node in [None, *(node for node in all_nodes(tree) if node.is_fed)]:
                path = [] if node is None else path_of(tree, node)
                rows = rows_of(engine)[:, [*range(prefix), *offsets(tree, node, prefix)]]
                if rows.shape[1] == 0:
                    continue
                fresh = drafter_on(reference)
                await fresh.feed([*known[:prefix], *path], "prefill")
                np.testing.assert_allclose(rows, rows_of(reference), atol=2e-5)

    run_virtual(check())


def rows_of(engine: OnnxRuntimeEngine) -> np.ndarray:
    """Keys and values of the rows in use, ``[2 * layers, rows, KVH, D]``."""
    return engine._rows.buffer.storage[:, : engine.num_rows]


def offsets(tree: RaceTree, node: RaceNode | None, prefix: int) -> list[int]:
    """Rows of the path to ``node``."""
    rows: list[int] = []
    while node is not None and node is not tree.root:
        assert node.offset is not None
        rows.insert(0, prefix + node.offset)
        node = node.parent
    return rows


async def test_the_likeliest_are_fed_first_and_values_multiply_along_a_path() -> None:
    tree = tree_on(drafter_on(table_engine()), [1, 2])
    await grow(tree, 3)
    fed = [tree.value(node) for node in all_nodes(tree) if node.is_fed]
    assert len(fed) == 8 + 8 + 8
    for node in all_nodes(tree):
        assert node.parent is not None
        assert tree.value(node) <= tree.value(node.parent)
    first = tree.root.row
    assert first is not None
    chances = dict(CoupledValues(drafter_on(table_engine()).rules).choices(first, 2))
    for token, child in tree.root.children.items():
        assert math.isclose(tree.value(child), chances[token])
    ranked = [node for node in tree.nodes(1e-3) if not node.is_fed]
    assert tree.open_nodes(5) == ranked[:5]


async def test_values_are_relative_to_what_is_known() -> None:
    tree = tree_on(drafter_on(table_engine()), [1, 2])
    await grow(tree, 3)
    child = max(tree.root.children.values(), key=tree.value)
    before = {id(node): tree.value(node) for node in child.children.values()}
    chance = tree.value(child)
    assert tree.advance([child.token]) == 1
    assert tree.root is child
    for node in child.children.values():
        assert math.isclose(tree.value(node), before[id(node)] / chance)


async def test_the_text_teaches_what_rows_are_worth() -> None:
    seen: list[tuple[int, int]] = []

    class Noted(RankValues):
        def observe(self, row: object, position: int, token: int) -> None:
            seen.append((position, token))

    values: NodeValues = Noted()
    tree = RaceTree(drafter_on(table_engine()), values, [1, 2], FREE)
    tree.advance([3])
    assert seen == [], "nothing was drafted there"
    await grow(tree, 2)
    best = max(tree.root.children.values(), key=tree.value)
    assert best.is_fed
    unlikely = next(token for token in range(VOCAB) if token not in best.children)
    assert tree.advance([best.token, unlikely, 5]) == 1
    assert seen == [(3, best.token), (4, unlikely)], "there is no row behind what was not drafted"


@pytest.mark.parametrize("end_token_ids", [(), (3, 8)])
async def test_nothing_is_drafted_that_could_not_be_taken(end_token_ids: tuple[int, ...]) -> None:
    drafter = drafter_on(table_engine(max_context=6), end_token_ids=end_token_ids)
    tree = tree_on(drafter, [1, 2], limit=7)
    await grow(tree, 20)
    assert max(node.position for node in all_nodes(tree)) == 5, "the last token is the target's own"
    assert all(node.token not in end_token_ids for node in all_nodes(tree))
    fed = [node.position for node in all_nodes(tree) if node.is_fed]
    assert max(fed) == 4, "what follows the last node could not be drafted"
    assert not tree_on(drafter, [1, 2, 3, 4, 5, 6], limit=7).can_feed_root()


async def test_growth_ends_where_the_buffer_does() -> None:
    engine = table_engine(max_context=30, tree_rows=-14)
    tree = tree_on(drafter_on(engine), [1, 2])
    await grow(tree, 20)
    assert engine.num_rows <= engine.max_rows == 16
    assert engine.num_rows > 8


async def test_a_step_is_as_wide_as_pays() -> None:
    tree = tree_on(drafter_on(table_engine()), [1, 2])
    await grow(tree, 1)
    nodes = tree.open_nodes(8)
    assert tree.width(nodes, {1: 1.0, 4: 1.0, 8: 1.0}) == 8
    assert tree.width(nodes, {1: 1.0, 4: 100.0, 8: 100.0}) == 1
    values = [tree.value(node) for node in nodes]
    dear = {1: 1.0, 4: 0.99 * sum(values[:4]) / values[0], 8: 1e9}
    assert tree.width(nodes, dear) == 4


async def test_the_line_is_what_the_draft_alone_would_write() -> None:
    engine = table_engine()
    tree = tree_on(drafter_on(engine), [1, 2], limit=12)
    await tree.feed_root()
    while tree.can_extend_line():
        await tree.extend_line()
    drafter = drafter_on(table_engine())
    alone = [1, 2]
    while len(alone) < 11:
        alone.append(drafter.draw(LogitsRow(hashed_table(VOCAB, 4)(tuple(alone))), alone).token)
    assert tree.line == alone[2:11]
    assert tree.advance(alone[2:5]) == 3
    assert tree.line == alone[5:11]


async def test_whoever_goes_on_finds_committed_rows_alone() -> None:
    engine = table_engine()
    drafter = drafter_on(engine)
    tree = tree_on(drafter, [1, 2, 3])
    await grow(tree, 3)
    tree.clear()
    assert engine.rows == [(0, 1), (1, 2)], "the last token is fed by whoever goes on"
    assert all_nodes(tree) == []
    await grow(tree, 1)
    assert engine.rows[:3] == [(0, 1), (1, 2), (2, 3)]
