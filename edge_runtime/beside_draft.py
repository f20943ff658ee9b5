"""Drafting beside the cloud's own decoding, to know how many drafted tokens would be accepted.

Wherever the stream of decoded tokens has got to, the next token is drafted, and compared with the one that
comes. That costs neither a round trip nor a message, and leaves the draft model's rows in step with the text.
While the link is down the line can go on as provisional text (``provisional`` tells why it may).
"""

from __future__ import annotations

import asyncio

from acespec.edge_runtime.drafter import Chain, DraftedToken, Drafter
from acespec.edge_runtime.outcome_estimates import OutcomeEstimates
from acespec.edge_runtime.session import EdgeSession
from acespec.speculation import DRAFT_BITS
from acespec.wire import AcceptanceMode, Commit


class BesideDraft:
    """A line of drafted tokens kept behind the committed ones while these grow.

    The draft model's steps run in a task of its own: a commit is never held up by one.
    """

    def __init__(
        self, session: EdgeSession, drafter: Drafter, outcomes: OutcomeEstimates, line: Chain
    ) -> None:
        """``line`` is what is drafted already; it has rows for all tokens but the last."""
        self.line = line
        self._depth = 1
        """Tokens kept drafted ahead: one tells what is accepted."""
        self._session = session
        self._drafter = drafter
        self._outcomes = outcomes
        self._known = list(session.committed)
        """The committed tokens that ``line`` is behind."""
        self._changed = asyncio.Event()
        self._ending = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Draft from now on."""
        self._task = asyncio.ensure_future(self._draft())

    def notice(self, _: Commit) -> None:
        """It has come, and is committed."""
        self._changed.set()

    def prepare(self, length: int) -> None:
        """Draft so many tokens ahead from now on: a chain that is ready to be sent."""
        self._depth = length
        self._changed.set()

    async def end(self) -> Chain:
        """Stop, once the step under way is over; returns what is drafted behind all that is committed."""
        assert self._task is not None
        self._ending = True
        self._changed.set()
        await self._task
        self._take_in()
        return self.line

    async def _draft(self) -> None:
        while not self._ending:
            self._take_in()
            if self._has_room():
                await self._drafter.draft(self._known, self.line, len(self.line) + 1, kind="beside")
                if self._session.outage.drafts_alone:
                    self._session.show_provisional(self.line.tokens)
            else:
                await self._session.outage.wait_beside(self._changed)

    def _has_room(self) -> bool:
        remaining = self._session.token_limit - len(self._known)
        room = min(self._drafter.max_chain(len(self._known)), remaining)
        depth = room if self._session.outage.drafts_alone else self._depth
        return len(self.line) < min(depth, room) and not self._drafter.ends(self.line)

    def _take_in(self) -> None:
        """Compare what was committed with the line, and keep of that what is still behind it."""
        for token in self._session.committed[len(self._known) :]:
            provisional = self._session.provisional[1:]
            if self.line.drafted:
                guess = self.line.drafted.pop(0)
                self._learn(guess, token)
                if guess.token != token:
                    self.line.drafted.clear()
                    provisional = []
                    engine = self._drafter.engine
                    engine.truncate(min(engine.num_rows, len(self._known)))
            self._known.append(token)
            self._session.show_provisional(provisional)

    def _learn(self, guess: DraftedToken, token: int) -> None:
        """The cloud decoded ``token`` where ``guess`` had been drafted.

        In residual mode the cloud's draw does not tell whether the guess would have been accepted, nor how
        likely the target thought the token. Whatever that was, a drafted token is accepted at least as often
        as the draft gives the cloud's token in the mean: sum(draft target) <= sum(min(draft, target)).
        """
        if self._session.request.mode is AcceptanceMode.RESIDUAL:
            assert guess.weights is not None
            self._outcomes.observe_chance(guess.weights.weight_of(token) / 2**DRAFT_BITS)
            return
        ranked = self._drafter.candidates(guess.row, len(self._known), self._outcomes.horizon + 1, None)
        self._outcomes.observe_beside(guess.confidence, ranked, guess.token, token)
