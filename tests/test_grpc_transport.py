"""The edge's link over gRPC: what it says of a stream that the verifier ended."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from acespec.cloud_verifier.server import ServerOptions, VerifierServer
from acespec.compute import ThreadRunner
from acespec.edge_runtime.grpc_transport import VerifierChannel
from acespec.wire import ErrorCode, SessionError
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from verifier_client import VerifierClient, open_request

VOCAB = 16
RACES = 200


async def write_rounds(client: VerifierClient) -> None:
    """One after the other, until that fails."""
    while True:
        await client.send(client.next_round([]))
        await asyncio.sleep(0)


async def test_a_refusal_that_meets_a_message_on_its_way_keeps_its_reason() -> None:
    """Rounds are written until the refusal is there, so that it often arrives during a write."""
    target = TableTargetEngine(hashed_table(VOCAB, salt=3), VOCAB)
    runner = ThreadRunner("target")
    server = VerifierServer(target, runner, ServerOptions(port=0))
    reasons: Counter[ErrorCode] = Counter()
    async with VerifierChannel(await server.start()) as channel:
        for _ in range(RACES):
            client = VerifierClient(channel.session(), open_request(target, [1], model="other"))
            await client.begin()
            with pytest.raises(SessionError) as caught:
                await write_rounds(client)
            reasons[caught.value.code] += 1
            await client.link.close()
    await server.stop(0.0)
    runner.close()
    assert reasons == {ErrorCode.FAILED_PRECONDITION: RACES}
