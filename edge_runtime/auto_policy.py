"""Speculate in rounds where that wins, and else let the cloud decode: in a race, wherever it runs one.

The cloud begins: it needs nothing that is not known, and its first token is there as soon as it can be. While
it decodes, acceptance is learned beside the stream, and in coupled mode what is drafted goes up: such a race
(``race_policy``) costs no more than the cloud alone. The cloud is asked for a piece at a time and to go on
in time before that ends (``EdgeSession.decode``), so that it never stands idle; to speculate is not to ask
it. The chain is drafted while the last tokens of the piece are on their way.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

from acespec.edge_runtime.beside_draft import BesideDraft
from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.decoded_stream import DecodedStream
from acespec.edge_runtime.drafter import Chain, Drafter
from acespec.edge_runtime.mode_switch import ModeSwitch, Outlook
from acespec.edge_runtime.policies import RoundsPolicy
from acespec.edge_runtime.race_draft import RaceDraft
from acespec.edge_runtime.race_forecast import race_pays
from acespec.edge_runtime.session import EdgeSession
from acespec.wire import AcceptanceMode

FIRST_PIECE = 4
"""Tokens the cloud is asked for at first: few, so that speculation that wins begins soon."""
UNKNOWN_PIECE = 8
"""Likewise where the cloud may race but has not said so: a forward may commit several."""
RACE_PIECE = 24
"""Tokens it is asked for at a time in a race, which rounds seldom beat."""
RACE_MARGIN = 10
"""Tokens that a forward of a race commits at most, or nearly: so many must be due for each."""
PIECES = 2, 16
"""Tokens the cloud is asked for at a time, besides those it computes in a round trip: least and most."""
PIECE_SHARE = 0.25
"""Of the text so far that a piece is between them: so much more must be known to decide anew."""


class AutoPolicy:
    """Switches between the cloud's own decoding, the race and rounds."""

    def __init__(self, drafter: Drafter, controller: Controller, switch: ModeSwitch | None = None) -> None:
        self._drafter = drafter
        self._controller = controller
        self._switch = switch or ModeSwitch()
        self._rounds = RoundsPolicy(drafter, controller)
        self._drafted = Chain()
        """What is drafted behind the committed tokens, between two stretches."""
        self._speculates = False
        """Whether rounds are next."""
        self._newest = 0
        """Tokens of the newest piece that the cloud was asked for."""

    async def run(self, session: EdgeSession) -> AsyncIterator[list[int]]:
        self._speculates = False
        while session.finished is None:
            stretch = self._speculate(session) if self._speculates else self._decode(session)
            async for tokens in stretch:
                yield tokens

    async def _speculate(self, session: EdgeSession) -> AsyncIterator[list[int]]:
        """Run rounds until the cloud is to decode."""

        def goes_on(round_ms: float, num_tokens: int) -> bool:
            return session.finished is not None or self._stays(session, round_ms, num_tokens)

        async for tokens in self._rounds.rounds(session, self._drafted, goes_on):
            yield tokens
        self._drafted = self._rounds.drafted
        self._speculates = False

    async def _decode(self, session: EdgeSession) -> AsyncIterator[list[int]]:
        """Let the cloud decode, alone or in a race, until rounds are to begin or the other of these."""
        controller, races = self._controller, self._is_to_race(session)
        drafting: BesideDraft | RaceDraft
        if races:
            drafting = RaceDraft(session, self._drafter, controller)
        else:
            drafting = BesideDraft(session, self._drafter, controller.outcomes, self._drafted)
        drafting.begin()
        try:
            if session.tokens_due == 0:  # else it was asked to race, and does not
                first = FIRST_PIECE
                if races:
                    first = RACE_PIECE if session.may_race else UNKNOWN_PIECE
                await session.decode(min(first, session.remaining), races)
            self._newest = session.tokens_due
            stream = DecodedStream(session, self._drafter, controller)
            goes_on = True
            while session.finished is None and session.tokens_due > 0:
                commit = await stream.receive()
                drafting.notice(commit)
                if stream.since_ms is not None and session.is_racing:
                    self._switch.observe_race(stream.since_ms, len(commit.tokens), controller.cloud_ms)
                if races and not session.may_race:
                    yield list(commit.tokens)
                    return
                if goes_on and session.finished is None:
                    goes_on = await self._ask_on(session, drafting, races)
                yield list(commit.tokens)
        finally:
            self._drafted = await drafting.end()

    async def _ask_on(self, session: EdgeSession, drafting: BesideDraft | RaceDraft, races: bool) -> bool:
        """Ask for more in time, unless this is to end: then return False, and a chain is drafted."""
        due, ahead = session.tokens_due, self._ahead(races)
        if due > ahead or due >= self._newest:  # one request on its way at a time
            return True
        if self._enters(session):
            self._speculates = True
            plan = self._controller.plan(len(session.committed) + due)
            residual = session.request.mode is AcceptanceMode.RESIDUAL
            drafting.prepare(plan.redraft if residual else plan.gamma)
            return False
        if races is not self._is_to_race(session):
            return False
        piece = RACE_PIECE if races else self._piece(session, ahead)
        more = min(ahead + piece, session.remaining) - due
        if more > 0:
            self._newest = more
            await session.decode(more, races)
        return True

    def _is_to_race(self, session: EdgeSession) -> bool:
        """Whether the cloud is to race where it decodes. Before it has said that it does not, it may."""
        if session.request.mode is not AcceptanceMode.COUPLED:
            return False
        if session.opened is None:
            return True
        return race_pays(
            session.opened.eagerness,
            self._controller.cloud_ms,
            lambda: self._controller.race_ms(len(session.committed)),
        )

    def _ahead(self, races: bool) -> int:
        """Tokens that must be due still when more are asked for: what the cloud computes in a round trip."""
        controller = self._controller
        forwards = (controller.round_trip.mean_ms + controller.round_trip.spread_ms) / max(
            controller.cloud_ms, 1e-3
        )
        if races:
            return RACE_MARGIN + math.ceil(RACE_MARGIN * forwards)
        return math.ceil(forwards) + 1

    def _piece(self, session: EdgeSession, ahead: int) -> int:
        """Tokens between two decisions: so many that one of them is there before the next are asked for."""
        least, most = PIECES
        generated = len(session.committed) - len(session.request.prompt)
        return max(min(max(int(PIECE_SHARE * generated), least), most), ahead + 1)

    def _enters(self, session: EdgeSession) -> bool:
        num_committed = len(session.committed) + session.tokens_due
        if self._drafter.max_chain(num_committed) < 1:
            return False
        outlook = self._outlook(session, num_committed, session.remaining - session.tokens_due)
        return self._switch.enters(outlook, num_committed - len(session.request.prompt))

    def _stays(self, session: EdgeSession, round_ms: float, num_tokens: int) -> bool:
        """Whether rounds go on after one that took ``round_ms`` and committed so many tokens."""
        controller, num_committed = self._controller, len(session.committed)
        expected_ms = controller.forecast(num_committed, 0.0).round_ms
        self._switch.observe_round(round_ms, expected_ms, num_tokens, controller.cloud_ms)
        outlook = self._outlook(session, num_committed, session.remaining)
        return not self._switch.leaves(outlook, num_committed - len(session.request.prompt))

    def _outlook(self, session: EdgeSession, num_committed: int, tokens_left: int) -> Outlook:
        controller = self._controller
        decoding_ms = controller.cloud_ms
        if self._is_to_race(session):
            decoding_ms = min(decoding_ms, controller.race_ms(num_committed))
        return Outlook(
            decoding_ms,
            lambda errors: controller.forecast(num_committed, errors).ms_per_token,
            controller.round_trip.mean_ms,
            tokens_left,
        )
