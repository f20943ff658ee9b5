"""One generation as the edge sees it: committed tokens, the link, and the requests made of the cloud."""

from __future__ import annotations

from acespec.edge_runtime.drafter import Chain
from acespec.edge_runtime.request import FinishReason, GenerationRequest
from acespec.edge_runtime.statistics import Statistics
from acespec.edge_runtime.step_clock import now_ms
from acespec.wire import (
    SEQ_MODULUS,
    AcceptanceMode,
    Close,
    CloudMessage,
    Codec,
    Commit,
    Decode,
    EdgeTransport,
    ErrorCode,
    MoreDraws,
    MoreTarget,
    Open,
    Opened,
    PrefixCheck,
    Round,
    SessionError,
    SparseTarget,
    TargetDraws,
    Verdict,
    encode_open,
)


class EdgeSession:
    """Holds the truth about a generation (the committed tokens) and speaks the protocol for its policy."""

    def __init__(
        self, transport: EdgeTransport, request: GenerationRequest, vocab_size: int, statistics: Statistics
    ) -> None:
        self.request = request
        self.committed: list[int] = list(request.prompt)
        self.finished: FinishReason | None = None
        self.opened: Opened | None = None
        """What the server said of itself; it arrives with or before the first answer."""
        self.token_limit = request.token_limit
        """Absolute position at which generation ends: the request's, or where the target's context does."""
        self.statistics = statistics
        self.transport = transport
        self._codec = Codec(vocab_size, request.mode)
        self._vocab_size = vocab_size
        self._check = PrefixCheck()
        self._check.update(request.prompt)
        self._seq = 0
        self._resampled: int | None = None
        self._end_token_ids = frozenset(request.end_token_ids)

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return self.token_limit - len(self.committed)

    async def open(self, model: str = "", fingerprint: str = "", vocabulary_hash: str = "") -> None:
        """Introduce the request. The answer is not waited for: the first round may follow at once."""
        request = self.request
        message = Open(
            model=model,
            fingerprint=fingerprint,
            vocabulary_hash=vocabulary_hash,
            vocab_size=self._vocab_size,
            end_token_ids=request.end_token_ids,
            sampling=request.sampling,
            seed=request.seed,
            mode=request.mode,
            committed=request.prompt,
            prompt_length=len(request.prompt),
            token_limit=request.token_limit,
        )
        await self.transport.send(encode_open(message))

    async def send_round(self, chain: Chain) -> None:
        """Send ``chain`` for one check."""
        residual = self.request.mode is AcceptanceMode.RESIDUAL
        weights = tuple(d.weight for d in chain.drafted) if residual else ()
        message = Round(self._seq, self._check.value, tuple(chain.tokens), weights, self._resampled)
        await self.transport.send(self._codec.encode_edge(message))
        self.statistics.rounds += 1
        self.statistics.forwards += 1

    async def receive_verdict(self) -> tuple[Verdict, float]:
        """The verdict on the round under way, and when it arrived (loop milliseconds)."""
        message = await self._receive()
        arrived_ms = now_ms()
        if not isinstance(message, Verdict) or message.seq != self._seq:
            raise _unexpected(message, f"the verdict on request {self._seq}")
        self._finish_request()
        return message, arrived_ms

    async def decode(self, count: int) -> None:
        """Ask the cloud to decode ``count`` tokens by itself; ``receive_commit`` takes them."""
        await self.transport.send(
            self._codec.encode_edge(Decode(self._seq, self._check.value, count, self._resampled))
        )
        self._finish_request()

    async def receive_commit(self) -> Commit:
        """The next tokens the cloud committed by itself."""
        message = await self._receive()
        if not isinstance(message, Commit) or message.position != len(self.committed):
            raise _unexpected(message, f"tokens from position {len(self.committed)} on")
        self.statistics.forwards += len(message.tokens)
        return message

    async def more_draws(self, position: int, first_index: int) -> SparseTarget | TargetDraws:
        """Residual mode: every draw so far failed; ask for more. Costs a round trip."""
        await self.transport.send(self._codec.encode_edge(MoreDraws(position, first_index)))
        message = await self._receive()
        if not isinstance(message, MoreTarget):
            raise _unexpected(message, "more draws")
        target = message.target
        if isinstance(target, TargetDraws) and target.first_index != first_index:
            raise protocol_error(f"it sent draws from {target.first_index} on where {first_index} is due")
        return target

    def commit(self, tokens: list[int], resampled: bool = False) -> None:
        """Make ``tokens`` final. ``resampled``: the last one was drawn here, and the cloud must be told.

        Raises ``SessionError`` if the verifier let tokens follow the end of the text.
        """
        for token in tokens:
            if self.finished is not None:
                raise protocol_error("it went on after the end of the text")
            self.committed.append(token)
            if token in self._end_token_ids:
                self.finished = FinishReason.END_TOKEN
            elif self.remaining <= 0:
                self.finished = FinishReason.LENGTH
        self._check.update(tokens)
        self._resampled = tokens[-1] if resampled else None
        self.statistics.count_tokens(len(tokens))

    async def close(self) -> None:
        """Tell the cloud that nothing more comes."""
        await self.transport.send(self._codec.encode_edge(Close()))

    async def _receive(self) -> CloudMessage:
        message = self._codec.decode_cloud(await self.transport.receive())
        if isinstance(message, Opened) and self.opened is None:
            self.opened = message
            self.token_limit = min(self.token_limit, message.max_context)
            return await self._receive()
        return message

    def _finish_request(self) -> None:
        self._seq = (self._seq + 1) % SEQ_MODULUS


def protocol_error(cause: str) -> SessionError:
    """The error for a verifier that breaks the protocol; ``cause`` says what it did."""
    return SessionError(
        ErrorCode.INTERNAL,
        f"the verifier broke the protocol: {cause}; check that both sides run the same version of acespec",
    )


def _unexpected(message: CloudMessage, expected: str) -> SessionError:
    return protocol_error(f"it sent {type(message).__name__} where {expected} had to come")
