"""A session's steps on the target: filling its sequence with committed tokens, and checking chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from acespec.cloud_verifier.acceptance import Decision, Walk, verify_coupled, verify_residual, walk_coupled
from acespec.cloud_verifier.batcher import Batcher, StepAbandonedError, Timed
from acespec.cloud_verifier.committed import CommittedText
from acespec.cloud_verifier.draft_tree import NO_BRANCHES, Branches
from acespec.cloud_verifier.engine import TargetEngine, TargetLogits
from acespec.cloud_verifier.race_width import Offer
from acespec.cloud_verifier.seats import Seat
from acespec.wire import AcceptanceMode, Open

PREFILL_CHUNK = 512
"""Committed tokens fed between two looks at whether anybody still waits for them."""


class Steps:
    """Runs one session's forwards, one at a time, on the sequence its seat has while it is held.

    Between checks the sequence holds all committed tokens but the last, which is fed with the next chain.
    Raises ``StepAbandonedError`` once the seat was left.
    """

    def __init__(
        self, request: Open, text: CommittedText, seat: Seat, batcher: Batcher, engine: TargetEngine
    ) -> None:
        self._request = request
        self._text = text
        self._seat = seat
        self._batcher = batcher
        self._engine = engine

    @property
    def missing(self) -> int:
        """Committed tokens to be fed before the next check."""
        return len(self._text.tokens) - 1 - self._seat.filled

    @property
    def unpaid(self) -> int:
        """Those of them that the tenant's rate was not charged for yet."""
        return max(0, len(self._text.tokens) - 1 - max(self._seat.filled, self._seat.paid))

    async def fill(self, wanted: Callable[[], bool]) -> None:
        """Feed the committed tokens the sequence lacks, a chunk at a time while ``wanted``."""
        deadline = self._batcher.prefill_deadline()  # of them all: later chunks become urgent as they wait
        while self.missing > 0 and wanted():
            start = self._seat.filled
            end = min(start + PREFILL_CHUNK, len(self._text.tokens) - 1)
            tokens = np.array(self._text.tokens[start:end], dtype=np.int64)
            await self._batcher.prefill(self._sequence(), tokens, deadline)
            self._seat.filled = end

    async def check(self, chain: Sequence[int], weights: Sequence[int]) -> Timed[Decision]:
        """One forward of the last committed token and ``chain``, and what it says about the chain.

        An empty chain decodes one token. ``weights`` are the chain's draft weights in residual mode. The text
        is left as it is; afterwards the sequence holds its tokens and the accepted ones.
        """
        sequence, text = self._sequence(), self._text
        length = len(text.tokens)
        tokens = np.array([text.tokens[-1], *chain], dtype=np.int64)

        def decide(logits: TargetLogits) -> Decision:
            decision = self._decide(logits, chain, weights)
            self._engine.keep(sequence, length + decision.accepted)
            return decision

        timed = await self._batcher.check(sequence, tokens, decide)
        self._seat.filled = length + timed.result.accepted
        return timed

    async def race(self, grow: Callable[[Offer], Branches], *, spare: bool) -> Timed[Walk]:
        """One forward of the last committed token, and of the nodes that ``grow`` brings as it begins.

        As ``check`` otherwise: afterwards the sequence holds the text's tokens and those of the path.
        """
        sequence, text = self._sequence(), self._text
        length = len(text.tokens)
        branches = NO_BRANCHES

        def bring(offer: Offer) -> Branches:
            nonlocal branches
            branches = grow(offer)
            return branches

        def decide(logits: TargetLogits) -> Walk:
            request = self._request
            walk = walk_coupled(
                logits, branches, request.sampling, text.counts, request.seed, length, text.end_token_ids
            )
            if branches.tokens:
                self._engine.keep(sequence, length, [length + node for node in walk.path])
            return walk

        timed = await self._batcher.race(sequence, text.tokens[-1], bring, decide, spare=spare)
        self._seat.filled = length + len(timed.result.path)
        return timed

    def _sequence(self) -> int:
        if self._seat.sequence is None:
            raise StepAbandonedError("the session ended between two steps")
        return self._seat.sequence

    def _decide(self, logits: TargetLogits, chain: Sequence[int], weights: Sequence[int]) -> Decision:
        request, text = self._request, self._text
        position = len(text.tokens)
        if request.mode is AcceptanceMode.COUPLED:
            return verify_coupled(
                logits, chain, request.sampling, text.counts, request.seed, position, text.end_token_ids
            )
        return verify_residual(
            logits, chain, weights, request.sampling, text.counts, request.seed, position, text.end_token_ids
        )
