"""How many cached branches are what sequential drafting would have drawn, on a real engine.

Where arithmetic does not depend on a step's width, all are (tests/test_outcome_tree.py). A
real engine's kernels add in another order at another width, so logits differ in the last bits, and a token
whose race or rounding was that close falls the other way. It never matters to the text: the target decides it
in coupled mode, and in residual mode the weights sent are the ones sampled from.

Run as ``make report-branches``.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass

from acespec.bench.demo import prepare
from acespec.bench.virtual_clock import run_virtual
from acespec.compute import InlineRunner
from acespec.edge_runtime.drafter import Chain, Drafter, DraftRules
from acespec.edge_runtime.engine import DraftEngine
from acespec.edge_runtime.estimators import StepTimes
from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine
from acespec.edge_runtime.outcome_tree import OutcomeTree
from acespec.edge_runtime.step_clock import StepClock
from acespec.edge_runtime.text import encode_prompt
from acespec.models import load_tokenizer
from acespec.speculation import SamplingParams, allocate
from acespec.wire import AcceptanceMode

PROMPTS = (
    "Explain why the sky is blue.",
    "Write a Python function that reverses a linked list.",
    "A train travels 60 km in 45 minutes. What is its speed in km/h?",
    "Write a short poem about a lighthouse.",
)
GAMMA, NUM_BRANCHES, ROUNDS = 4, 16, 12


@dataclass
class Equality:
    """Branches and their tokens compared with sequential drafting from the same outcome."""

    mode: str
    branches: int = 0
    equal_branches: int = 0
    tokens: int = 0
    equal_tokens: int = 0
    """Tokens up to the first that differs: behind it the two draft different texts."""


def drafter_on(engine: DraftEngine, mode: AcceptanceMode, seed: int, prompt_length: int) -> Drafter:
    rules = DraftRules(SamplingParams(top_p=0.9), seed, mode, frozenset(), prompt_length)
    return Drafter(engine, rules, InlineRunner(), StepClock(StepTimes(dict.fromkeys(engine.buckets, 1.0))))


async def compare(
    engine: DraftEngine, reference: DraftEngine, prompt: tuple[int, ...], seed: int, equality: Equality
) -> None:
    """Play rounds from ``prompt`` and redraft every branch of their trees on ``reference``."""
    mode = AcceptanceMode(equality.mode)
    drafter = drafter_on(engine, mode, seed, len(prompt))
    sequential = drafter_on(reference, mode, seed, len(prompt))
    committed, chain = list(prompt), Chain()
    for _ in range(ROUNDS):
        await drafter.draft(committed, chain, GAMMA)
        tree = OutcomeTree(drafter, committed, chain, bucket=NUM_BRANCHES)
        tree.plant(allocate("uniform", NUM_BRANCHES - 1, GAMMA, 0.6, 0.8).tolist(), GAMMA, token_limit=10**6)
        while tree.can_grow():
            await tree.grow()
        shared = len(committed) - 1
        for branch in tree.branches:
            accepted, token = branch.outcome
            expected = Chain()
            reference.truncate(min(reference.num_rows, shared))
            await sequential.draft([*committed, *chain.tokens[:accepted], token], expected, len(branch.chain))
            pairs = list(zip(branch.chain.tokens, expected.tokens, strict=True))
            agreeing = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
            equality.branches += 1
            equality.equal_branches += agreeing == len(pairs)
            equality.tokens += min(agreeing + 1, len(pairs))
            equality.equal_tokens += agreeing
        outcome = tree.branches[-1].outcome
        following = tree.settle(*outcome)
        committed = [*committed, *chain.tokens[: outcome[0]], outcome[1]]
        chain = following or Chain()
        reference.truncate(min(reference.num_rows, shared))


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    bundle = prepare(logging.getLogger(__name__).info, "fp32")
    tokenizer = load_tokenizer(bundle.tokenizer_path)
    engine, reference = OnnxRuntimeEngine(bundle, 1), OnnxRuntimeEngine(bundle, 1)
    for mode in AcceptanceMode:
        equality = Equality(mode.value)
        for seed, text in enumerate(PROMPTS):
            reference.truncate(0)
            prompt = encode_prompt(tokenizer, bundle, text, chat=True)
            run_virtual(compare(engine, reference, prompt, seed, equality))
        logging.getLogger(__name__).info(json.dumps(asdict(equality)))


if __name__ == "__main__":
    main()
