"""The race in the cloud: drafts make the text come sooner and never make it another."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import RaceReport
from acespec.cloud_verifier.tenants import Quota, Tenant
from acespec.speculation import SamplingParams
from acespec.wire import AcceptanceMode, Eagerness, Open
from racing_edge import FORWARD_MS, VOCAB, Races, RacingEdge, race_request, racing, tree_engine
from verifier_client import session

PENALTIES = SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.5, top_k=5, min_p=0.05),
    PENALTIES,
    replace(PENALTIES, temperature=0.0),
]


# --- the text -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """What the edge does next."""

    kind: str
    count: int
    wait_ms: int


moves = st.builds(
    Move,
    st.sampled_from(
        ["right", "right", "right", "bushy", "wrong", "old", "early", "orphans", "stray", "hear", "lose"]
    ),
    st.integers(1, 8),
    st.sampled_from([0, 0, 1, 5, 30]),
)


@st.composite
def requests(draw: st.DrawFn) -> Open:
    prompt = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4))
    return race_request(
        tree_engine(),
        prompt,
        sampling=draw(st.sampled_from(SAMPLINGS)),
        seed=draw(st.integers(0, 3)),
        end_token_ids=draw(st.sampled_from([(), (), (0,), (1, 4)])),
        token_limit=len(prompt) + draw(st.integers(1, 30)),
        race=draw(st.booleans()),
    )


all_limits = st.builds(
    Limits,
    race_eagerness=st.sampled_from([*Eagerness, None]),
    race_patience_ms=st.sampled_from([0.0, 7.0, 50.0]),
    max_race_nodes=st.sampled_from([1, 5, 256]),
    max_race_width=st.sampled_from([1, 3, 64]),
    token_budget=st.sampled_from([64, 512]),
)


async def make(edge: RacingEdge, move: Move) -> None:
    """One move; drafts are drawn from the text that must come, as far as the edge knows it or not."""
    known, truth = len(edge.committed), edge.truth
    ahead = truth[known : known + move.count]
    if move.kind == "right" and ahead:
        await edge.draft_chain(ahead)
    elif move.kind == "bushy" and ahead:
        nodes: list[tuple[int, int | None]] = []
        at: int | None = None
        for token in ahead:
            spot = at
            nodes += [((token + k) % VOCAB, spot) for k in (1, 2)]
            nodes.append((token, spot))
            at = len(nodes) - 1
        await edge.draft(nodes)
    elif move.kind == "wrong":
        await edge.draft_chain([move.count % VOCAB] * move.count)
    elif move.kind == "old":
        root = max(0, known - move.count)
        await edge.draft_chain(truth[root + 1 : root + 1 + 2 * move.count] or [0], root)
    elif move.kind == "early":
        await edge.draft_chain(truth[known + move.count :][: move.count] or [0], known + move.count - 1)
    elif move.kind == "orphans":
        edge.next_id += 2
        await edge.draft([(move.count % VOCAB, -1), (0, -2)])
    elif move.kind == "stray":
        await edge.draft_chain(ahead or [0], seq=1)
    elif move.kind == "hear":
        await edge.hear(move.count)
    elif move.kind == "lose":
        await edge.hear(1)
        await edge.resume()
    await asyncio.sleep(move.wait_ms / 1000.0)


@given(
    request=requests(),
    limits=all_limits,
    plan=st.lists(moves, max_size=15),
    delay_ms=st.sampled_from([0.0, 3.0, 40.0]),
    rate=st.sampled_from([None, 2000.0, 50.0]),
)
@settings(max_examples=300, deadline=None)
def test_whatever_is_drafted_and_whenever_it_comes_the_text_is_the_same(
    request: Open, limits: Limits, plan: list[Move], delay_ms: float, rate: float | None
) -> None:
    async def drive() -> None:
        tenant = Tenant("acme", Quota(tokens_per_s=rate))
        async with racing(tree_engine(), limits) as verifier:
            edge = RacingEdge(verifier, request, tenant, delay_ms)
            await edge.begin()
            for move in plan:
                if not edge.finished:
                    await make(edge, move)
            await asyncio.wait_for(edge.finish(), 60.0)
            await edge.leave()

    run_virtual(drive())


@given(request=requests(), counts=st.lists(st.integers(1, 9), min_size=1, max_size=4), right=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_race_ends_where_its_count_does(request: Open, counts: list[int], right: bool) -> None:
    async def drive() -> None:
        async with racing(tree_engine()) as verifier:
            edge = RacingEdge(verifier, request)
            await edge.begin(counts[0])
            start = len(edge.committed)
            goal = min(start + sum(counts), len(edge.truth))
            for k in range(len(counts)):
                if k:  # with a higher count, or as another request
                    edge.client.seq += 1
                    edge.decode = replace(edge.client.next_decode(counts[k]), race=True)
                    await edge.client.send(edge.decode)
                due = min(len(edge.committed) + counts[k], len(edge.truth))
                while len(edge.committed) < due:
                    ahead = edge.truth[len(edge.committed) :]
                    await edge.draft_chain(ahead if right else [token ^ 1 for token in ahead])
                    await edge.hear()
                assert len(edge.committed) == due
                if edge.finished:
                    break
            assert len(edge.committed) == goal or edge.finished
            await edge.leave()

    run_virtual(drive())


# --- what it gains and what it costs ------------------------------------------------------------------------


def forwards_of(
    limits: Limits, *, drafted: bool, latency_per_token_ms: float = 0.0
) -> tuple[int, list[RaceReport]]:
    """Forwards that 200 tokens take whose drafts, 8 at a time, are right and come in time, or never come."""
    races = Races()

    async def drive() -> int:
        engine = tree_engine()
        request = race_request(engine, token_limit=203)
        async with racing(engine, limits, races, lambda n: FORWARD_MS + latency_per_token_ms * n) as verifier:
            edge = RacingEdge(verifier, request)
            await edge.begin()
            while not edge.finished:
                if drafted:
                    known = len(edge.committed)
                    await edge.draft_chain(edge.truth[known : known + 8])
                await edge.hear()
            await edge.leave()
        return engine.num_forwards

    return run_virtual(drive()), races.reports


def test_right_drafts_in_time_make_a_forward_commit_many_tokens() -> None:
    num_forwards, reports = forwards_of(Limits(), drafted=True)
    assert num_forwards < 60
    assert sum(report.committed for report in reports) == 200
    assert len(reports) == num_forwards


@pytest.mark.parametrize("eagerness", [Eagerness.LATENCY, Eagerness.BALANCED])
def test_a_silent_edge_costs_exactly_the_forwards_of_plain_decoding(eagerness: Eagerness) -> None:
    num_forwards, reports = forwards_of(Limits(race_eagerness=eagerness), drafted=False)
    assert num_forwards == 200
    assert all(report.committed == 1 and report.drafted == 0 for report in reports)


def test_no_node_is_taken_along_where_it_makes_a_forward_dearer() -> None:
    num_forwards, reports = forwards_of(Limits(), drafted=True, latency_per_token_ms=FORWARD_MS)
    tried = [report.drafted for report in reports if report.drafted]
    assert len(tried) <= 6, "tried, and found too dear"
    assert num_forwards >= 190


def test_drafts_that_come_during_a_forward_ride_on_the_next() -> None:
    """Four tokens that are right from where the edge knows the text, one of which is being computed."""

    async def drive() -> None:
        races = Races()
        async with racing(tree_engine(), observer=races) as verifier:
            edge = RacingEdge(verifier, race_request(tree_engine(), token_limit=40))
            await edge.begin()
            await edge.hear(5)  # the costs of a plain forward are known
            known = len(edge.committed)
            await asyncio.sleep(FORWARD_MS / 2000.0)
            await edge.draft_chain(edge.truth[known : known + 5])
            await edge.hear()
            assert len(edge.committed) == known + 1
            await edge.hear()
            assert [report.drafted for report in races.reports[5:7]] == [0, 1]
            assert [report.committed for report in races.reports[5:7]] == [1, 2]
            await edge.hear()
            assert races.reports[7].committed >= 3
            await edge.leave()

    run_virtual(drive())


def test_a_tenants_rate_is_for_its_next_token_first() -> None:
    """At 20 tokens/s decoding takes all: drafts are checked with what is left, half a second's at most."""

    def seconds(rate: float, *, drafted: bool) -> float:
        async def drive() -> float:
            engine = tree_engine()
            async with racing(engine, Limits()) as verifier:
                request = race_request(engine, token_limit=103)
                edge = RacingEdge(verifier, request, Tenant("slow", Quota(tokens_per_s=rate)))
                await edge.begin()
                while not edge.finished:
                    if drafted:
                        await edge.draft([(token, None) for token in range(VOCAB)])
                    await edge.hear()
                await edge.leave()
            return asyncio.get_running_loop().time()

        return run_virtual(drive())

    assert seconds(20.0, drafted=True) <= seconds(20.0, drafted=False) + 0.5
    assert seconds(150.0, drafted=True) < 0.95 * seconds(150.0, drafted=False)


