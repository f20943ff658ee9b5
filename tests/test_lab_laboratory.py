"""A run over remembered rows is the run over the engines themselves, and the same wherever it is repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.bench.lab.acespec_strategies import AceSpec, Autoregressive
from acespec.bench.lab.lab_pair import LabPair, recorded_pair
from acespec.bench.lab.laboratory import Laboratory
from acespec.bench.lab.memo_models import MissingRowError
from acespec.bench.lab.profiles import StepLatency
from acespec.bench.lab.simulated_link import Charged, LinkConditions
from acespec.bench.lab.strategy import RunResult, World
from acespec.edge_runtime import DraftSettings, FinishReason
from acespec.errors import AcespecError
from acespec.speculation import Allocation, Ranking, SamplingParams
from acespec.wire import AcceptanceMode, Open
from coupled_text import coupled_text
from lab_world import (
    BUCKETS,
    END,
    PROFILES,
    TARGET,
    VOCAB,
    Unremembered,
    case,
    conditions,
    identity,
    table_pair,
)

UP_MS = DOWN_MS = 25.0
FORWARD_MS = 146.0

samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.2, 0.4, 0.7, 1.0, 1.7]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2]),
)
draft_settings = st.builds(
    lambda gamma, branches, allocation, ranking: DraftSettings(
        gamma=gamma,
        budget=None if branches is None else gamma + branches,
        allocation=allocation,
        ranking=ranking,
    ),
    st.integers(1, 6),
    st.none() | st.integers(0, BUCKETS[-1]),
    st.sampled_from(Allocation),
    st.sampled_from(Ranking),
)
links = st.builds(
    LinkConditions.symmetric,
    st.sampled_from([0.0, 10.0, 200.0]),
    st.sampled_from([0.0, 8.0]),
    st.sampled_from([1250.0, 12.5e6]),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from(Charged),
)


def acespec(mode: AcceptanceMode = AcceptanceMode.COUPLED, **fields: object) -> AceSpec:
    return AceSpec(mode, DraftSettings(**fields), BUCKETS)  # type: ignore[arg-type]


@settings(max_examples=40)
@given(
    sampling=samplings,
    chosen=draft_settings,
    mode=st.sampled_from(AcceptanceMode),
    link=links,
    seed=st.integers(0, 2**64 - 1),
    top_k=st.sampled_from([None, 6]),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60),
)
def test_remembered_rows_give_the_run_of_the_engines(
    tmp_path_factory: pytest.TempPathFactory,
    sampling: SamplingParams,
    chosen: DraftSettings,
    mode: AcceptanceMode,
    link: LinkConditions,
    seed: int,
    top_k: int | None,
    prompt: list[int],
) -> None:
    strategy = AceSpec(mode, chosen, BUCKETS)
    meets = conditions(sampling=sampling, link=link, seed=seed)
    store = tmp_path_factory.mktemp("store")
    with Laboratory(table_pair(top_k), store) as laboratory:
        expected = laboratory.run(Unremembered(strategy, top_k), case(*prompt), meets)
        assert laboratory.run(strategy, case(*prompt), meets) == expected
    with Laboratory(recorded_pair(store), store) as replay:
        assert replay.run(strategy, case(*prompt), meets) == expected


def test_cloud_only_decoding_takes_what_its_parts_take_and_gives_the_text_of_the_definition(
    tmp_path: Path,
) -> None:
    unlimited = LinkConditions.symmetric(UP_MS + DOWN_MS, bytes_per_second=float("inf"))
    meets = conditions(link=unlimited, end_tokens=False)
    with Laboratory(table_pair(), tmp_path) as laboratory:
        result = laboratory.run(Autoregressive(), case(4, 2, 6), meets)
        assert laboratory.run(Unremembered(Autoregressive()), case(4, 2, 6), meets) == result
    info = identity()
    request = Open(
        "", "", info.vocabulary_hash, VOCAB, (), meets.sampling, 7, AcceptanceMode.COUPLED, (4, 2, 6), 3, 27
    )
    assert [4, 2, 6, *result.tokens] == coupled_text(TARGET, request)
    assert result.finish_reason is FinishReason.LENGTH
    assert result.ttft_ms == pytest.approx(UP_MS + 2 * FORWARD_MS + DOWN_MS)  # the prompt, then a token
    assert result.total_ms == pytest.approx(result.ttft_ms + 23 * FORWARD_MS)
    assert result.target_forwards == 24
    assert (result.tested, result.lookups, result.edge_idle_share) == (0, 0, 1.0)


def test_coupled_text_is_that_of_cloud_only_decoding_and_faster_on_a_long_link(tmp_path: Path) -> None:
    with Laboratory(table_pair(), tmp_path) as laboratory:
        alone = laboratory.run(Autoregressive(), case(), conditions(end_tokens=False))
        for rtt_ms in (10.0, 200.0):
            result = laboratory.run(acespec(), case(), conditions(rtt_ms, end_tokens=False))
            assert result.tokens == alone.tokens
            assert result.target_forwards < alone.target_forwards
        assert laboratory.models.target_rows_computed == len(alone.tokens), "only rows of the text are needed"


def test_a_text_ends_behind_an_end_token(tmp_path: Path) -> None:
    with Laboratory(table_pair(), tmp_path) as laboratory:
        results = [laboratory.run(acespec(), case(), conditions(seed=seed)) for seed in range(8)]
    ended = [result for result in results if result.finish_reason is FinishReason.END_TOKEN]
    assert ended
    assert all(result.tokens.index(END) == len(result.tokens) - 1 for result in ended)


def test_counts_are_those_of_the_rounds(tmp_path: Path) -> None:
    with Laboratory(table_pair(), tmp_path) as laboratory:
        result = laboratory.run(acespec(gamma=3), case(), conditions(end_tokens=False, max_new_tokens=60))
    assert result.target_forwards + result.accepted == 60, "each round commits one token more than it accepts"
    assert result.accepted < result.tested
    assert result.hits <= result.lookups == result.target_forwards - 1
    assert result.hits <= result.ready_tokens <= 3 * result.hits
    assert 0.0 < result.edge_idle_share < 1.0
    assert result.messages_up == 1 + result.target_forwards + 1  # opening, rounds, closing
    assert result.messages_down == 1 + result.target_forwards


def test_another_process_without_models_gives_the_same_results(tmp_path: Path) -> None:
    lossy = LinkConditions.symmetric(50.0, jitter_ms=20.0, bytes_per_second=6250.0, loss=0.1)
    meets = conditions(link=lossy, end_tokens=False)
    strategies = (Autoregressive(), acespec(), acespec(AcceptanceMode.RESIDUAL))
    with Laboratory(table_pair(), tmp_path) as laboratory:
        results = [asdict(laboratory.run(strategy, case(), meets)) for strategy in strategies]
    script = f"""
