"""The edge's half of the protocol, by hand: sends what a test tells it to and keeps the committed tokens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from acespec.cloud_verifier.engine import TargetEngine
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.tenants import ANONYMOUS, Tenant
from acespec.cloud_verifier.verifier import Verifier
from acespec.compute import InlineRunner, StepRunner
from acespec.speculation import SamplingParams
from acespec.wire import (
    SEQ_MODULUS,
    AcceptanceMode,
    CloudMessage,
    Codec,
    Commit,
    Decode,
    EdgeMessage,
    EdgeTransport,
    EndVerdict,
    MoreDraws,
    MoreTarget,
    Open,
    Opened,
    PrefixCheck,
    RejectVerdict,
    Round,
    SessionError,
    SparseTarget,
    TargetDraws,
    TokenVerdict,
    Verdict,
    memory_link,
)
from acespec.wire.memory import MemoryCloud


def open_request(engine: TargetEngine, prompt: Sequence[int], **changes: object) -> Open:
    """An ``Open`` that ``engine`` accepts, with ``changes`` to its fields."""
    request = Open(
        model="",
        fingerprint="",
        vocabulary_hash=engine.info.vocabulary_hash,
        vocab_size=engine.info.vocab_size,
        end_token_ids=(),
        sampling=SamplingParams(),
        seed=1,
        mode=AcceptanceMode.COUPLED,
        committed=tuple(prompt),
        prompt_length=len(prompt),
        token_limit=len(prompt) + 24,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


class VerifierClient:
    """One session over ``link``."""

    def __init__(self, link: EdgeTransport, request: Open) -> None:
        self.link = link
        self.request = request
        self.codec = Codec(request.vocab_size, request.mode)
        self.committed = list(request.committed)
        self.opened: Opened | None = None
        self.seq = 0

    async def begin(self) -> None:
        """Send ``Open``; its answer is read with the first other one."""
        await self.send(self.request)

    async def send(self, message: EdgeMessage) -> None:
        await self.link.send(self.codec.encode_edge(message))

    async def receive(self) -> CloudMessage:
        message = self.codec.decode_cloud(await self.link.receive())
        if isinstance(message, Opened):
            self.opened = message
            return await self.receive()
        return message

    async def receive_opened(self) -> Opened:
        """The answer to ``Open`` or ``Resume``, if nothing else was read before."""
        message = self.codec.decode_cloud(await self.link.receive())
        assert isinstance(message, Opened)
        self.opened = message
        return message

    @property
    def remaining(self) -> int:
        return self.request.token_limit - len(self.committed)

    @property
    def finished(self) -> bool:
        """Whether generation has ended, as the edge sees it."""
        generated = len(self.committed) > self.request.prompt_length
        return self.remaining <= 0 or (generated and self.committed[-1] in self.request.end_token_ids)

    def next_round(
        self, chain: Sequence[int], weights: Sequence[int] = (), resampled: int | None = None
    ) -> Round:
        """The next round; ``resampled`` must be among the committed tokens already."""
        check = PrefixCheck(self.committed).value
        return Round(self.seq, check, tuple(chain), tuple(weights), resampled)

    def next_decode(self, count: int, resampled: int | None = None) -> Decode:
        return Decode(self.seq, PrefixCheck(self.committed).value, count, resampled)

    async def round(
        self, chain: Sequence[int], weights: Sequence[int] = (), resampled: int | None = None
    ) -> Verdict:
        """Send a round and commit what the verdict says."""
        await self.send(self.next_round(chain, weights, resampled))
        self.seq = (self.seq + 1) % SEQ_MODULUS
        return self._commit(await self.receive(), chain)

    def take(self, answer: CloudMessage, chain: Sequence[int]) -> Verdict:
        """Commit what the verdict on the round just sent by hand says."""
        self.seq = (self.seq + 1) % SEQ_MODULUS
        return self._commit(answer, chain)

    def _commit(self, verdict: CloudMessage, chain: Sequence[int]) -> Verdict:
        assert isinstance(verdict, TokenVerdict | EndVerdict | RejectVerdict)
        self.committed += chain[: verdict.accepted]
        if isinstance(verdict, TokenVerdict):
            self.committed.append(verdict.next_token)
        return verdict

    async def more_draws(self, position: int, first_index: int) -> SparseTarget | TargetDraws:
        """Ask for more draws."""
        await self.send(MoreDraws(position, first_index))
        message = await self.receive()
        assert isinstance(message, MoreTarget)
        return message.target

    async def decode(self, count: int, resampled: int | None = None) -> list[int]:
        """Let the cloud decode up to ``count`` tokens, and commit them."""
        await self.send(self.next_decode(count, resampled))
        self.seq = (self.seq + 1) % SEQ_MODULUS
        tokens: list[int] = []
        while len(tokens) < count and not self.finished:
            commit = await self.receive()
            assert isinstance(commit, Commit)
            assert commit.position == len(self.committed)
            tokens += commit.tokens
            self.committed += commit.tokens
        return tokens


async def all_answers(client: VerifierClient) -> None:
    """Read to the end of the stream, which raises why it ended."""
    while True:
        await client.receive()


async def refused(client: VerifierClient, reason: str, *messages: EdgeMessage) -> SessionError:
    """Send ``messages`` and expect the session to end, in one line that holds ``reason``."""
    for message in messages:
        await client.send(message)
    with pytest.raises(SessionError, match=reason) as caught:
        await all_answers(client)
    assert "\n" not in caught.value.message
    return caught.value


async def serve_stream(verifier: Verifier, cloud: MemoryCloud, tenant: Tenant = ANONYMOUS) -> None:
    """Serve one stream and end it as the gRPC service does."""
    try:
        await verifier.serve(cloud, tenant)
    except SessionError as error:
        await cloud.close(error)
    else:
        await cloud.close()


@contextlib.asynccontextmanager
async def session(
    engine: TargetEngine,
    request: Open,
    runner: StepRunner | None = None,
    limits: Limits | None = None,
    *,
    begin: bool = True,
) -> AsyncIterator[VerifierClient]:
    """A session in this process that has sent its ``Open``; its server has ended when the block is left."""
    edge, cloud = memory_link()
    verifier = Verifier(engine, runner or InlineRunner(), limits)
    serving = asyncio.ensure_future(serve_stream(verifier, cloud))
    client = VerifierClient(edge, request)
    if begin:
        await client.begin()
    try:
        yield client
    finally:
        await edge.close()
        await serving
        await verifier.drain(0.0)


async def decoded_text(engine: TargetEngine, request: Open) -> list[int]:
    """What the cloud decodes by itself: the committed tokens at the end."""
    async with session(engine, request) as client:
        await client.decode(client.remaining)
        return client.committed
