"""A session in simulated time whose reports go to an observer."""

from __future__ import annotations

import asyncio

from acespec.bench.virtual_clock import run_virtual
from acespec.cloud_verifier.observer import Observer
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner
from acespec.wire import Close, memory_link
from fake_draft import hashed_table
from fake_target import TableTargetEngine
from verifier_client import VerifierClient, decoded_text, open_request, serve_stream

VOCAB = 12
FORWARD_S = 0.01
PROMPT = (1, 2, 3, 4, 5)
CHAINS = (3, 1, 2)
"""Lengths; the last token of each is wrong, those before it are right."""
ACCEPTED = 3
DECODED = 4


def observed_session(observer: Observer) -> None:
    """Have ``CHAINS`` checked, let ``DECODED`` tokens be decoded, and close."""

    async def main() -> None:
        engine = TableTargetEngine(hashed_table(VOCAB, salt=1), VOCAB)
        request = open_request(engine, PROMPT)
        truth = await decoded_text(engine, request)
        verifier = Verifier(
            engine, InlineRunner(), observer=observer, latency_ms=lambda _: 1000.0 * FORWARD_S
        )
        edge, cloud = memory_link()
        serving = asyncio.ensure_future(serve_stream(verifier, cloud))
        client = VerifierClient(edge, request)
        await client.begin()
        for length in CHAINS:
            start = len(client.committed)
            *right, last = truth[start : start + length]
            await client.round([*right, (last + 1) % VOCAB])
        await client.decode(DECODED)
        await client.send(Close())
        await serving
        await verifier.drain(0.0)

    run_virtual(main())
