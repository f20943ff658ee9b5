"""Key/value rows after any history of hits, misses, compactions and rollbacks equal a fresh prefill."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from acespec.bench.virtual_clock import run_virtual
from acespec.compute import InlineRunner
from acespec.edge_runtime.drafter import Chain, Drafter, DraftRules
from acespec.edge_runtime.estimators import StepTimes
from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine
from acespec.edge_runtime.outcome_tree import OutcomeTree
from acespec.edge_runtime.step_clock import StepClock
from acespec.speculation import SamplingParams, allocate
from acespec.wire import AcceptanceMode
from tiny_bundle import tiny_bundle

VOCAB = 257
CONTEXT = 96


def new_engine(graph: str = "portable") -> OnnxRuntimeEngine:
    bundle = tiny_bundle() if graph == "portable" else tiny_bundle(graph=graph)
    return OnnxRuntimeEngine(bundle, threads=1, tree_rows=256)


def drafter_on(engine: OnnxRuntimeEngine) -> Drafter:
    rules = DraftRules(SamplingParams(), 5, AcceptanceMode.COUPLED, frozenset(), 3)
    return Drafter(engine, rules, InlineRunner(), StepClock(StepTimes(dict.fromkeys(engine.buckets, 1.0))))


def rows_of(engine: OnnxRuntimeEngine) -> NDArray[np.float32]:
    """Keys and values of the rows in use, ``[2 * layers, rows, KVH, D]``."""
    return engine._rows.buffer.storage[:, : engine.num_rows]


class EdgeRows(RuleBasedStateMachine):
    """Rounds with any outcome, on a real engine. The reference is an engine on the portable graph."""

    graph = "portable"

    def __init__(self) -> None:
        super().__init__()
        self.engine = new_engine(self.graph)
        self.reference = new_engine()
        self.committed: list[int] = []
        self.chain = Chain()

    @initialize(prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20))
    def begin(self, prompt: list[int]) -> None:
        self.drafter = drafter_on(self.engine)
        self.committed = prompt

    @rule(
        gamma=st.integers(1, 4),
        strategy=st.sampled_from(["single", "uniform", "geometric"]),
        steps=st.integers(0, 6),
        accepted=st.integers(0, 4),
        choice=st.integers(0, 50),
        other_token=st.integers(0, VOCAB - 1),
    )
    def one_round(
        self, gamma: int, strategy: str, steps: int, accepted: int, choice: int, other_token: int
    ) -> None:
        if self.drafter.max_chain(len(self.committed)) < 6:
            return
        run_virtual(self.round(gamma, strategy, steps, accepted, choice, other_token))

    async def round(
        self, gamma: int, strategy: str, steps: int, accepted: int, choice: int, other_token: int
    ) -> None:
        self.chain = Chain(self.chain.drafted[:gamma])
        if len(self.committed) + gamma - 1 < self.engine.num_rows:  # a longer chain was cut
            self.engine.truncate(len(self.committed) + gamma - 1)
        await self.drafter.draft(self.committed, self.chain, gamma)
        tree = OutcomeTree(self.drafter, self.committed, self.chain, bucket=16)
        tree.plant(allocate(strategy, 15, gamma, 0.6, 0.8), gamma, token_limit=10_000)
        for _ in range(steps):
            if tree.can_grow():
                await tree.grow()
        ready = [branch.outcome for branch in tree.branches if branch.chain.drafted]
        outcome = ready[choice] if choice < len(ready) else (min(accepted, gamma), other_token)
        next_chain = tree.settle(*outcome)
        self.committed = [*self.committed, *self.chain.tokens[: outcome[0]], outcome[1]]
        self.chain = next_chain or Chain()

    @invariant()
    def rows_equal_a_fresh_prefill(self) -> None:
        path = [*self.committed, *self.chain.tokens]
        count = self.engine.num_rows
        assert count < len(path) or not path
        self.reference.truncate(0)
        for start in range(0, count, 16):
            tokens = np.array(path[start : min(start + 16, count)], dtype=np.int64)
            positions = np.arange(start, start + len(tokens))
            mask = np.tri(len(tokens), start + len(tokens), start, dtype=np.bool_)
            self.reference.forward(tokens, positions, mask)
        np.testing.assert_allclose(rows_of(self.engine), rows_of(self.reference), atol=1e-4, rtol=0)


class EdgeRowsInPlace(EdgeRows):
    """The same on the graph that writes its rows in place."""

    graph = "ort"


ROUNDS = settings(max_examples=15, stateful_step_count=12, deadline=None)
TestEdgeRows = EdgeRows.TestCase
TestEdgeRows.settings = ROUNDS
TestEdgeRowsInPlace = EdgeRowsInPlace.TestCase
TestEdgeRowsInPlace.settings = ROUNDS
