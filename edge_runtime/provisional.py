"""The provisional text: what the draft model goes on with while nobody can verify it.

It is one line of drafted tokens behind the committed ones, the chain under way first. Each token is drawn by
the rule chains are drawn by, from randomness keyed by its position, so behind the same committed tokens it is
the very token a chain would have had there, whenever it is drawn. When the verifier is back the line is cut
into chains that need no drafting; the first token the target wants otherwise ends it, with all that hangs on
it.

Why this biases nothing. In coupled mode a chain is a guess at the target's picks, and no guess changes them.
In residual mode a token may be proposed whenever it was drawn from the distribution whose weights are sent,
and whether it is proposed must not depend on what it is. So it is: chains are cut by the same lengths as
without an outage, and a token of the line is proposed at its position exactly if all before it were committed
as they stand, which draws at earlier positions decide. What the target draws behind a fully accepted chain is
a draw of its own; that the line had the same token there decides only whether what follows was drafted behind
the right text.
"""

from __future__ import annotations

from collections.abc import Sequence

from acespec.edge_runtime.drafter import Chain, DraftedToken, Drafter
from acespec.edge_runtime.outcome_tree import Outcome


class ProvisionalLine:
    """Drafted tokens behind the committed ones, of which the first are a chain under way.

    Every token of the line but the last has a row behind those of the committed tokens, and no other row is
    used.
    """

    def __init__(
        self, drafter: Drafter, committed: Sequence[int], sent: Chain, drafted: Sequence[DraftedToken]
    ) -> None:
        """``drafted`` begins with the tokens of ``sent``. ``committed`` must not change before `settle`.

        Forgets the rows of a tree that was grown behind ``sent``.
        """
        assert list(drafted[: len(sent)]) == sent.drafted
        self._drafter = drafter
        self._committed = committed
        self._sent = sent
        self._line = Chain(list(drafted))
        num_rows = len(committed) + len(drafted) - 1
        drafter.engine.truncate(min(drafter.engine.num_rows, num_rows))

    @property
    def tokens(self) -> list[int]:
        return self._line.tokens

    def can_extend(self, remaining: int) -> bool:
        """Whether a token can follow, in a text with room for ``remaining`` behind the committed ones."""
        room = min(remaining, self._drafter.max_chain(len(self._committed)))
        return len(self._line) < room and not self._drafter.ends(self._line)

    async def extend(self) -> None:
        """Draft one more token: one engine step."""
        await self._drafter.draft(self._committed, self._line, len(self._line) + 1)

    def can_grow(self) -> bool:
        """Never: with the verdict under way, the line is long enough."""
        return False

    async def grow(self) -> None:
        """As ``OutcomeTree.grow``, which ``can_grow`` never allows here."""
        raise AssertionError("a provisional line does not grow while the link is up")

    def rank_of(self, outcome: Outcome, horizon: int) -> int | None:
        """As ``OutcomeTree.rank_of``."""
        accepted, token = outcome
        if accepted >= len(self._line):
            return None
        drafted = self._line.drafted[accepted]
        exclude = drafted.token if accepted < len(self._sent) else None
        position = len(self._committed) + accepted
        ranked = self._drafter.candidates(drafted.row, position, horizon, exclude)
        return ranked.index(token) + 1 if token in ranked else horizon + 1

    def settle(self, accepted: int, next_token: int | None) -> Chain | None:
        """End the round: what is left of the line if the text goes on as it says, else None.

        Keeps the rows of what is committed and of what is left.
        """
        drafted = self._line.drafted
        if next_token is not None and accepted < len(drafted) and drafted[accepted].token == next_token:
            rest = drafted[accepted + 1 :]  # the rows already stand for the committed tokens and these
            return Chain(rest) if rest else None
        engine = self._drafter.engine
        engine.truncate(min(engine.num_rows, len(self._committed) + accepted))
        return None
