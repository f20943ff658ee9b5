"""Residual mode over a memory link: what the cloud draws, what it sends down, and what it refuses.

That texts have the target's distribution is tested where whole sequences are simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from acespec.speculation import (
    DRAFT_BITS,
    Purpose,
    SamplingParams,
    Weighted,
    distribution,
    propose,
    resample_draws,
    resample_sparse,
    target_bits,
    uniform,
    weighted,
)
from acespec.wire import (
    AcceptanceMode,
    EdgeMessage,
    ErrorCode,
    MoreDraws,
    MoreTarget,
    Open,
    RejectVerdict,
    SparseTarget,
    TargetDraws,
)
from fake_draft import hashed_table
from fake_target import Table, TableTargetEngine
from verifier_client import VerifierClient, decoded_text, open_request, refused, session

VOCAB = 12
RESIDUAL = AcceptanceMode.RESIDUAL


def engine(vocab: int = VOCAB) -> TableTargetEngine:
    return TableTargetEngine(hashed_table(vocab, salt=5), vocab)


class ResidualClient:
    """Drafts from its own table and draws the replacement of a rejected token, as the edge does."""

    def __init__(self, client: VerifierClient, draft_table: Table) -> None:
        self.client = client
        self.draft_table = draft_table
        self.resampled: int | None = None
        self.forms: list[type] = []

    def draft(self, path: list[int]) -> Weighted:
        return weighted(distribution(self.draft_table(tuple(path)), SamplingParams()), DRAFT_BITS)

    async def round(self, length: int) -> None:
        client = self.client
        chain: list[int] = []
        weights: list[int] = []
        for _ in range(length):
            draft = self.draft([*client.committed, *chain])
            position = len(client.committed) + len(chain)
            u = uniform(client.request.seed, Purpose.DRAFT, position)
            chain.append(int(np.ravel(draft.pick(u))[0]))
            weights.append(draft.weight_of(chain[-1]))
            if chain[-1] in client.request.end_token_ids:
                break
        verdict = await client.round(chain, weights, self.resampled)
        self.resampled = None
        if isinstance(verdict, RejectVerdict):
            self.resampled = await self.resample(verdict.target)
            client.committed.append(self.resampled)

    async def resample(self, target: SparseTarget | TargetDraws) -> int:
        client = self.client
        draft, position = self.draft(client.committed), len(client.committed)
        while True:
            self.forms.append(type(target))
            ids, weights = np.array(target.ids), np.array(target.weights)
            if isinstance(target, SparseTarget):
                whole = Weighted(ids, weights, target.bits)
                return resample_sparse(whole, draft, client.request.seed, position)
            first = target.first_index
            token = resample_draws(ids, weights, target.bits, draft, client.request.seed, position, first)
            if token is not None:
                return token
            await client.send(MoreDraws(position, first + len(ids)))
            more = await client.receive()
            assert isinstance(more, MoreTarget)
            target = more.target


async def residual_text(request: Open, lengths: list[int], vocab: int, draft_salt: int) -> list[int]:
    target = engine(vocab)
    async with session(target, request) as client:
        edge = ResidualClient(client, hashed_table(vocab, draft_salt))
        for i in range(1000):
            if client.finished:
                return client.committed
            if lengths[i % len(lengths)] < 0:
                await client.decode(2, edge.resampled)
                edge.resampled = None
            else:
                await edge.round(min(lengths[i % len(lengths)], client.remaining - 1))
    raise AssertionError("the generation does not end")


@pytest.mark.parametrize("vocab", [6, 80])
@pytest.mark.parametrize("draft_salt", [5, 6])
def test_residual_rounds_and_decoding_mix_and_end(vocab: int, draft_salt: int) -> None:
    for seed in range(20):
        request = open_request(engine(vocab), [1, 2], mode=RESIDUAL, seed=seed, end_token_ids=(3,))
        text = asyncio.run(residual_text(request, [3, 0, -1, 5], vocab, draft_salt))
        assert len(text) <= request.token_limit
        assert 3 not in text[2:-1]
        assert len(text) == request.token_limit or text[-1] == 3


async def test_residual_decoding_draws_from_the_rounded_target() -> None:
    target = engine()
    request = open_request(target, [1, 2], mode=RESIDUAL, seed=9)
    text = await decoded_text(target, request)
    table = hashed_table(VOCAB, salt=5)
    for position in range(2, len(text)):
        exact = distribution(table(tuple(text[:position])), request.sampling)
        rounded = weighted(exact, target_bits(len(exact.ids)))
        assert text[position] == propose(rounded, 9, position, 0, 1)[0]


async def test_more_draws_go_on_where_the_first_ended_and_repeat() -> None:
    """Index j of a position is the same draw whichever message brings it and however often."""
    vocab = 400
    flat = np.zeros(vocab, np.float32)
    target = TableTargetEngine(lambda path: flat, vocab)
    # The largest draft weight makes acceptance as unlikely as it can be: 1 in 400 here.
    request = open_request(target, [1, 2], mode=RESIDUAL)
    async with session(target, request) as client:
        verdict = await client.round([7], [1 << DRAFT_BITS])
        assert isinstance(verdict, RejectVerdict)
        answers = [verdict.target]
        for first_index in (8, 24, 56, 24):
            await client.send(MoreDraws(2, first_index))
            more = await client.receive()
            assert isinstance(more, MoreTarget)
            answers.append(more.target)
        assert all(isinstance(answer, TargetDraws) for answer in answers)
        assert [len(answer.ids) for answer in answers] == [8, 16, 32, 64, 32]
        assert answers[4] == answers[2]
        rounded = Weighted(np.arange(vocab), *uniform_weights(vocab))
        drawn = [token for answer in answers[:4] for token in answer.ids]
        assert drawn == propose(rounded, request.seed, 2, 0, 120).tolist()
        # The next would be 128 of 400 tokens, then 256: the whole is never smaller until 512.
        for first_index, form in ((120, TargetDraws), (248, TargetDraws), (504, SparseTarget)):
            await client.send(MoreDraws(2, first_index))
            more = await client.receive()
            assert isinstance(more, MoreTarget)
            assert isinstance(more.target, form)


def uniform_weights(vocab: int) -> tuple[np.ndarray, int]:
    bits = target_bits(vocab)
    exact = distribution(np.zeros(vocab, np.float32), SamplingParams())
    return weighted(exact, bits).weights, bits


async def resampling_client(client: VerifierClient) -> None:
    """Bring a residual session to where the edge is about to resample."""
    verdict = await client.round([7], [1 << DRAFT_BITS])
    assert isinstance(verdict, RejectVerdict)


@pytest.mark.parametrize(
    ("reason", "make"),
    [
        ("replaces the rejected one is missing", lambda c: [c.next_round([1], [9])]),
        ("outside the target's support", lambda c: [c.next_round([1], [9], resampled=0)]),
        ("no draws are due for position 3", lambda c: [MoreDraws(3, 8)]),
        ("no draws are due from index 9", lambda c: [MoreDraws(2, 9)]),
        ("no draws are due from index 24", lambda c: [MoreDraws(2, 24)]),
    ],
)
async def test_resampling_requests_that_break_the_protocol(
    reason: str, make: Callable[[VerifierClient], list[EdgeMessage]]
) -> None:
    logits = np.zeros(400, np.float32)
    logits[:7] = -1e4
    target = TableTargetEngine(lambda path: logits, 400)
    async with session(target, open_request(target, [1, 2], mode=RESIDUAL)) as client:
        await resampling_client(client)
        error = await refused(client, reason, *make(client))
    assert error.code is ErrorCode.INVALID_ARGUMENT


async def test_a_resampled_token_where_none_is_due() -> None:
    target = engine()
    async with session(target, open_request(target, [1, 2], mode=RESIDUAL)) as client:
        await refused(client, "no chain token was rejected", client.next_round([1], [9], resampled=2))
    async with session(target, open_request(target, [1, 2], mode=RESIDUAL)) as client:
        await refused(client, "no draws are due for position 2", MoreDraws(2, 8))
