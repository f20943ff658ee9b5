"""A row is a function of its path: bit for bit the same in whatever order real engines are asked."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from acespec.bench.lab import row_sources
from acespec.bench.lab.copying_engine import CopyingEngine
from acespec.bench.lab.row_sources import EngineDraftSource, EngineTargetSource, nodes_of, num_shared
from acespec.bench.lab.token_path import TokenPath
from acespec.cloud_verifier.engine import Feed
from acespec.cloud_verifier.transformers_engine import TransformersEngine
from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine
from fake_draft import TableDraftEngine, hashed_table
from fake_target import TableTargetEngine, target_info
from tiny_bundle import tiny_bundle
from tiny_target import MAX_CONTEXT, tiny_model

VOCAB = 257
PROMPT = tuple(range(3, 43))  # longer than a prefill step of the tiny bundle


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def some_paths(seed: int, count: int = 60) -> list[TokenPath]:
    """Paths behind two prompts, each an extension of an earlier one."""
    draws = random.Random(seed)
    paths = [TokenPath.of(PROMPT), TokenPath.of(PROMPT[:7])]
    while len(paths) < count:
        path = draws.choice(paths)
        if len(path.generated) < 12:
            paths.append(path.then(draws.randrange(VOCAB)))
    return paths


def shuffled(paths: list[TokenPath], seed: int) -> list[TokenPath]:
    return random.Random(seed).sample(paths, len(paths))


@functools.cache
def copying_engine() -> CopyingEngine:
    return CopyingEngine(tiny_bundle(graph="ort"))


@functools.cache
def plain_engine() -> OnnxRuntimeEngine:
    return OnnxRuntimeEngine(tiny_bundle(graph="ort"))


def draft_rows(source: EngineDraftSource, paths: list[TokenPath]) -> dict[bytes, NDArray[np.float32]]:
    return {path.key: source.row(path).values for path in paths}


@pytest.mark.parametrize("kept_bytes", [1 << 20, 2000])
def test_copied_rows_give_every_bit_of_rows_fed_again(
    monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    monkeypatch.setattr(row_sources, "KEPT_KV_BYTES", kept_bytes)
    paths = some_paths(seed=1)
    expected = draft_rows(EngineDraftSource(plain_engine()), paths)
    for seed in (2, 3):
        actual = draft_rows(EngineDraftSource(copying_engine()), shuffled(paths, seed))
        assert all(np.array_equal(actual[key], expected[key]) for key in expected)
    assert len({row.tobytes() for row in expected.values()}) > 50, "the rows differ"


def test_each_row_is_one_step_of_one_token_where_rows_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, widths = copying_engine(), list[int]()
    forward = engine.forward

    def counted(tokens: NDArray[np.int64], *rest: object) -> object:
        widths.append(len(tokens))
        return forward(tokens, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(
        engine, "forward", lambda tokens, *rest, **named: counted(tokens, *rest, *named.values())
    )
    source = EngineDraftSource(engine)
    start = TokenPath.of(PROMPT)
    source.row(start)
    assert widths == [32, 8]
    branches = [start.then(token) for token in (1, 2, 3)]
    for depth in range(3):
        for path in branches:
            source.row(path)
        branches = [path.then(depth) for path in branches]
    assert widths[2:] == [1] * 9


def test_the_target_gives_the_rows_of_a_cloud_that_decodes_alone() -> None:
    engine = TransformersEngine(tiny_model(), target_info(VOCAB, MAX_CONTEXT), kv_memory_bytes=1 << 20)
    source = EngineTargetSource(engine)
    paths = some_paths(seed=4)
    expected = {path.key: source.row(path) for path in paths}
    again = {path.key: source.row(path) for path in shuffled(paths, 5)}
    assert all(np.array_equal(again[key], expected[key]) for key in expected)
    longest = max(paths, key=lambda path: path.length)
    sequence = engine.open(longest.length)
    engine.step([Feed(sequence, np.array(longest.prompt[:-1]), 0)])
    for node in nodes_of(longest):
        (rows,) = engine.step([Feed(sequence, np.array([node.token]), 1)])
        assert np.array_equal(rows[0], expected[node.key])
    engine.close(sequence)


def test_sources_of_tables_give_the_tables() -> None:
    table = hashed_table(VOCAB, salt=3)
    draft = EngineDraftSource(TableDraftEngine(table, VOCAB))
    target = EngineTargetSource(TableTargetEngine(table, VOCAB))
    for path in shuffled(some_paths(seed=6), 7):
        row = table(tuple(path.tokens))
        assert np.array_equal(draft.row(path).values, row)
        assert np.array_equal(target.row(path), row)


def test_paths_name_their_tokens_and_where_the_prompt_ends() -> None:
    path = TokenPath.of((1, 2)).then(3).then(4)
    assert path.tokens == [1, 2, 3, 4]
    assert (path.generated, path.length, path.token) == ([3, 4], 4, 4)
    assert path.key == TokenPath.of([1, 2], [3, 4]).key
    assert [node.length for node in nodes_of(path)] == [2, 3, 4]
    keys = {
        TokenPath.of(prompt, rest).key for prompt, rest in [((1, 2), (3,)), ((1,), (2, 3)), ((1, 2, 3), ())]
    }
    assert len(keys) == 3


def test_what_is_shared_ends_before_the_last() -> None:
    nodes = nodes_of(TokenPath.of((1,), (2, 3, 4)))
    held = [node.key for node in nodes]
    assert num_shared(held, nodes) == 3
    assert num_shared(held[:2], nodes) == 2
    other = nodes_of(TokenPath.of((1,), (2, 9, 4)))
    assert num_shared(held, other) == 2
    assert num_shared([], nodes) == 0
