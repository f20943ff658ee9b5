"""The race: the cloud decodes on and on, and takes along what was drafted by then.

In coupled mode the text is fixed before anyone computes it, so edge and cloud can both go ahead: a forward of
the target commits its own token, and before that as many drafted ones as stand on its way. With nothing
drafted in time this is the cloud's own decoding. Where the server does not race, another policy takes over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.decoded_stream import DecodedStream
from acespec.edge_runtime.drafter import Drafter
from acespec.edge_runtime.policies import Policy
from acespec.edge_runtime.race_draft import RaceDraft
from acespec.edge_runtime.session import EdgeSession

FIRST_PIECE = 16
"""Tokens the cloud is asked for before it said whether it races: it does not stand idle until then."""


class RacePolicy:
    """Drafts a tree beside the cloud's decoding and sends it up as it grows."""

    def __init__(self, drafter: Drafter, controller: Controller, fallback: Policy) -> None:
        """``fallback`` goes on where the server does not race."""
        self._drafter = drafter
        self._controller = controller
        self._fallback = fallback

    async def run(self, session: EdgeSession) -> AsyncIterator[list[int]]:
        await session.decode(min(FIRST_PIECE, session.remaining), race=True)
        drafting = RaceDraft(session, self._drafter, self._controller)
        drafting.begin()
        stream = DecodedStream(session, self._drafter, self._controller)
        asked_on = False
        try:
            while session.finished is None:
                commit = await stream.receive()
                drafting.notice(commit)
                if not session.may_race:
                    yield list(commit.tokens)
                    break
                if not asked_on and session.finished is None:
                    asked_on = True
                    more = session.remaining - session.tokens_due
                    if more > 0:
                        await session.decode(more, race=True)
                yield list(commit.tokens)
        finally:
            await drafting.end()
        if session.finished is None:
            async for tokens in self._fallback.run(session):
                yield tokens
