"""A session's steps on the target: the prefill, and the forward that checks a chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from acespec.cloud_verifier.acceptance import Decision, verify_coupled, verify_residual
from acespec.cloud_verifier.committed import CommittedText
from acespec.cloud_verifier.engine import Feed, TargetEngine, TargetInfo
from acespec.cloud_verifier.sequence import OwnedSequence
from acespec.compute import StepRunner
from acespec.wire import AcceptanceMode, Open, ServerTimes


class Checker:
    """Runs a session's forwards and keeps the engine's sequence in step with the committed tokens.

    Between checks the sequence holds all committed tokens but the last, which is fed with the next chain.
    """

    def __init__(
        self,
        request: Open,
        engine: TargetEngine,
        runner: StepRunner,
        latency_ms: Callable[[int], float],
    ) -> None:
        self._request = request
        self._engine = engine
        self._sequence = OwnedSequence(engine, runner, min(request.token_limit, engine.info.max_context))
        self._latency_ms = latency_ms

    @property
    def info(self) -> TargetInfo:
        return self._engine.info

    async def free(self) -> None:
        """Free the engine's sequence, once no step runs on it."""
        await self._sequence.free()

    async def prefill(self, tokens: Sequence[int]) -> None:
        """Feed committed tokens."""
        engine, handle = self._engine, self._sequence.handle
        feed = Feed(handle, np.array(tokens, dtype=np.int64), num_logits=0)
        await self._sequence.run(lambda: engine.step([feed]), self._latency_ms(len(tokens)))

    async def check(
        self, text: CommittedText, chain: Sequence[int], weights: Sequence[int], arrived: float
    ) -> tuple[Decision, ServerTimes]:
        """One forward of the last committed token and ``chain``, and what it says about the chain.

        An empty chain decodes one token. ``weights`` are the chain's draft weights in residual mode.
        ``arrived`` is when the request came, by the loop's clock. ``text`` is left as it is; afterwards the
        sequence holds its tokens and the accepted ones.
        """
        engine, handle = self._engine, self._sequence.handle
        tokens = np.array([text.tokens[-1], *chain], dtype=np.int64)

        def step() -> Decision:
            (logits,) = engine.step([Feed(handle, tokens, num_logits=len(tokens))])
            decision = self._decide(logits, text, chain, weights)
            engine.rollback(handle, len(text.tokens) + decision.accepted)
            return decision

        timed = await self._sequence.run(step, self._latency_ms(len(tokens)))
        queue_ms = 1000.0 * max(0.0, timed.started - arrived)
        return timed.result, ServerTimes(queue_ms, compute_ms=1000.0 * (timed.ended - timed.started))

    def _decide(
        self, logits: NDArray[np.float32], text: CommittedText, chain: Sequence[int], weights: Sequence[int]
    ) -> Decision:
        params, seed, position = self._request.sampling, self._request.seed, len(text.tokens)
        if self._request.mode is AcceptanceMode.COUPLED:
            return verify_coupled(logits, chain, params, text.counts, seed, position, text.end_token_ids)
        return verify_residual(
            logits, chain, weights, params, text.counts, seed, position, text.end_token_ids
        )
