"""What a race's nodes are worth where nothing takes time: tokens a forward of the target commits.

Before each forward the tree is grown until the best so many nodes are known, however many steps that takes,
and all of them are there in time. What is left is how well nodes are valued: from this position's scores
(``CoupledValues``, learned anew in each text) or by the rank of a candidate (``RankValues``).

Run as ``make report-race PROMPTS="a.jsonl b.jsonl"``; the last line printed is one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from acespec.bench.lab.bench_options import ListOf
from acespec.bench.lab.cases import PromptCase
from acespec.bench.lab.lab_pair import PairIdentity
from acespec.bench.lab.measures import Bounded, resampled_ratio
from acespec.bench.lab.measuring import demo_bench, read_prompts
from acespec.bench.lab.memo_engines import LookedUpRows, MemoDraftEngine
from acespec.bench.lab.memo_models import MemoModels, SampledModels
from acespec.bench.lab.strategy import Models
from acespec.bench.lab.token_path import TokenPath
from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.acceptance import walk_coupled
from acespec.cloud_verifier.draft_tree import TIP, Branches
from acespec.compute import InlineRunner
from acespec.edge_runtime.drafter import Drafter, DraftRules
from acespec.edge_runtime.estimators import StepTimes
from acespec.edge_runtime.node_values import CoupledValues, NodeValues, RankValues
from acespec.edge_runtime.race_tree import LEAST_VALUE, RaceNode, RaceTree
from acespec.edge_runtime.step_clock import StepClock
from acespec.speculation import SamplingParams
from acespec.wire import AcceptanceMode

BUCKETS = (1, 8, 16, 32, 64)
VALUES: Mapping[str, Callable[[DraftRules], NodeValues]] = {
    "by score": CoupledValues,
    "by rank": lambda _: RankValues(),
}


@dataclass(frozen=True)
class Text:
    """One text, forward by forward."""

    tokens: tuple[int, ...]
    num_forwards: int


async def race_text(
    models: Models,
    identity: PairIdentity,
    prompt: Sequence[int],
    sampling: SamplingParams,
    seed: int,
    num_nodes: int,
    values_for: Callable[[DraftRules], NodeValues],
    max_new_tokens: int,
) -> Text:
    """Generate ``max_new_tokens`` tokens by forwards that take along the best ``num_nodes`` nodes."""
    rules = DraftRules(sampling, seed, AcceptanceMode.COUPLED, frozenset(), len(prompt))
    engine = MemoDraftEngine(models, identity, prompt, BUCKETS)
    clock = StepClock(StepTimes(dict.fromkeys(engine.buckets, 1.0)))
    drafter = Drafter(engine, rules, InlineRunner(), clock)
    tree = RaceTree(drafter, values_for(rules), prompt, len(prompt) + max_new_tokens)
    tip, num_forwards = TokenPath.of(prompt), 0
    while len(tree.known) < len(prompt) + max_new_tokens:
        nodes = await _best_nodes(tree, num_nodes)
        branches, paths = _branches(nodes, tip)
        rows = LookedUpRows(models, (tip, *paths))
        walk = walk_coupled(rows, branches, sampling, None, seed, len(tree.known), ())
        tree.advance(walk.tokens)
        for token in walk.tokens:
            tip = tip.then(token)
        num_forwards += 1
    return Text(tuple(tip.generated), num_forwards)


async def _best_nodes(tree: RaceTree, most: int) -> list[RaceNode]:
    """The likeliest nodes of the whole tree, best first: those unfed are fed until no better ones appear."""
    if tree.needs_root and tree.can_feed_root():
        await tree.feed_root()
    while True:
        best = tree.nodes(LEAST_VALUE)[:most]
        may_be_fed = {id(node) for node in tree.open_nodes(len(best))}
        unfed = [node for node in best if id(node) in may_be_fed]
        if not unfed:
            return best
        await tree.grow(unfed[: BUCKETS[-1]])


def _branches(nodes: Sequence[RaceNode], tip: TokenPath) -> tuple[Branches, list[TokenPath]]:
    """``nodes``, parents first, as the verifier has them, and the text that ends in each."""
    indexes = {id(node): index for index, node in enumerate(nodes)}
    parents = [indexes.get(id(node.parent), TIP) for node in nodes]
    paths: list[TokenPath] = []
    for node, parent in zip(nodes, parents, strict=True):
        paths.append((tip if parent == TIP else paths[parent]).then(node.token))
    return Branches(tuple(node.token for node in nodes), tuple(parents)), paths


def tokens_per_forward(texts: Sequence[Text]) -> Bounded:
    """With bounds over the texts."""
    return resampled_ratio(
        np.array([len(text.tokens) for text in texts], np.float64),
        np.array([text.num_forwards for text in texts], np.float64),
    )


def measure(
    models: MemoModels,
    cases: Sequence[PromptCase],
    sampling: SamplingParams,
    nodes: Sequence[int],
    max_new_tokens: int,
    say: Callable[[str], None] = lambda _: None,
) -> dict[tuple[str, int], list[Text]]:
    """A text of each prompt, by how nodes are valued and how many a forward takes along."""
    found: dict[tuple[str, int], list[Text]] = {(name, count): [] for count in nodes for name in VALUES}
    sampled = SampledModels(models, sampling)
    for number, case in enumerate(cases, start=1):
        for (name, count), texts in found.items():
            texts.append(
                run_virtual(
                    race_text(
                        sampled,
                        models.identity,
                        case.prompt,
                        sampling,
                        0,
                        count,
                        VALUES[name],
                        max_new_tokens,
                    )
                )
            )
        models.flush()
        say(f"{number} of {len(cases)}: {case.dataset}/{case.id}")
    return found


@click.command()
@click.argument("prompts", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--limit", type=click.IntRange(1), help="Prompts of each data set.  [default: all]")
@click.option("--nodes", type=ListOf(click.IntRange(1, 256)), default="32,64", show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option(
    "--store", type=click.Path(file_okay=False, path_type=Path), help="As for acespec bench table1."
)
def main(
    prompts: tuple[Path, ...],
    limit: int | None,
    nodes: tuple[int, ...],
    max_new_tokens: int,
    store: Path | None,
) -> None:
    """Tokens a forward of the target commits with so many nodes that are always in time."""
    console = Console(stderr=True, highlight=False, markup=False)
    bench = demo_bench(console.print)
    cases = read_prompts(prompts, bench.encode, limit)
    models = MemoModels(bench.models, store)
    try:
        found = measure(models, cases, bench.pair.sampling, nodes, max_new_tokens, console.print)
    finally:
        models.close()
    table = Table(title=f"Tokens a forward over {len(cases)} prompts, {max_new_tokens} tokens each")
    for heading in ("nodes", "valued", "tokens a forward", "95% bounds"):
        table.add_column(heading)
    report = []
    for (name, count), texts in found.items():
        value = tokens_per_forward(texts)
        bounds = "-" if value.low is None else f"{value.low:.3f} to {value.high:.3f}"
        table.add_row(str(count), name, f"{value.value:.3f}", bounds)
        report.append(
            {"nodes": count, "valued": name, "value": value.value, "low": value.low, "high": value.high}
        )
    Console().print(table)
    click.echo(json.dumps({"prompts": len(cases), "max_new_tokens": max_new_tokens, "rows": report}))


if __name__ == "__main__":
    main()