def test_over_another_stream_nodes_are_numbered_anew() -> None:
    async def drive() -> None:
        races = Races()
        async with racing(tree_engine(), observer=races) as verifier:
            edge = RacingEdge(verifier, race_request(tree_engine(), token_limit=60))
            await edge.begin()
            for _ in range(8):
                await edge.draft_chain(edge.truth[len(edge.committed) :][:2])
                await edge.hear()
            await edge.resume()
            before = len(races.reports)
            await edge.draft_chain(edge.truth[len(edge.committed) :][:6])
            await edge.finish()
            assert sum(report.received for report in races.reports[before:]) == 6
            assert sum(report.committed > 1 for report in races.reports[before:]) >= 1
            await edge.leave()

    run_virtual(drive())


def test_for_another_request_nodes_are_numbered_anew() -> None:
    async def drive() -> None:
        races = Races()
        async with racing(tree_engine(), observer=races) as verifier:
            edge = RacingEdge(verifier, race_request(tree_engine(), token_limit=60))
            await edge.begin(count=12)
            while len(edge.committed) < len(edge.request.committed) + 12:
                await edge.draft_chain(edge.truth[len(edge.committed) :][:2])
                await edge.hear()
            await edge.ask_anew()
            before = len(races.reports)
            await edge.draft_chain(edge.truth[len(edge.committed) :][:6])
            await edge.finish()
            assert sum(report.received for report in races.reports[before:]) == 6
            assert max(report.committed for report in races.reports[before:]) > 3
            await edge.leave()

    run_virtual(drive())


