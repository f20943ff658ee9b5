"""Speculate where that wins, and else let the cloud decode by itself.

The cloud begins: it needs nothing that is not known, and its first token is there as soon as it can be. While
it decodes, acceptance is learned beside the stream. It is asked for a piece at a time and to go on in time
before that ends (``EdgeSession.decode``), so that it never stands idle; to speculate is not to ask it. The
chain is drafted while the last tokens of the piece are on their way.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

from acespec.edge_runtime.beside_draft import BesideDraft
from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.drafter import Chain, Drafter
from acespec.edge_runtime.mode_switch import ModeSwitch, Outlook
from acespec.edge_runtime.policies import RoundsPolicy
from acespec.edge_runtime.session import EdgeSession
from acespec.edge_runtime.step_clock import now_ms
from acespec.wire import AcceptanceMode

FIRST_PIECE = 4
"""Tokens the cloud is asked for at first: few, so that speculation that wins begins soon."""
PIECES = 2, 16
"""Tokens the cloud is asked for at a time, besides those it computes in a round trip: least and most."""
PIECE_SHARE = 0.25
"""Of the text so far that a piece is between them: so much more must be known to decide anew."""


class AutoPolicy:
    """Switches between the cloud's own decoding and rounds."""

    def __init__(self, drafter: Drafter, controller: Controller, switch: ModeSwitch | None = None) -> None:
        self._drafter = drafter
        self._controller = controller
        self._switch = switch or ModeSwitch()
        self._rounds = RoundsPolicy(drafter, controller)
        self._drafted = Chain()
        """What is drafted behind the committed tokens, between two stretches."""
        self._newest = 0
        """Tokens of the newest piece that the cloud was asked for."""

    async def run(self, session: EdgeSession) -> AsyncIterator[list[int]]:
        speculates = False
        while session.finished is None:
            stretch = self._speculate(session) if speculates else self._decode(session)
            async for tokens in stretch:
                yield tokens
            speculates = not speculates

    async def _speculate(self, session: EdgeSession) -> AsyncIterator[list[int]]:
        """Run rounds until the cloud is to decode."""

        def goes_on(round_ms: float, num_tokens: int) -> bool:
            return session.finished is not None or self._stays(session, round_ms, num_tokens)

        async for tokens in self._rounds.rounds(session, self._drafted, goes_on):
            yield tokens
        self._drafted = self._rounds.drafted

    async def _decode(self, session: EdgeSession) -> AsyncIterator[list[int]]:
        """Let the cloud decode until rounds are to begin."""
        beside = BesideDraft(session, self._drafter, self._controller.outcomes, self._drafted)
        beside.begin()
        try:
            self._newest = min(FIRST_PIECE, session.remaining)
            await session.decode(self._newest)
            last_ms: float | None = None
            goes_on = True
            while session.finished is None and session.tokens_due > 0:
                tokens, last_ms = await self._receive(session, last_ms)
                beside.notice()
                if goes_on and session.finished is None:
                    goes_on = await self._ask_on(session, beside)
                yield tokens
        finally:
            self._drafted = await beside.end()

    async def _receive(self, session: EdgeSession, last_ms: float | None) -> tuple[list[int], float]:
        """Take and commit the cloud's next tokens, the last of which came at ``last_ms``.

        Returns them and when they came.
        """
        statistics, controller = session.statistics, self._controller
        waiting_since, model_ms = now_ms(), self._drafter.model_ms
        disturbances = statistics.disturbances
        commit = await session.receive_commit()
        arrived_ms = now_ms()
        statistics.waiting_ms += max(arrived_ms - waiting_since - self._drafter.model_ms + model_ms, 0.0)
        if statistics.disturbances == disturbances:
            since_ms = None if last_ms is None else arrived_ms - last_ms
            controller.observe_commit(since_ms, len(commit.tokens), commit.compute_ms)
        if session.connection.opening_ms is not None:
            controller.observe_opening(session.connection.opening_ms)
        session.commit(list(commit.tokens))
        statistics.decoded += len(commit.tokens)
        return list(commit.tokens), arrived_ms

    async def _ask_on(self, session: EdgeSession, beside: BesideDraft) -> bool:
        """Ask for more in time, unless rounds are to begin: then return False, and a chain is drafted."""
        round_trip, due = self._controller.round_trip, session.tokens_due
        in_flight = (round_trip.mean_ms + round_trip.spread_ms) / max(self._controller.cloud_ms, 1e-3)
        ahead = math.ceil(in_flight) + 1
        if due > ahead or due >= self._newest:  # one request on its way at a time
            return True
        if self._enters(session):
            plan = self._controller.plan(len(session.committed) + due)
            residual = session.request.mode is AcceptanceMode.RESIDUAL
            beside.depth = plan.redraft if residual else plan.gamma
            beside.notice()
            return False
        more = min(ahead + self._piece(session, ahead), session.remaining) - due
        if more > 0:
            self._newest = more
            await session.decode(more)
        return True

    def _piece(self, session: EdgeSession, ahead: int) -> int:
        """Tokens between two decisions: so many that one of them is there before the next are asked for."""
        least, most = PIECES
        generated = len(session.committed) - len(session.request.prompt)
        return max(min(max(int(PIECE_SHARE * generated), least), most), ahead + 1)

    def _enters(self, session: EdgeSession) -> bool:
        num_committed = len(session.committed) + session.tokens_due
        if self._drafter.max_chain(num_committed) < 1:
            return False
        outlook = self._outlook(num_committed, session.remaining - session.tokens_due)
        return self._switch.enters(outlook, num_committed - len(session.request.prompt))

    def _stays(self, session: EdgeSession, round_ms: float, num_tokens: int) -> bool:
        """Whether rounds go on after one that took ``round_ms`` and committed so many tokens."""
        controller, num_committed = self._controller, len(session.committed)
        expected_ms = controller.forecast(num_committed, 0.0).round_ms
        self._switch.observe_round(round_ms, expected_ms, num_tokens, controller.cloud_ms)
        outlook = self._outlook(num_committed, session.remaining)
        return not self._switch.leaves(outlook, num_committed - len(session.request.prompt))

    def _outlook(self, num_committed: int, tokens_left: int) -> Outlook:
        controller = self._controller
        return Outlook(
            controller.cloud_ms,
            lambda errors: controller.forecast(num_committed, errors).ms_per_token,
            controller.round_trip.mean_ms,
            tokens_left,
        )
