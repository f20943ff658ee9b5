"""The race: the cloud decodes on and on, and takes along what was drafted by then.

In coupled mode the text is fixed before anyone computes it, so edge and cloud can both go ahead: a forward of
the target commits its own token, and before that as many drafted ones as stand on its way. With nothing
drafted in time this is the cloud's own decoding. Where the server does not race, another policy takes over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.drafter import Drafter
from acespec.edge_runtime.policies import Policy
from acespec.edge_runtime.race_draft import RaceDraft
from acespec.edge_runtime.session import EdgeSession
from acespec.edge_runtime.step_clock import now_ms

FIRST_PIECE = 16
"""Tokens the cloud is asked for before it said whether it races: it does not stand idle until then."""


class RacePolicy:
    """Drafts a tree beside the cloud's decoding and sends it up as it grows."""

    def __init__(self, drafter: Drafter, controller: Controller, fallback: Policy) -> None:
        """``fallback`` goes on where the server does not race."""
        self._drafter = drafter
        self._controller = controller
        self._fallback = fallback
        self._last_ms: float | None = None
        """When the last commit came, if the next one's distance will say what a forward takes."""

    async def run(self, session: EdgeSession) -> AsyncIterator[list[int]]:
        await session.decode(min(FIRST_PIECE, session.remaining), race=True)
        drafting = RaceDraft(session, self._drafter, self._controller)
        drafting.begin()
        asked_on = False
        try:
            while session.finished is None:
                tokens = await self._receive(session, drafting)
                if not session.may_race:
                    yield tokens
                    break
                if not asked_on and session.finished is None:
                    asked_on = True
                    more = session.remaining - session.tokens_due
                    if more > 0:
                        await session.decode(more, race=True)
                yield tokens
        finally:
            await drafting.end()
        if session.finished is None:
            async for tokens in self._fallback.run(session):
                yield tokens

    async def _receive(self, session: EdgeSession, drafting: RaceDraft) -> list[int]:
        """Take and commit what the next forwards gave."""
        statistics, controller = session.statistics, self._controller
        disturbances = statistics.disturbances
        commit = await session.receive_commit()
        arrived_ms = now_ms()
        if statistics.disturbances == disturbances:
            since_ms = None if self._last_ms is None else arrived_ms - self._last_ms
            controller.observe_commit(since_ms, 1, commit.compute_ms)
        if session.connection.opening_ms is not None:
            controller.observe_opening(session.connection.opening_ms)
        self._last_ms = arrived_ms
        session.commit(list(commit.tokens))
        statistics.decoded += len(commit.tokens)
        if session.may_race and statistics.disturbances == disturbances:
            # After an outage, what is sent again comes in one piece too.
            statistics.raced += len(commit.tokens) - 1
        drafting.notice(commit)
        return list(commit.tokens)