import dataclasses, json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from acespec.bench.lab.lab_pair import recorded_pair
from acespec.bench.lab.laboratory import Laboratory
from acespec.bench.lab.simulated_link import LinkConditions
from acespec.wire import AcceptanceMode
from lab_world import case, conditions
from test_lab_laboratory import Autoregressive, acespec
link = LinkConditions.symmetric(50.0, jitter_ms=20.0, bytes_per_second=6250.0, loss=0.1)
folder = Path({str(tmp_path)!r})
with Laboratory(recorded_pair(folder), folder) as laboratory:
    for strategy in (Autoregressive(), acespec(), acespec(AcceptanceMode.RESIDUAL)):
        result = laboratory.run(strategy, case(), conditions(link=link, end_tokens=False))
        print(json.dumps(dataclasses.asdict(result)))
"""
    environment = {**os.environ, "PYTHONHASHSEED": "5"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    replayed = [json.loads(line) for line in done.stdout.splitlines()]
    assert replayed == json.loads(json.dumps(results))


def test_seed_and_prompt_decide_what_the_link_does(tmp_path: Path) -> None:
    jittery = LinkConditions.symmetric(50.0, jitter_ms=30.0)
    greedy = SamplingParams(temperature=0.0)

    def run(name: str, seed: int) -> RunResult:
        meets = conditions(link=jittery, sampling=greedy, seed=seed, end_tokens=False)
        return laboratory.run(Autoregressive(), case(name=name), meets)

    with Laboratory(table_pair(), tmp_path) as laboratory:
        results = [run("a", 1), run("a", 2), run("b", 1)]
        assert run("a", 1) == results[0]
    assert len({result.tokens for result in results}) == 1
    assert len({result.total_ms for result in results}) == 3


def test_recording_goes_on_where_it_was(tmp_path: Path) -> None:
    strategies, cases = [Autoregressive(), acespec()], [case(name="a"), case(5, 5, name="b")]
    told: list[RunResult] = []
    with Laboratory(table_pair(), tmp_path) as laboratory:
        first = laboratory.record(strategies, cases[:1], [conditions()], told.append)
        assert first.draft_rows == first.draft_rows_computed > 0
        assert first.target_rows == first.target_rows_computed > 0
    with Laboratory(table_pair(), tmp_path) as laboratory:
        again = laboratory.record(strategies, cases[:1], [conditions()], told.append)
        assert (again.draft_rows_computed, again.target_rows_computed) == (0, 0)
        both = laboratory.record(strategies, cases, [conditions(), conditions(200.0)])
        assert both.draft_rows > first.draft_rows
    assert told[:2] == told[2:]
    assert [result.strategy for result in told[:2]] == ["autoregressive", "acespec_coupled"]
    with Laboratory(recorded_pair(tmp_path), tmp_path) as replay:
        assert replay.record(strategies, cases, [conditions(), conditions(200.0)]) == replace(
            both, draft_rows_computed=0, target_rows_computed=0
        )


def test_a_row_that_was_not_recorded_fails_the_run_and_is_named(tmp_path: Path) -> None:
    with Laboratory(table_pair(), tmp_path) as laboratory:
        laboratory.run(Autoregressive(), case(), conditions())
    with Laboratory(recorded_pair(tmp_path), tmp_path) as replay:
        replay.run(Autoregressive(), case(), conditions())
        with pytest.raises(MissingRowError, match="lacks a target row 0 tokens behind a prompt"):
            replay.run(Autoregressive(), case(1), conditions())
        with pytest.raises(MissingRowError, match="lacks a draft row"):
            replay.run(acespec(), case(), conditions())


def test_a_store_belongs_to_one_pair(tmp_path: Path) -> None:
    Laboratory(table_pair(), tmp_path).close()
    other = LabPair(identity(draft_precision="int8", draft_fingerprint="e" * 64))
    with pytest.raises(AcespecError, match=r"draft_fingerprint, draft_precision differ"):
        Laboratory(other, tmp_path)


def test_a_folder_without_rows_cannot_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(AcespecError, match="name a recorded folder"):
        recorded_pair(tmp_path)
    (tmp_path / "pair.json").write_text("{}")
    with pytest.raises(AcespecError, match="does not describe a recorded pair"):
        recorded_pair(tmp_path)


def test_a_strategy_that_fails_raises_and_leaves_the_laboratory_usable(tmp_path: Path) -> None:
    class Broken:
        name = "broken"

        async def run(self, world: World) -> None:
            await world.target_forward(1)
            raise AcespecError("it broke")

    with Laboratory(table_pair(), tmp_path) as laboratory:
        with pytest.raises(AcespecError, match="it broke"):
            laboratory.run(Broken(), case(), conditions())
        assert laboratory.run(Autoregressive(), case(), conditions()).tokens


def test_steps_are_charged_by_their_width(tmp_path: Path) -> None:
    edge = replace(PROFILES.edge, latency=StepLatency(((1, 10.0), (2, 20.0))))
    cloud = replace(PROFILES.cloud, latency=StepLatency(((1, 1.0),)))
    meets = conditions(edge=edge, cloud=cloud, max_new_tokens=3)
    with Laboratory(table_pair(), tmp_path) as laboratory:
        result = laboratory.run(acespec(gamma=2, budget=2), case(1, 2, 3), meets)
    # The prompt of three runs on the bucket of four and takes 40 ms, the chain's second token 10; meanwhile
    # the target was fed the prompt. Its forward of three tokens takes 3 ms.
    assert result.ttft_ms == pytest.approx(40.0 + 10.0 + UP_MS + 3.0 + DOWN_MS, abs=0.1)
