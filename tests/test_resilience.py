"""Whatever becomes of streams and servers, the text is the undisturbed one and each token comes once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.outage import OnOutage, OutageSettings
from acespec.edge_runtime.request import DraftSettings, GenerationRequest
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from acespec.wire import AcceptanceMode
from bad_network import BadNetwork, Fault, StreamPlan
from fake_draft import TableDraftEngine, hashed_table, mixed
from fake_target import TableTargetEngine
from in_process import draft_model, link_delay

VOCAB = 8
PROMPT = (4, 2)
NEW_TOKENS = 14
TARGET = hashed_table(VOCAB, salt=1)
NO_END = GenerationRequest(PROMPT, (), max_new_tokens=NEW_TOKENS, seed=5)

PLANS = st.lists(
    st.builds(
        StreamPlan,
        fault=st.sampled_from(Fault),
        up=st.booleans(),
        at=st.integers(0, 6),
        busy=st.frozensets(st.integers(0, 5), max_size=3),
    ),
    max_size=6,
)


class Told:
    """What ``generate`` told while it ran."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.provisional: list[list[int]] = []


def run(
    request: GenerationRequest,
    plans: Sequence[StreamPlan] = (),
    *,
    closeness: float | None = 0.7,
    gamma: int = 3,
    outage: OutageSettings | None = None,
    limits: Limits | None = None,
    delays: Sequence[float] = (4.0,),
    told: Told | None = None,
    pad_sizes: bool = False,
    draft_context: int = 512,
) -> GenerationResult:
    """Generate over a network of ``plans``; ``closeness`` None lets the cloud decode alone."""
    told = told or Told()
    targets: list[TableTargetEngine] = []

    def new_verifier() -> Verifier:
        targets.append(TableTargetEngine(TARGET, VOCAB, max_context=64))
        return Verifier(targets[-1], InlineRunner(), limits or Limits(), latency_ms=lambda _: 10.0)

    draft = None
    if closeness is not None:
        table = mixed(hashed_table(VOCAB, salt=2), TARGET, closeness)
        draft = draft_model(TableDraftEngine(table, VOCAB, max_context=draft_context), 1.0)

    async def main() -> GenerationResult:
        network = BadNetwork(new_verifier, plans, link_delay(delays))
        try:
            result = await generate(
                network,
                request,
                VOCAB,
                draft,
                DraftSettings(gamma=gamma),
                SessionSettings(
                    TargetIdentity(vocabulary_hash=targets[0].info.vocabulary_hash),
                    outage or OutageSettings(),
                    pad_sizes,
                ),
                told.tokens.extend,
                told.provisional.append,
            )
        finally:
            await network.end()
        assert result.metrics.busy <= network.num_busy
        return result

    result = run_virtual(main())
    assert all(not target.sequences for target in targets), "every server freed what it held"
    return result


@settings(max_examples=250, deadline=None)
@given(
    plans=PLANS,
    mode=st.sampled_from(AcceptanceMode),
    on_outage=st.sampled_from([OnOutage.WAIT, OnOutage.DRAFT]),
    closeness=st.sampled_from([None, 0.0, 0.7, 0.95]),
    gamma=st.integers(1, 4),
    max_chain=st.sampled_from([1, 2, 63]),
    end_token_ids=st.sampled_from([(), (3,)]),
    seed=st.integers(0, 2**32),
    draft_context=st.sampled_from([8, 512]),
    pad_sizes=st.booleans(),
)
def test_the_text_is_the_undisturbed_one(
    plans: list[StreamPlan],
    mode: AcceptanceMode,
    on_outage: OnOutage,
    closeness: float | None,
    gamma: int,
    max_chain: int,
    end_token_ids: tuple[int, ...],
    seed: int,
    draft_context: int,
    pad_sizes: bool,
) -> None:
    request = GenerationRequest(PROMPT, end_token_ids, NEW_TOKENS, seed=seed, mode=mode)
    limits = Limits(max_chain=max_chain, pad_sizes=pad_sizes)
    common = {"closeness": closeness, "gamma": gamma, "limits": limits, "draft_context": draft_context}
    told = Told()
    disturbed = run(
        request,
        plans,
        outage=OutageSettings(on_outage, timeout_s=1e6, first_timeout_s=1e6),
        told=told,
        **common,  # type: ignore[arg-type]
    )
    undisturbed = run(request, **common)  # type: ignore[arg-type]
    assert disturbed.tokens == undisturbed.tokens
    assert disturbed.finish_reason is undisturbed.finish_reason
    assert told.tokens == disturbed.tokens, "each token once, in order"
    assert disturbed.provisional == []
    assert not told.provisional or told.provisional[-1] == []