def test_who_did_not_say_so_races_in_the_room_that_its_text_has_left() -> None:
    """The engine fails if it is fed more than was set aside."""

    async def drive() -> None:
        races = Races()
        async with racing(tree_engine(), observer=races) as verifier:
            edge = RacingEdge(verifier, race_request(tree_engine(), token_limit=40, race=False))
            await edge.begin()
            while not edge.finished:
                ahead = edge.truth[len(edge.committed) :]
                right, wrong = ahead[:2], [(token + 1) % VOCAB for token in ahead[:1]]
                await edge.draft([(token, k - 1 if k else None) for k, token in enumerate(right)])
                await edge.draft([(token, None) for token in wrong] + [(k % VOCAB, 0) for k in range(4)])
                await edge.hear()
            assert max(report.drafted for report in races.reports) >= 4
            await edge.leave()

    run_virtual(drive())


# --- eagerness ----------------------------------------------------------------------------------------------


def test_cost_waits_for_drafts_and_not_for_ever() -> None:
    async def drive() -> None:
        engine = tree_engine()
        limits = Limits(race_eagerness=Eagerness.COST, race_patience_ms=500.0)
        async with racing(engine, limits) as verifier:
            edge = RacingEdge(verifier, race_request(engine, token_limit=40))
            now = asyncio.get_running_loop().time
            await edge.begin()
            await edge.hear()
            assert now() == pytest.approx(0.5 + 2 * FORWARD_MS / 1000.0), "the prompt's forward, and its own"
            await asyncio.sleep(0.1)
            forwards = engine.num_forwards
            await edge.draft_chain(edge.truth[len(edge.committed) :][:2])
            await edge.hear()
            assert now() == pytest.approx(0.5 + 0.1 + 3 * FORWARD_MS / 1000.0)
            assert engine.num_forwards == forwards + 1
            await edge.leave()

    run_virtual(drive())


def test_balanced_gives_way_while_others_are_there() -> None:
    """Beside a session that may ask at any time, one without drafts waits for about a forward's time."""

    async def drive() -> None:
        engine = tree_engine()
        async with racing(engine, Limits(race_eagerness=Eagerness.BALANCED)) as verifier:
            edge = RacingEdge(verifier, race_request(engine, token_limit=90))
            await edge.begin()
            await edge.hear(2)
            other = RacingEdge(verifier, race_request(engine, (4, 5)))
            await other.begin(1)
            await other.hear()
            forwards = engine.num_forwards
            await asyncio.sleep(0.5)
            assert 20 <= engine.num_forwards - forwards <= 25, "one in two forwards' time"
            await other.leave()
            await edge.leave()

    run_virtual(drive())


# --- who may race -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eagerness", [*Eagerness, None])
async def test_the_edge_is_told_how_the_server_races(eagerness: Eagerness | None) -> None:
    target = tree_engine()
    limits = Limits(race_eagerness=eagerness, max_race_nodes=7)
    async with session(target, race_request(target), limits=limits) as client:
        opened = await client.receive_opened()
        assert opened.eagerness is eagerness
        assert opened.max_race_nodes == (0 if eagerness is None else 7)
    residual = race_request(target, mode=AcceptanceMode.RESIDUAL, race=False)
    async with session(target, residual, limits=limits) as client:
        opened = await client.receive_opened()
        assert (opened.eagerness, opened.max_race_nodes) == (None, 0)


@pytest.mark.parametrize(("means_to_race", "room"), [(True, 49), (False, 40)])
async def test_room_is_set_aside_for_drafts_where_the_edge_means_to_race(
    means_to_race: bool, room: int
) -> None:
    engine = tree_engine()
    request = race_request(engine, token_limit=40, race=means_to_race)
    async with session(engine, request, limits=Limits(max_race_width=9)) as client:
        await client.receive_opened()
        assert engine.kv_tokens_used == room
