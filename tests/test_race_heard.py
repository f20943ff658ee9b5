"""What a race's commits tell of the drafts that came: each once, and how long ago."""

from __future__ import annotations

import asyncio

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.limits import Limits
from acespec.wire import Commit, DraftsHeard, Eagerness
from racing_edge import RacingEdge, race_request, racing, tree_engine


async def next_commit(edge: RacingEdge) -> Commit:
    """The next commit, noted as the edge does."""
    message = await edge.client.receive()
    assert isinstance(message, Commit)
    edge.client.committed += message.tokens
    return message


def test_each_draft_is_told_of_once_with_its_age() -> None:
    async def check() -> None:
        engine = tree_engine()
        async with racing(engine, Limits(race_eagerness=Eagerness.LATENCY)) as verifier:
            edge = RacingEdge(verifier, race_request(engine, token_limit=200))
            await edge.begin()
            assert (await next_commit(edge)).drafts is None
            await asyncio.sleep(0.004)  # the forward under way takes 10 ms
            await edge.draft_chain([0, 1, 2])
            heard = (await next_commit(edge)).drafts
            assert heard is not None
            assert heard.next_id == 3
            assert abs(heard.age_ms - 6.0) < 0.2, "as near as a duration's byte says it"
            assert (await next_commit(edge)).drafts is None
            await edge.draft_chain([0])
            await edge.draft_chain([1])
            told = (await next_commit(edge)).drafts
            assert isinstance(told, DraftsHeard)
            assert told.next_id == 5
            await edge.resume()
            await edge.draft_chain([0, 1])
            ids = [
                commit.drafts.next_id
                for commit in [await next_commit(edge) for _ in range(4)]
                if commit.drafts
            ]
            assert ids == [2], "they are counted from 0 over another stream"
            await edge.leave()

    run_virtual(check())
