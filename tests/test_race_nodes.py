"""A race in which nothing takes time: its text is the target's own, and better values give longer steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from acespec.bench.lab import race_nodes
from acespec.bench.lab.laboratory import Laboratory
from acespec.bench.lab.memo_models import MemoModels
from acespec.bench.lab.race_nodes import VALUES, measure, tokens_per_forward
from acespec.bench.lab.strategies import strategy
from acespec.edge_runtime.node_values import CoupledValues
from acespec.speculation import SamplingParams
from bench_world import PAIR, cases, table_bench
from lab_world import conditions, table_pair

SAMPLING = SamplingParams(top_p=0.9)


@pytest.fixture
def models(tmp_path: Path) -> MemoModels:
    return MemoModels(table_pair(), tmp_path)


def test_texts_are_the_targets_own_however_nodes_are_valued(models: MemoModels, tmp_path: Path) -> None:
    chosen = cases("a", "b")
    found = measure(models, chosen, SAMPLING, (1, 16), 24)
    assert set(found) == {(name, count) for name in VALUES for count in (1, 16)}
    with Laboratory(table_pair(), tmp_path / "alone") as laboratory:
        alone = [
            laboratory.run(
                strategy("autoregressive", PAIR),
                case,
                conditions(sampling=SAMPLING, seed=0, end_tokens=False),
            ).tokens
            for case in chosen
        ]
    for texts in found.values():
        assert [text.tokens for text in texts] == alone


def test_a_forward_takes_the_nodes_that_are_likeliest_in_the_whole_tree(models: MemoModels) -> None:
    few, many = (measure(models, cases(*"abcd"), SAMPLING, (count,), 48) for count in (2, 64))
    for name in VALUES:
        assert tokens_per_forward(few[name, 2]).value < tokens_per_forward(many[name, 64]).value  # type: ignore[operator]
    for text in few["by score", 2]:
        assert text.num_forwards >= 48 / 3, "two nodes and the target's own"


def test_one_node_is_the_likeliest_candidate(models: MemoModels) -> None:
    """With one node a forward commits one token, or two where the target picks the node."""
    (text,) = measure(models, cases("a"), SAMPLING, (1,), 40)["by score", 1]
    assert 20 <= text.num_forwards < 40


def test_the_command_prints_a_row_for_each_and_ends_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race_nodes, "demo_bench", table_bench)
    prompts = tmp_path / "letters.jsonl"
    prompts.write_text('{"prompt": "say a"}\n{"prompt": "say b"}\n', encoding="utf-8")
    arguments = [str(prompts), "--nodes", "4", "--max-new-tokens", "12", "--store", str(tmp_path / "rows")]
    done = CliRunner().invoke(race_nodes.main, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["prompts"] == 2
    assert [(row["nodes"], row["valued"]) for row in report["rows"]] == [(4, "by score"), (4, "by rank")]
    for row in report["rows"]:
        assert 1.0 <= row["low"] <= row["value"] <= row["high"] <= 5.0
    assert CoupledValues in VALUES.values()
