"""A verifier that breaks the protocol ends the generation with one line that says how."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.request import DraftSettings, GenerationRequest
from acespec.wire import (
    AcceptanceMode,
    CloudMessage,
    Codec,
    Commit,
    Decode,
    EdgeMessage,
    EdgeTransport,
    EndVerdict,
    ErrorCode,
    MoreDraws,
    MoreTarget,
    Open,
    Opened,
    RejectVerdict,
    Round,
    SessionError,
    SparseTarget,
    TargetDraws,
    TokenVerdict,
    memory_link,
)
from fake_draft import TableDraftEngine, hashed_table
from in_process import draft_model

VOCAB = 8
PROMPT = (1, 2)
OPENED = Opened(b"id", 0, "table", "f", max_context=64, max_chain=63)
Answer = Callable[[EdgeMessage], Sequence[CloudMessage]]


async def generate_against(
    answer: Answer,
    mode: AcceptanceMode = AcceptanceMode.COUPLED,
    end_token_ids: tuple[int, ...] = (),
    drafts: bool = True,
) -> GenerationResult:
    """Generate five tokens, two a chain, with a verifier that sends what ``answer`` makes of each message."""
    edge, cloud = memory_link()
    codec = Codec(VOCAB, mode)

    async def connect(_: float) -> EdgeTransport:
        return edge

    async def serve() -> None:
        try:
            while (message := await cloud.receive()) is not None:
                decoded = codec.decode_edge(message)
                for reply in [OPENED] if isinstance(decoded, Open) else answer(decoded):
                    await cloud.send(codec.encode_cloud(reply))
        finally:
            await cloud.close()  # an answer that fails must not leave the edge waiting

    serving = asyncio.ensure_future(serve())
    try:
        return await generate(
            connect,
            GenerationRequest(PROMPT, end_token_ids, max_new_tokens=5, mode=mode),
            VOCAB,
            draft_model(TableDraftEngine(hashed_table(VOCAB, 1), VOCAB), 1.0) if drafts else None,
            DraftSettings(gamma=2),
        )
    finally:
        await serving


async def caught(
    answer: Answer,
    mode: AcceptanceMode = AcceptanceMode.COUPLED,
    end_token_ids: tuple[int, ...] = (),
    drafts: bool = True,
) -> str:
    """The cause named by the error that ends the generation."""
    with pytest.raises(SessionError) as error:
        await generate_against(answer, mode, end_token_ids, drafts)
    assert error.value.code is ErrorCode.INTERNAL
    intro, cause, remedy = error.value.message.replace("; ", ": ").split(": ")
    assert intro == "the verifier broke the protocol"
    assert remedy == "check that both sides run the same version of acespec"
    return cause


def to_rounds(reply: Callable[[Round], CloudMessage]) -> Answer:
    return lambda message: [reply(message)] if isinstance(message, Round) else []


async def test_what_follows_is_caught_for_what_it_breaks() -> None:
    """The same verifier without a fault, so that the tests below fail for their fault alone."""
    result = await generate_against(to_rounds(lambda sent: TokenVerdict(sent.seq, len(sent.chain), 3)))
    assert len(result.tokens) == 5
    assert (result.tokens[2], result.metrics.rounds) == (3, 2)


async def test_a_verdict_on_another_request() -> None:
    cause = await caught(to_rounds(lambda sent: TokenVerdict(sent.seq + 1, 0, 3)))
    assert cause == "it sent TokenVerdict where the verdict on request 0 had to come"


async def test_a_commit_in_place_of_a_verdict() -> None:
    cause = await caught(to_rounds(lambda _: Commit(len(PROMPT), (3,))))
    assert cause == "it sent Commit where the verdict on request 0 had to come"


async def test_a_second_opened() -> None:
    def answer(message: EdgeMessage) -> list[CloudMessage]:
        if isinstance(message, Round):
            return [OPENED, TokenVerdict(message.seq, len(message.chain), 3)]
        return []

    assert await caught(answer) == "it sent Opened twice"


async def test_more_accepted_than_sent() -> None:
    cause = await caught(to_rounds(lambda sent: TokenVerdict(sent.seq, 3, 3)))
    assert cause == "it accepted 3 tokens of a chain of 2"


async def test_an_end_behind_a_token_that_ends_nothing() -> None:
    cause = await caught(to_rounds(lambda sent: EndVerdict(sent.seq, 1)))
    assert cause == "it ended the text behind a token that is no end token"


async def test_a_token_behind_an_accepted_end_token() -> None:
    every_token = tuple(range(VOCAB))
    cause = await caught(to_rounds(lambda sent: TokenVerdict(sent.seq, 1, 3)), end_token_ids=every_token)
    assert cause == "it went on after the end of the text"


async def test_a_rejection_behind_the_chain() -> None:
    target = SparseTarget(16, (3,), (2**16,))
    cause = await caught(
        to_rounds(lambda sent: RejectVerdict(sent.seq, len(sent.chain), target)), AcceptanceMode.RESIDUAL
    )
    assert cause == "it rejected token 2 of a chain of 2"


async def test_draws_of_other_indexes_than_asked_for() -> None:
    def answer(message: EdgeMessage) -> list[CloudMessage]:
        if isinstance(message, Round):
            # The drafted token itself, which the draft likes at least as much, never passes.
            hopeless = TargetDraws(16, 0, (message.chain[0],) * 8, (1,) * 8)
            return [RejectVerdict(message.seq, 0, hopeless)]
        if isinstance(message, MoreDraws):
            return [MoreTarget(TargetDraws(16, message.first_index + 8, (3,), (2**16,)))]
        return []

    cause = await caught(answer, AcceptanceMode.RESIDUAL)
    assert cause == "it sent draws from 16 on where 8 is due"


@pytest.mark.parametrize(
    ("commit", "cause"),
    [
        (Commit(3, (4,) * 5), "it sent Commit where tokens from position 2 on had to come"),
        (Commit(2, (4,) * 6), "it went on after the end of the text"),
    ],
)
async def test_commits_that_leave_a_gap_or_pass_the_limit(commit: Commit, cause: str) -> None:
    def answer(message: EdgeMessage) -> list[CloudMessage]:
        return [commit] if isinstance(message, Decode) else []

    assert await caught(answer, drafts=False) == cause
