"""A hit and a miss give the same tokens; rows stay in step with the committed tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec.bench.virtual_clock import run_virtual
from acespec.compute import InlineRunner
from acespec.edge_runtime.drafter import Chain, Drafter, DraftRules
from acespec.edge_runtime.estimators import StepTimes
from acespec.edge_runtime.outcome_tree import OutcomeTree
from acespec.edge_runtime.request import DraftSettings
from acespec.edge_runtime.step_clock import StepClock
from acespec.speculation import LogitsRow, Ranking, SamplingParams, allocate, rank_candidates
from acespec.wire import AcceptanceMode
from fake_draft import TableDraftEngine, hashed_table

VOCAB = 11
PLAIN = SamplingParams()
PARAMS = st.sampled_from(
    [
        PLAIN,
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.7, top_p=0.8),
        SamplingParams(temperature=1.3, top_k=4, repetition_penalty=1.3, presence_penalty=0.2),
    ]
)


def new_drafter(
    table_salt: int,
    params: SamplingParams = PLAIN,
    mode: AcceptanceMode = AcceptanceMode.COUPLED,
    seed: int = 0,
    prompt_length: int = 1,
    end_token_ids: Sequence[int] = (),
    max_context: int = 512,
    tree_rows: int = 512,
    ranking: Ranking = Ranking.COUPLED,
) -> Drafter:
    engine = TableDraftEngine(
        hashed_table(VOCAB, table_salt), VOCAB, max_context=max_context, tree_rows=tree_rows
    )
    rules = DraftRules(params, seed, mode, frozenset(end_token_ids), prompt_length, ranking)
    clock = StepClock(StepTimes(dict.fromkeys(engine.buckets, 1.0)))
    return Drafter(engine, rules, InlineRunner(), clock)


def engine_of(drafter: Drafter) -> TableDraftEngine:
    assert isinstance(drafter.engine, TableDraftEngine)
    return drafter.engine


async def grown_tree(
    drafter: Drafter,
    committed: list[int],
    chain: Chain,
    allocation: Sequence[int],
    gamma: int,
    steps: int,
    limit: int,
    bucket: int = 16,
) -> OutcomeTree:
    await drafter.draft(committed, chain, gamma)
    tree = OutcomeTree(drafter, committed, chain, bucket)
    tree.plant(allocation, gamma, token_limit=limit)
    for _ in range(steps):
        if not tree.can_grow():
            break
        await tree.grow()
    return tree


@given(
    salt=st.integers(0, 2**16),
    params=PARAMS,
    mode=st.sampled_from(AcceptanceMode),
    seed=st.integers(0, 2**64 - 1),
    gamma=st.integers(1, 5),
    num_branches=st.integers(0, 16),
    strategy=st.sampled_from(["single", "uniform", "geometric"]),
    steps=st.integers(0, 8),
    end_token_ids=st.sampled_from([(), (3,), (1, 7)]),
    new_tokens=st.integers(2, 30),
)
def test_every_branch_is_what_sequential_drafting_would_have_drawn(
    salt: int,
    params: SamplingParams,
    mode: AcceptanceMode,
    seed: int,
    gamma: int,
    num_branches: int,
    strategy: str,
    steps: int,
    end_token_ids: tuple[int, ...],
    new_tokens: int,
) -> None:
    prompt = [2, 5, 0]

    async def check() -> None:
        drafter = new_drafter(salt, params, mode, seed, len(prompt), end_token_ids)
        limit = len(prompt) + new_tokens
        chain = Chain()
        length = min(gamma, new_tokens - 1)
        allocation = allocate(strategy, num_branches, length, 0.6, 0.8)
        tree = await grown_tree(drafter, prompt, chain, [*allocation, *[0] * gamma], length, steps, limit)
        for branch in tree.branches:
            accepted, token = branch.outcome
            assert token not in end_token_ids
            assert accepted == len(chain) or token != chain.tokens[accepted]
            committed = [*prompt, *chain.tokens[:accepted], token]
            sequential = new_drafter(salt, params, mode, seed, len(prompt), end_token_ids)
            expected = Chain()
            await sequential.draft(committed, expected, len(branch.chain))
            assert branch.chain.tokens == expected.tokens
            assert len(branch.chain) <= min(length, limit - len(committed) - 1)
            for drafted, reference in zip(branch.chain.drafted, expected.drafted, strict=True):
                if mode is AcceptanceMode.RESIDUAL:
                    assert drafted.weight == reference.weight

    run_virtual(check())


@given(salt=st.integers(0, 2**16), gamma=st.integers(1, 4), steps=st.integers(0, 6), data=st.data())
def test_rows_after_hits_and_misses_are_the_committed_tokens(
    salt: int, gamma: int, steps: int, data: st.DataObject
) -> None:
    async def check() -> None:
        drafter = new_drafter(salt)
        engine = engine_of(drafter)
        committed, chain = [1, 2], Chain()
        for _ in range(6):
            allocation = allocate("uniform", 15, gamma, 0.6, 0.8)
            tree = await grown_tree(drafter, committed, chain, allocation, gamma, steps, 10_000)
            ready = [b.outcome for b in tree.branches if b.chain.drafted]
            misses = [(accepted, 10 - accepted) for accepted in range(gamma + 1)]
            accepted, token = data.draw(st.sampled_from(ready + misses))
            next_chain = tree.settle(accepted, token)
            assert (next_chain is not None) == ((accepted, token) in ready)
            committed = [*committed, *chain.tokens[:accepted], token]
            chain = next_chain or Chain()
            path = [*committed, *chain.tokens]
            assert engine.rows == list(enumerate(path[: engine.num_rows]))
            assert engine.num_rows <= len(path) - 1

    run_virtual(check())


async def test_lockstep_feeds_all_branches_in_one_step_and_the_last_chain_token_with_the_roots() -> None:
    drafter = new_drafter(4)
    chain = Chain()
    tree = await grown_tree(drafter, [1, 2], chain, [3, 2, 4], 2, 0, 1000)
    engine_of(drafter).widths.clear()
    await tree.grow()
    assert engine_of(drafter).widths == [1 + 3 + 2]
    assert {b.outcome[0] for b in tree.branches} == {0, 1, 2}
    await tree.grow()
    assert engine_of(drafter).widths[1:] == [3 + 2 + 4]
    await tree.grow()
    assert engine_of(drafter).widths[2:] == [4], "only the full-acceptance branches are one token short"
    assert not tree.can_grow()
    assert all(len(b.chain) == 2 for b in tree.branches)


async def test_lookup_knows_only_outcomes_with_a_token_ready() -> None:
    drafter = new_drafter(4)
    chain = Chain()
    tree = await grown_tree(drafter, [1, 2], chain, [2, 0, 1], 2, 0, 1000)
    planted = [b.outcome for b in tree.branches]
    assert len(planted) == 2
    assert all(tree.lookup(outcome) is None for outcome in planted)
    await tree.grow()
    assert all(tree.lookup(outcome) is not None for outcome in planted)


async def test_no_branch_follows_a_drafted_end_token() -> None:
    drafter = new_drafter(4)
    chain = Chain()
    await drafter.draft([1, 2], chain, 3)
    ending = new_drafter(4, end_token_ids=[chain.tokens[1]])
    chain = Chain()
    tree = await grown_tree(ending, [1, 2], chain, [2, 2, 2, 2], 3, 9, 1000)
    assert chain.tokens[-1] in ending.rules.end_token_ids
    assert len(chain) == 2, "the end token is the chain's last"
    assert {b.outcome[0] for b in tree.branches} == {0, 1}


async def test_nothing_is_fed_past_the_draft_context() -> None:
    # the fake engine asserts that every position is below max_context
    drafter = new_drafter(4, max_context=6)
    committed, chain = [1, 2, 3], Chain()
    assert drafter.max_chain(len(committed)) == 4
    tree = await grown_tree(drafter, committed, chain, [3, 3, 3, 3, 3], 4, 12, 1000)
    assert len(chain) == 4
    assert max(position for position, _ in engine_of(drafter).rows) == 5
    assert all(len(b.chain) <= 4 - b.outcome[0] - 1 for b in tree.branches)


async def test_more_branches_than_a_step_holds_take_turns() -> None:
    drafter = new_drafter(4)
    tree = await grown_tree(drafter, [1, 2], Chain(), [3, 3, 0], 2, 0, 1000, bucket=4)
    engine_of(drafter).widths.clear()
    await tree.grow()
    await tree.grow()
    lengths = sorted(len(branch.chain) for branch in tree.branches)
    assert lengths == [1, 1, 1, 1, 2, 2], "none is two ahead of another"
    await tree.grow()
    assert engine_of(drafter).widths == [4, 4, 4]
    assert all(len(branch.chain) == 2 for branch in tree.branches)


async def test_growth_ends_where_the_buffer_does() -> None:
    # the fake engine asserts that its rows fit
    drafter = new_drafter(4, max_context=6, tree_rows=0)
    tree = await grown_tree(drafter, [1, 2], Chain(), [2, 0, 0], 2, 9, 1000, bucket=2)
    assert engine_of(drafter).num_rows == 3 + 2, "another step might need two more, and there is one"
    assert not tree.can_grow()
    assert [len(branch.chain) for branch in tree.branches] == [1, 1]


@pytest.mark.parametrize("mode", AcceptanceMode)
async def test_a_rank_is_the_place_among_the_branches_there_would_be(mode: AcceptanceMode) -> None:
    committed, chain = [1, 2], Chain()
    drafter = new_drafter(4, mode=mode)
    tree = await grown_tree(drafter, committed, chain, [VOCAB, 0, 0], 2, 0, 1000)
    planted = [branch.outcome for branch in tree.branches]
    assert len(planted) == VOCAB - 1, "every token but the drafted one"
    assert [tree.rank_of(outcome, 4) for outcome in planted] == [1, 2, 3, 4] + [5] * (VOCAB - 5)
    assert tree.rank_of((2, 3), 4) is None, "no row follows the chain's last token yet"
    grown = await grown_tree(drafter, committed, chain, [0, 0, 3], 2, 1, 1000)
    assert [grown.rank_of(branch.outcome, 4) for branch in grown.branches] == [1, 2, 3]


async def test_a_prompt_wider_than_the_widest_bucket_is_fed_in_chunks() -> None:
    drafter = new_drafter(4)
    prompt = [i % VOCAB for i in range(70)]
    chain = Chain()
    await drafter.draft(prompt, chain, 1)
    assert engine_of(drafter).widths == [32, 32, 6]
    expected = hashed_table(VOCAB, 4)(tuple(prompt))
    assert chain.tokens == [drafter.draw(LogitsRow(expected), prompt).token]


def test_a_chain_longer_than_the_protocol_allows_is_refused() -> None:
    with pytest.raises(ValueError, match="gamma must be between 1 and 63"):
        DraftSettings(gamma=64)


@pytest.mark.parametrize("ranking", Ranking)
def test_candidates_are_tried_in_the_order_asked_for(ranking: Ranking) -> None:
    drafter = new_drafter(5, mode=AcceptanceMode.COUPLED, ranking=ranking)
    row = drafter.row(LogitsRow(hashed_table(VOCAB, 5)((1, 2))), [1, 2])
    by_probability = rank_candidates(row, PLAIN, 0, 9, False, 8).tolist()
    by_arrival = rank_candidates(row, PLAIN, 0, 9, True, 8).tolist()
    assert by_probability != by_arrival
    expected = by_arrival if ranking is Ranking.COUPLED else by_probability
    assert drafter.candidates(row, 9, 8, None) == expected
