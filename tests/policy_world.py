"""Generations over a network that fails by a plan, on tables of random logits, in simulated time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.outage import OnOutage, OutageSettings
from acespec.edge_runtime.request import DraftSettings, GenerationRequest, SpeculationPolicy
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from acespec.wire import Eagerness
from bad_network import BadNetwork, StreamPlan
from fake_draft import Table, TableDraftEngine, mixed
from fake_target import TableTargetEngine
from in_process import draft_model, link_delay

VOCAB = 32
LOGITS = 2.0 * np.random.default_rng(1).standard_normal((2, VOCAB, VOCAB, VOCAB)).astype(np.float32)
RACE = DraftSettings(gamma=None, policy=SpeculationPolicy.RACE)
PATIENT = {on_outage: OutageSettings(on_outage, timeout_s=1e6, first_timeout_s=1e6) for on_outage in OnOutage}
"""Ways to meet outages, none of which is too long."""
EAGER = Limits(race_eagerness=Eagerness.LATENCY)
NO_RACE = Limits(race_eagerness=None)


def by_last_two(logits: np.ndarray) -> Table:
    """A table ``[V, V, V]`` as a function of the path (its first token has nothing before it: 0)."""
    return lambda path: logits[path[-2] if len(path) > 1 else 0, path[-1]]


TARGET, OTHER = map(by_last_two, LOGITS)


def run(
    request: GenerationRequest,
    closeness: float | None = 0.8,
    draft_settings: DraftSettings = RACE,
    limits: Limits = EAGER,
    *,
    target_ms: float = 10.0,
    step_ms: float = 1.0,
    delays: Sequence[float] = (4.0,),
    plans: Sequence[StreamPlan] = (),
    draft_context: int = 1024,
    tree_rows: int = 512,
    outage: OutageSettings = PATIENT[OnOutage.WAIT],
    provisional: list[list[int]] | None = None,
) -> GenerationResult:
    """Generate over a network of ``plans``; ``closeness`` None lets the cloud decode alone.

    ``provisional`` takes what is shown as such.
    """
    shown: list[list[int]] = [] if provisional is None else provisional
    targets: list[TableTargetEngine] = []

    def new_verifier() -> Verifier:
        targets.append(TableTargetEngine(TARGET, VOCAB, max_context=1024))
        return Verifier(targets[-1], InlineRunner(), limits, latency_ms=lambda _: target_ms)

    draft = None
    if closeness is not None:
        table = mixed(OTHER, TARGET, closeness)
        engine = TableDraftEngine(table, VOCAB, max_context=draft_context, tree_rows=tree_rows)
        draft = draft_model(engine, step_ms)

    async def main() -> GenerationResult:
        network = BadNetwork(new_verifier, plans, link_delay(delays))
        identity = TargetIdentity(vocabulary_hash=targets[0].info.vocabulary_hash)
        try:
            return await generate(
                network,
                request,
                VOCAB,
                draft,
                draft_settings,
                SessionSettings(identity, outage),
                on_provisional=shown.append,
            )
        finally:
            await network.end()

    result = run_virtual(main())
    assert all(not target.sequences for target in targets), "every server freed what it held"
    return result


LONG = GenerationRequest((4, 2), (), 192, seed=3)
