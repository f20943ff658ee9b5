"""What gRPC puts around messages, counted on real connections: what the simulated link takes it for."""

from __future__ import annotations

import pytest

from acespec.bench.lab.overhead import WireOverhead
from acespec.bench.link import DirectionShape, LinkShape
from acespec.bench.relay import Relay, Traffic
from acespec.edge_runtime.generate import GenerationResult, generate
from acespec.edge_runtime.grpc_transport import GrpcConnector
from acespec.edge_runtime.request import DraftSettings, GenerationRequest
from acespec.edge_runtime.session import SessionSettings, TargetIdentity
from fake_draft import TableDraftEngine
from fake_target import TableTargetEngine
from in_process import draft_model
from served_table import TABLE, VOCAB, running

OVERHEAD = WireOverhead()


async def carried(num_tokens: int, *, drafts: bool) -> tuple[GenerationResult, Traffic]:
    """Generate over a relay on loopback; returns what it carried as well, the whole connection's."""
    target = TableTargetEngine(TABLE, VOCAB, max_context=512)
    draft = TableDraftEngine(TABLE, VOCAB, buckets=(1, 8), max_context=512)
    async with running(target) as (_, address):
        host, port = address.rsplit(":", 1)
        relay = Relay((host, int(port)), LinkShape(DirectionShape(), DirectionShape()))
        relayed = await relay.start("127.0.0.1", 0)
        try:
            result = await generate(
                GrpcConnector("{}:{}".format(*relayed)),
                GenerationRequest((1, 2, 3), (), num_tokens, seed=1),
                VOCAB,
                draft_model(draft, 1.0) if drafts else None,
                DraftSettings(gamma=3, budget=8),
                SessionSettings(TargetIdentity(vocabulary_hash=target.info.vocabulary_hash)),
            )
        finally:
            await relay.close()
    return result, relay.traffic


@pytest.mark.parametrize("drafts", [False, True])
async def test_messages_have_on_the_wire_what_the_simulated_link_adds(drafts: bool) -> None:
    """In rounds each message answers one, in a stream of commits none does.

    Setting up is the same in both runs, give or take a window update at the beginning and the end.
    """
    (short, before), (long, after) = await carried(16, drafts=drafts), await carried(160, drafts=drafts)
    framing = OVERHEAD.message_bytes + (OVERHEAD.update_bytes if drafts else 0)
    num_up = long.metrics.messages_up - short.metrics.messages_up
    num_down = long.metrics.messages_down - short.metrics.messages_down
    payload_up = long.metrics.payload_bytes_up - short.metrics.payload_bytes_up
    payload_down = long.metrics.payload_bytes_down - short.metrics.payload_bytes_down
    assert num_down >= 30
    up, down = after.up - before.up - payload_up, after.down - before.down - payload_down
    assert up == pytest.approx(num_up * framing, abs=OVERHEAD.update_bytes)
    assert down == pytest.approx(num_down * framing, abs=OVERHEAD.update_bytes)
