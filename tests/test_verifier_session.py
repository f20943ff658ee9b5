"""A session over a memory link: its texts, its refusals and its replays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acespec.cloud_verifier.limits import Limits
from acespec.speculation import SamplingParams
from acespec.wire import Close, EdgeMessage, EndVerdict, ErrorCode, Open, TokenVerdict
from fake_draft import hashed_table
from fake_target import Table, TableTargetEngine
from verifier_client import VerifierClient, decoded_text, open_request, refused, session

VOCAB = 12
TABLE = hashed_table(VOCAB, salt=5)
PENALTIES = SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_p=0.8),
    SamplingParams(temperature=1.5, top_k=5, min_p=0.05),
    PENALTIES,
    replace(PENALTIES, temperature=0.0),
]


def engine(table: Table = TABLE, vocab: int = VOCAB, max_context: int = 4096) -> TableTargetEngine:
    return TableTargetEngine(table, vocab, max_context)


# --- coupled mode: any chains, the same text ------------------------------------------------------------


@st.composite
def coupled_requests(draw: st.DrawFn) -> Open:
    prompt = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6))
    return open_request(
        engine(),
        prompt,
        sampling=draw(st.sampled_from(SAMPLINGS)),
        seed=draw(st.integers(0, 2**64 - 1)),
        end_token_ids=tuple(draw(st.sets(st.integers(0, VOCAB - 1), max_size=2))),
        token_limit=len(prompt) + draw(st.integers(1, 20)),
    )


@given(request=coupled_requests(), data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_chains_reveal_the_text_the_cloud_decodes_by_itself(request: Open, data: st.DataObject) -> None:
    """Chains of any length and quality between stretches of decoding; token limits and end tokens inside."""

    async def drive(expected: list[int]) -> TableTargetEngine:
        target = engine()
        async with session(target, request) as client:
            while not client.finished:
                if data.draw(st.booleans(), label="decode"):
                    await client.decode(data.draw(st.integers(1, 4), label="count"))
                else:
                    await client.round(chain_for(client, expected, data))
                assert client.committed == expected[: len(client.committed)]
            assert client.committed == expected
        return target

    expected = asyncio.run(decoded_text(engine(), request))
    target = asyncio.run(drive(expected))
    assert target.sequences == {}
    assert target.longest < request.token_limit


def chain_for(client: VerifierClient, expected: list[int], data: st.DataObject) -> list[int]:
    """A chain that follows ``expected`` for a while and then strays, ending at an end token."""
    length = data.draw(st.integers(0, min(6, client.remaining - 1)), label="length")
    right = data.draw(st.integers(0, length), label="right")
    chain = expected[len(client.committed) :][:right]
    chain += data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=length, max_size=length))[len(chain) :]
    for i, token in enumerate(chain):
        if token in client.request.end_token_ids:
            return chain[: i + 1]
    return chain


async def test_a_right_chain_costs_one_forward_and_is_wholly_accepted() -> None:
    target = engine()
    request = open_request(target, [1, 2, 3])
    expected = await decoded_text(target, request)
    forwards = target.num_forwards
    async with session(target, request) as client:
        verdict = await client.round(expected[3:9])
    assert target.num_forwards == forwards + 1
    assert isinstance(verdict, TokenVerdict)
    assert (verdict.accepted, verdict.next_token) == (6, expected[9])


async def test_an_accepted_end_token_closes_the_text_without_a_bonus() -> None:
    target = engine()
    text = await decoded_text(target, open_request(target, [1, 2, 3]))
    end = next(i for i in range(5, len(text)) if text[i] not in text[3:i])
    request = open_request(target, [1, 2, 3], end_token_ids=(text[end],))
    async with session(target, request) as client:
        verdict = await client.round(text[3 : end + 1])
        assert isinstance(verdict, EndVerdict)
        assert verdict.accepted == end - 2
        await refused(client, "the generation has ended", client.next_decode(1))


async def test_an_end_token_in_the_prompt_ends_nothing() -> None:
    target = engine()
    request = open_request(target, [1, 7], end_token_ids=(7,), token_limit=3)
    async with session(target, request) as client:
        assert len(await client.decode(1)) == 1


async def test_a_reopened_session_goes_on_where_it_was() -> None:
    target = engine()
    request = open_request(target, [1, 2, 3], sampling=PENALTIES)
    expected = await decoded_text(target, request)
    reopened = replace(request, committed=tuple(expected[:10]))
    assert await decoded_text(target, reopened) == expected


async def test_a_long_prompt_is_prefilled_without_its_last_token() -> None:
    prompt = [i % VOCAB for i in range(1300)]
    target = engine(lambda path: TABLE(path[-3:]))
    async with session(target, open_request(target, prompt)) as client:
        await client.decode(1)
        assert list(target.sequences.values()) == [prompt]


# --- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "other"}, "asks for the target 'other' but 'table' is served"),
        ({"fingerprint": "0" * 64}, f"fingerprint '{'0' * 64}' but the one served has '{'f' * 64}'"),
        ({"vocabulary_hash": "b" * 64}, f"vocabulary '{'b' * 64}' is not the target's '{'a' * 64}'"),
        ({"vocab_size": 13}, "13 tokens and the target of 12"),
        (
            {"committed": (1,) * 64, "prompt_length": 64, "token_limit": 99},
            "prompt of 64 tokens does not fit the target's context of 64",
        ),
        ({"committed": (1,) * 65, "token_limit": 99}, "65 committed tokens do not fit"),
    ],
)
async def test_an_open_that_does_not_fit_the_target(changes: dict[str, object], reason: str) -> None:
    target = engine(max_context=64)
    async with session(target, open_request(target, [1, 2], **changes)) as client:
        error = await refused(client, reason)
    assert error.code is ErrorCode.FAILED_PRECONDITION
    assert target.num_opened == 0


async def test_named_target_and_fingerprint_are_accepted() -> None:
    target = engine()
    request = open_request(target, [1], model="table", fingerprint="f" * 64)
    async with session(target, request) as client:
        await client.decode(1)
        assert client.opened is not None
        assert (client.opened.model, client.opened.max_context) == ("table", 4096)


async def test_open_comes_first_and_once() -> None:
    target = engine()
    async with session(target, open_request(target, [1]), begin=False) as client:
        error = await refused(
            client, "the first message of a stream must be open or resume", client.next_decode(1)
        )
        assert error.code is ErrorCode.INVALID_ARGUMENT
    async with session(target, open_request(target, [1])) as client:
        await refused(client, "open already", client.request)
    assert target.sequences == {}


async def test_an_edge_that_leaves_before_open_or_after_close_is_no_error() -> None:
    target = engine()
    async with session(target, open_request(target, [1]), begin=False):
        pass
    async with session(target, open_request(target, [1])) as client:
        await client.decode(1)
        await client.send(Close())
    assert target.sequences == {}


@pytest.mark.parametrize(
    ("reason", "make"),
    [
        ("request 1 came where 0 is due", lambda c: [replace(c.next_round([4]), seq=1)]),
        ("disagree about the 3 committed tokens", lambda c: [replace(c.next_round([4]), prefix_check=1)]),
        ("disagree about the 3 committed tokens", lambda c: [replace(c.next_decode(4), prefix_check=1)]),
        ("a chain of 24 tokens came where at most 23 may", lambda c: [c.next_round([4] * 24)]),
        ("goes on after an end token", lambda c: [c.next_round([4, 11, 4])]),
    ],
)
async def test_requests_that_break_the_protocol(
    reason: str, make: Callable[[VerifierClient], list[EdgeMessage]]
) -> None:
    target = engine()
    async with session(target, open_request(target, [1, 2, 3], end_token_ids=(11,))) as client:
        error = await refused(client, reason, *make(client))
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert target.num_forwards == 0
    assert target.sequences == {}


async def test_of_a_chain_longer_than_the_server_allows_only_its_beginning_is_checked() -> None:
    """The first round travels with Open, when the edge cannot know the limit yet."""
    target = engine()
    request = open_request(target, [1])
    expected = await decoded_text(engine(), request)
    async with session(target, request, limits=Limits(max_chain=4)) as client:
        verdict = await client.round(expected[1:8])
        assert isinstance(verdict, TokenVerdict)
        assert (verdict.accepted, verdict.next_token) == (4, expected[5])
        assert client.opened is not None
        assert client.opened.max_chain == 4
        assert target.batches[-1] == [5]


async def test_nothing_may_follow_the_token_limit() -> None:
    target = engine()
    async with session(target, open_request(target, [1], token_limit=4)) as client:
        await client.decode(9)
        assert len(client.committed) == 4
        await refused(client, "the generation has ended", client.next_round([]))


# --- replays --------------------------------------------------------------------------------------------


async def test_a_repeated_round_gets_the_same_verdict_from_memory() -> None:
    target = engine()
    async with session(target, open_request(target, [1, 2, 3])) as client:
        request = client.next_round([4, 5])
        verdict = await client.round([4, 5])
        await client.send(request)
        assert await client.receive() == verdict
        assert target.num_forwards == 1
        await refused(client, "request 0 was answered before and now differs", replace(request, chain=(4,)))


async def test_a_repeated_decode_brings_no_commit_twice() -> None:
    target = engine()
    async with session(target, open_request(target, [1, 2, 3])) as client:
        request = client.next_decode(5)
        await client.decode(5)
        await client.send(request)
        await client.decode(2)  # which takes whatever comes, and would find the repeated commits first
        assert target.num_forwards == 7
        await refused(client, "request 0 came where 2 is due", request)


async def test_sequence_numbers_wrap() -> None:
    target = engine()
    async with session(target, open_request(target, [1], token_limit=90)) as client:
        for _ in range(70):
            await client.decode(1)
        assert client.committed == (await decoded_text(target, client.request))[:71]


# --- the target's context -------------------------------------------------------------------------------


async def test_nothing_is_verified_past_the_targets_context() -> None:
    """The first round travels with Open, when the edge cannot know the context yet: its chain is cut."""
    target = engine(max_context=16)
    request = open_request(target, [1] * 12, token_limit=100)
    expected = await decoded_text(engine(), replace(request, token_limit=16))
    async with session(target, request) as client:
        verdict = await client.round([*expected[12:15], 0, 0, 0])
        assert isinstance(verdict, TokenVerdict)
        assert (verdict.accepted, verdict.next_token) == (3, expected[15])
        await refused(client, "the generation has ended", client.next_decode(1))
    assert target.longest <= 16


async def test_decoding_ends_with_the_targets_context() -> None:
    target = engine(max_context=16)
    async with session(target, open_request(target, [1] * 12, token_limit=100)) as client:
        await client.send(client.next_decode(50))
        positions = [(await client.receive()).position for _ in range(4)]  # type: ignore[union-attr]
        assert positions == [12, 13, 14, 15]
        client.committed += [0] * 4
        client.seq += 1
        await refused(client, "disagree|has ended", client.next_decode(1))
    assert target.longest <= 16
