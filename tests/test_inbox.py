"""Drafts are taken up as they come, requests wait; a flood of either is held back."""

from __future__ import annotations

import asyncio

import pytest

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.inbox import NODES_AT_ONCE, NODES_PER_DRAFT, NODES_PER_S, DraftPace, Inbox
from acespec.wire import (
    AcceptanceMode,
    Close,
    Codec,
    Decode,
    Draft,
    DraftNode,
    EdgeMessage,
    SessionError,
    memory_link,
)
from acespec.wire.memory import MemoryCloud, MemoryEdge

CODEC = Codec(300, AcceptanceMode.COUPLED)


class Taker:
    """Takes drafts of one request, and notes when."""

    def __init__(self) -> None:
        self.seq = 0
        self.taken: list[Draft] = []

    def take(self, draft: Draft) -> bool:
        if draft.seq == self.seq:
            self.taken.append(draft)
        return draft.seq == self.seq


def draft(seq: int = 0, first_id: int = 0, count: int = 1) -> Draft:
    return Draft(seq, first_id, 3, (DraftNode(7),) * count)


def inbox() -> tuple[MemoryEdge, MemoryCloud, Taker, Inbox]:
    edge, cloud = memory_link()
    taker = Taker()
    return edge, cloud, taker, Inbox(cloud, CODEC.decode_edge, taker.take)


async def send(edge: MemoryEdge, *messages: EdgeMessage) -> None:
    for message in messages:
        await edge.send(CODEC.encode_edge(message))


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_drafts_pass_a_request_that_waits() -> None:
    edge, _, taker, box = inbox()
    first = Decode(0, 0, 5, race=True)
    await send(edge, first, draft(0, 0), Decode(0, 0, 9, race=True), draft(0, 1))
    assert (await box.next()).message == first
    await turns()
    assert [taken.first_id for taken in taker.taken] == [0, 1], "the second one behind a request that waits"
    assert (await box.next()).message == Decode(0, 0, 9, race=True)
    box.stop()


async def test_drafts_of_the_request_before_them_wait_for_it() -> None:
    edge, _, taker, box = inbox()
    await send(edge, Decode(1, 0, 5, race=True), draft(1), draft(1, 1))
    await turns()
    assert taker.taken == []
    await box.next()
    taker.seq = 1  # the session begins with it at once
    await turns()
    assert [taken.first_id for taken in taker.taken] == [0, 1]
    box.stop()


async def test_drafts_for_nothing_are_dropped_and_hold_nothing_up() -> None:
    edge, _, taker, box = inbox()
    await send(edge, draft(5), draft(6), Close())
    assert (await box.next()).message == Close()
    assert taker.taken == []
    assert box.closed


async def test_a_malformed_message_is_told_in_its_turn() -> None:
    edge, _, _, box = inbox()
    await send(edge, Decode(0, 0, 5), Decode(1, 0, 5))
    edge_message = CODEC.encode_edge(draft())
    edge_message.draft = b"\0"
    await edge.send(edge_message)
    await box.next()
    await box.next()
    with pytest.raises(SessionError, match="draft: 1 bytes are too few"):
        await box.next()
    assert not box.closed


def test_a_flood_of_drafts_is_read_no_faster_than_it_may() -> None:
    """200 of 200 nodes are sent at once: what comes of it is spread over the time that is paid for."""

    async def main() -> None:
        edge, _, taker, box = inbox()
        await send(edge, *[draft(0, k * 200, 200) for k in range(200)])
        await asyncio.sleep(1.0)
        most = (NODES_PER_S + NODES_AT_ONCE) / (200 + NODES_PER_DRAFT)
        assert most - 2 <= len(taker.taken) <= most + 2
        box.stop()

    run_virtual(main())


def test_what_a_fast_edge_drafts_is_never_held_back() -> None:
    pace = DraftPace()
    assert all(pace.pause_s(64, 0.0085 * step) == 0.0 for step in range(2000))
