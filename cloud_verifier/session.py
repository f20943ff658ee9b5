"""One session: the protocol's state machine between a link and a target engine.

No gRPC, no thread and no clock of its own, so that tests and simulations drive it through any link.

Between requests the engine's sequence holds all committed tokens but the last, which is fed together with the
next chain. What is committed depends on the requests and on shared randomness alone, never on time.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from acespec.cloud_verifier.acceptance import describe_target
from acespec.cloud_verifier.admission import check_open
from acespec.cloud_verifier.checker import Checker
from acespec.cloud_verifier.committed import CommittedText
from acespec.cloud_verifier.engine import TargetEngine
from acespec.cloud_verifier.inbox import Inbox
from acespec.compute import StepRunner
from acespec.speculation import Weighted
from acespec.wire import (
    MAX_CHAIN,
    SEQ_MODULUS,
    Close,
    CloudMessage,
    CloudTransport,
    Codec,
    Commit,
    Decode,
    EndVerdict,
    ErrorCode,
    MoreDraws,
    MoreTarget,
    Open,
    Opened,
    RejectVerdict,
    Resume,
    Round,
    SessionError,
    SparseTarget,
    TargetDraws,
    TokenVerdict,
    decode_first,
    token_bits,
)
from acespec.wire import verifier_pb2 as pb
from acespec.wire.errors import malformed

logger = logging.getLogger(__name__)

PREFILL_CHUNK = 512
"""Prompt tokens fed in one step: bounds its memory, and how long other sessions wait for their turn."""


@dataclass(frozen=True)
class SessionLimits:
    """What a session may ask for."""

    max_chain: int = MAX_CHAIN


def no_latency(num_tokens: int) -> float:  # noqa: ARG001 - a latency model's signature
    """Real steps take their own time."""
    return 0.0


async def serve_session(
    link: CloudTransport,
    engine: TargetEngine,
    runner: StepRunner,
    *,
    limits: SessionLimits | None = None,
    latency_ms: Callable[[int], float] = no_latency,
    session_id: bytes | None = None,
) -> None:
    """Serve one session until the edge closes it.

    ``latency_ms`` tells the runner what a forward of n tokens is expected to take (simulations only). Raises
    ``SessionError`` with what the edge is to be told; a failure of the verifier itself is INTERNAL and says
    only where the log has the details. The engine's sequence is freed however the session ends.
    """
    session_id = secrets.token_bytes(8) if session_id is None else session_id
    try:
        first = await link.receive()
        if first is None:
            return
        request = decode_first(first)
        if not isinstance(request, Open):
            raise malformed("sessions cannot be resumed yet")
        check_open(request, engine.info)
        checker = Checker(request, engine, runner, latency_ms)
        try:
            await _serve(link, request, checker, limits or SessionLimits(), session_id)
        finally:
            await checker.free()
    except SessionError as error:
        logger.info("session %s ended: %s", session_id.hex(), error.code.value)
        logger.debug("session %s: %s", session_id.hex(), error.message)
        raise
    except Exception as error:
        logger.exception("session %s failed", session_id.hex())
        raise SessionError(
            ErrorCode.INTERNAL,
            f"the verifier failed; its log has the reason under session {session_id.hex()}; try again",
        ) from error


async def _serve(
    link: CloudTransport, request: Open, checker: Checker, limits: SessionLimits, session_id: bytes
) -> None:
    codec = Codec(request.vocab_size, request.mode)
    inbox = Inbox(link, codec.decode_edge)
    session = Session(request, checker, codec, link, inbox, limits)
    try:
        await session.begin(session_id)
        while True:
            received = await inbox.next()
            message = received.message
            if isinstance(message, Close):
                return
            elif isinstance(message, MoreDraws):
                await session.more_draws(message)
            elif isinstance(message, Open | Resume):
                raise malformed("the session is open already: open another stream for another session")
            else:
                await session.answer(message, received.arrived)
    finally:
        inbox.stop()


@dataclass(frozen=True)
class Rejection:
    """Residual mode: the edge is drawing the token at ``position`` from ``target``."""

    target: Weighted
    position: int
    due: set[int]
    """Indexes at which further draws may be asked for: each follows draws that were sent."""


class Session:
    """The state of one session. Methods raise ``SessionError`` for a request that breaks the protocol."""

    def __init__(
        self,
        request: Open,
        checker: Checker,
        codec: Codec,
        link: CloudTransport,
        inbox: Inbox,
        limits: SessionLimits,
    ) -> None:
        self._request = request
        self._checker = checker
        self._codec = codec
        self._link = link
        self._inbox = inbox
        self._limits = limits
        self._token_bits = token_bits(request.vocab_size)
        self._text = CommittedText(request, checker.info.max_context)
        self._rejection: Rejection | None = None
        self._next_seq = 0
        self._last: Round | Decode | None = None
        self._answers: list[pb.CloudMessage] = []

    async def begin(self, session_id: bytes) -> None:
        """Answer ``Open``, then prefill all committed tokens but the last, a chunk at a time."""
        info = self._checker.info
        opened = Opened(
            session_id=session_id,
            epoch=0,
            model=info.name,
            fingerprint=info.fingerprint,
            max_context=info.max_context,
            max_chain=self._limits.max_chain,
        )
        await self._link.send(self._codec.encode_cloud(opened))
        prefix = self._text.tokens[:-1]
        for start in range(0, len(prefix), PREFILL_CHUNK):
            if self._inbox.closed:
                return
            await self._checker.prefill(prefix[start : start + PREFILL_CHUNK])

    async def answer(self, request: Round | Decode, arrived: float) -> None:
        """Answer the next request, or the last one again."""
        if self._last is not None and request.seq == self._last.seq:
            if request != self._last:
                raise malformed(f"request {request.seq} was answered before and now differs")
            for message in self._answers:
                await self._link.send(message)
            return
        if request.seq != self._next_seq:
            raise malformed(f"request {request.seq} came where {self._next_seq} is due")
        self._settle(request)
        self._last, self._answers = request, []
        self._next_seq = (self._next_seq + 1) % SEQ_MODULUS
        if isinstance(request, Round):
            await self._round(request, arrived)
        else:
            await self._decode(request, arrived)

    async def more_draws(self, request: MoreDraws) -> None:
        """Answer with what follows the draws sent so far, or with an answer given before."""
        rejection = self._rejection
        if rejection is None or request.position != rejection.position:
            raise malformed(f"no draws are due for position {request.position}")
        if request.first_index not in rejection.due:
            raise malformed(f"no draws are due from index {request.first_index} on")
        target = self._describe(rejection, request.first_index)
        await self._link.send(self._codec.encode_cloud(MoreTarget(target)))

    async def _round(self, request: Round, arrived: float) -> None:
        self._check_chain(request.chain)
        # The target's context may end before the request's own limit; the edge cannot know while its first
        # round travels with Open. The cut looks at positions alone, so it biases nothing.
        chain = request.chain[: self._text.remaining - 1]
        decision, times = await self._checker.check(self._text, chain, request.weights[: len(chain)], arrived)
        self._text.append(chain[: decision.accepted])
        if decision.rejected_by is not None:
            self._rejection = Rejection(decision.rejected_by, position=len(self._text.tokens), due=set())
            target = self._describe(self._rejection, first_index=0)
            await self._answer(RejectVerdict(request.seq, decision.accepted, target, times))
        elif decision.next_token is None:
            await self._answer(EndVerdict(request.seq, decision.accepted, times))
        else:
            self._text.append((decision.next_token,))
            await self._answer(TokenVerdict(request.seq, decision.accepted, decision.next_token, times))

    async def _decode(self, request: Decode, arrived: float) -> None:
        """Commit up to ``count`` tokens, each by a step of its own: other sessions get their turn."""
        for _ in range(request.count):
            decision, times = await self._checker.check(self._text, (), (), arrived)
            assert decision.next_token is not None
            position = len(self._text.tokens)
            self._text.append((decision.next_token,))
            await self._answer(Commit(position, (decision.next_token,), times.compute_ms))
            if self._text.finished or self._inbox.closed:
                return
            arrived = asyncio.get_running_loop().time()

    def _settle(self, request: Round | Decode) -> None:
        """Commit the token the edge resampled, and check that both sides have the same committed tokens."""
        if self._rejection is None and request.resampled is not None:
            raise malformed("a resampled token came though no chain token was rejected")
        if self._rejection is not None:
            if request.resampled is None:
                raise malformed("the token that replaces the rejected one is missing")
            if not self._rejection.target.weight_of(request.resampled):
                raise malformed("the resampled token is outside the target's support")
            self._text.append((request.resampled,))
            self._rejection = None
        if request.prefix_check != self._text.check:
            raise malformed(
                f"edge and cloud disagree about the {len(self._text.tokens)} committed tokens; "
                "reopen the session with the committed tokens"
            )
        if self._text.finished:
            raise malformed("the generation has ended: close the session")

    def _check_chain(self, chain: Sequence[int]) -> None:
        room = self._request.token_limit - len(self._text.tokens) - 1
        if len(chain) > min(room, self._limits.max_chain):
            raise malformed(
                f"a chain of {len(chain)} tokens came where at most {min(room, self._limits.max_chain)} may"
            )
        if any(token in self._text.end_token_ids for token in chain[:-1]):
            raise malformed("the chain goes on after an end token")

    async def _answer(self, message: CloudMessage) -> None:
        """Send a part of the answer to the request under way, and keep it in case the request is repeated."""
        encoded = self._codec.encode_cloud(message)
        self._answers.append(encoded)
        await self._link.send(encoded)

    def _describe(self, rejection: Rejection, first_index: int) -> SparseTarget | TargetDraws:
        request = self._request
        target = describe_target(
            rejection.target, request.seed, rejection.position, first_index, self._token_bits
        )
        if isinstance(target, TargetDraws):
            rejection.due.add(first_index + len(target.ids))
        return target
