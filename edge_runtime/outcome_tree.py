"""The outcome tree: drafted continuations keyed by how the round under way may end.

A branch belongs to one outcome ``(accepted, next_token)``; it holds the chain that will be sent if the round
ends that way. Looking an outcome up is one dictionary access.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from acespec.edge_runtime.drafter import Chain, Drafter
from acespec.speculation import CandidateRow, LogitsRow, tree_mask

Outcome = tuple[int, int]
"""``(accepted, next_token)``: how a round ended."""


@dataclass
class Branch:
    """The continuation drafted for one outcome."""

    outcome: Outcome
    max_length: int
    """Longest chain this outcome may be followed by."""
    chain: Chain = field(default_factory=Chain)
    rows: list[int] = field(default_factory=list)
    """Buffer rows of the root and of all chain tokens but the last (which is pending)."""
    parent: int = -1
    """Tree offset of the token the next one fed hangs on; -1 is the committed prefix."""

    @property
    def pending(self) -> int:
        """The token the next step feeds: the root, then the chain's last token."""
        return self.chain.drafted[-1].token if self.chain.drafted else self.outcome[1]


class OutcomeTree:
    """All branches of one round, grown in lockstep: one step feeds the pending token of every growing branch.

    The tree's rows are numbered by *offset* behind the committed rows: offsets ``0..gamma-1`` are the chain's
    tokens, whose last is fed by the first growth step (its row predicts what follows full acceptance).
    """

    def __init__(self, drafter: Drafter, committed: Sequence[int], sent: Chain, bucket: int) -> None:
        """``sent`` is the chain under way behind ``committed``; steps are at most ``bucket`` tokens wide.

        ``committed`` must not change before the tree is settled.
        """
        self._drafter = drafter
        self._committed = committed
        self._sent = sent
        self._bucket = bucket
        self._max_chain = self._token_limit = 0
        self._branches: dict[Outcome, Branch] = {}
        self._num_path_rows = drafter.engine.num_rows
        """Rows of committed and chain tokens, contiguous from 0; tree rows begin behind them."""
        num_chain_rows = max(self._num_path_rows - len(committed), 0)
        assert not sent.drafted or num_chain_rows == len(sent) - 1, "every chain token but the last has a row"
        self._parents: list[int] = list(range(-1, num_chain_rows - 1))
        self._full_acceptance_branches = 0
        self._last_row: CandidateRow | None = None
        self._undrawn: dict[Outcome, LogitsRow] = {}
        """Logits of the last step by branch. All are drawn from when another step needs the tokens; if the
        verdict comes first, only its own branch's: the rest would stand between verdict and next round."""
        self._last_logits: LogitsRow | None = None
        """Likewise those of the chain's last token."""

    def plant(self, allocation: Sequence[int], max_chain: int, token_limit: int) -> None:
        """Choose the branches: ``allocation[k]`` outcomes with k accepted tokens, k = 0..len(chain).

        ``max_chain`` is the longest next chain, before the limits of context and tokens. End tokens get no
        branch: nothing follows them.
        """
        self._max_chain, self._token_limit = max_chain, token_limit
        for accepted, drafted in enumerate(self._sent.drafted):
            self._plant_at(accepted, drafted.row, int(allocation[accepted]), exclude=drafted.token)
        if self._sent.drafted and not self._drafter.ends(self._sent) and self._room(len(self._sent)) > 0:
            self._full_acceptance_branches = int(allocation[len(self._sent)])

    def rank_of(self, outcome: Outcome, horizon: int) -> int | None:
        """How ``outcome``'s token ranked among the candidates there, 1 the best; ``horizon`` + 1 beyond it.

        None if growth never reached the row they come from.
        """
        accepted, token = outcome
        if accepted < len(self._sent):
            rejected = self._sent.drafted[accepted]
            row, exclude = rejected.row, rejected.token
        elif self._last_row is not None:
            row, exclude = self._last_row, None
        else:
            return None
        ranked = self._drafter.candidates(row, len(self._committed) + accepted, horizon, exclude)
        return ranked.index(token) + 1 if token in ranked else horizon + 1

    def lookup(self, outcome: Outcome) -> Branch | None:
        """The branch for ``outcome`` if it has at least one token ready, else None: one dictionary access."""
        branch = self._branches.get(outcome)
        if branch is None:
            return None
        self._draw(branch)
        return branch if branch.chain.drafted else None

    @property
    def branches(self) -> list[Branch]:
        """All branches planted so far, in that order."""
        self._draw_all()
        return list(self._branches.values())

    def can_grow(self) -> bool:
        """Whether another step would compute anything, and has rows to put it in.

        Draws first from what the last step computed, so ask only when another step is wanted.
        """
        self._draw_all()
        has_work = self._wants_last_row() or any(self._growing(b) for b in self._branches.values())
        return has_work and self._drafter.engine.num_rows + self._bucket <= self._drafter.engine.max_rows

    def settle(self, accepted: int, next_token: int | None) -> Chain | None:
        """End the round: keep the rows of what is committed now and, on a hit, of its branch's chain.

        Returns that chain (all but its last token have rows), or None on a miss. ``next_token`` None: the
        text ended. Copies the branch's rows, never the context's or the tree's.
        """
        num_kept = min(len(self._committed) + accepted, self._num_path_rows)
        branch = None if next_token is None else self.lookup((accepted, next_token))
        if branch is None:
            self._drafter.engine.truncate(num_kept)
            return None
        self._drafter.engine.compact(num_kept, branch.rows)
        return branch.chain

    async def grow(self) -> None:
        """One lockstep step: feed the pending token of every growing branch."""
        self._draw_all()
        feeds_last = self._wants_last_row()
        growing = [b for b in self._branches.values() if self._growing(b)]
        # The shortest first: with more branches than the bucket holds, none is left behind.
        growing.sort(key=lambda branch: len(branch.chain))
        growing = growing[: self._bucket - int(feeds_last)]
        num_committed, last = len(self._committed), len(self._sent) - 1
        feeds = [(b.pending, num_committed + b.outcome[0] + len(b.chain), b.parent) for b in growing]
        if feeds_last:  # first, so that the chain's rows stay contiguous
            feeds.insert(0, (self._sent.drafted[last].token, num_committed + last, last - 1))
        tokens, positions, parents = zip(*feeds, strict=True)

        first_row, first_offset = self._drafter.engine.num_rows, len(self._parents)
        self._parents += parents
        mask = tree_mask(np.asarray(self._parents, dtype=np.int64), num_committed, len(tokens))
        logits = await self._drafter.step(tokens, positions, mask, "growth")
        for index, branch in enumerate(growing, start=int(feeds_last)):
            branch.rows.append(first_row + index)
            branch.parent = first_offset + index
            self._undrawn[branch.outcome] = logits[index]
        if feeds_last:
            self._num_path_rows += 1
            self._last_logits = logits[0]

    def _draw_all(self) -> None:
        for branch in list(self._branches.values()):
            self._draw(branch)
        if self._last_logits is not None:
            self._plant_full_acceptance(self._last_logits)
            self._last_logits = None

    def _draw(self, branch: Branch) -> None:
        logits = self._undrawn.pop(branch.outcome, None)
        if logits is None:
            return
        accepted, root = branch.outcome
        before = (self._committed, self._sent.tokens[:accepted], [root], branch.chain.tokens)
        branch.chain.drafted.append(self._drafter.draw(logits, *before))

    def _plant_full_acceptance(self, logits: LogitsRow) -> None:
        self._last_row = self._drafter.row(logits, self._committed, self._sent.tokens)
        self._plant_at(len(self._sent), self._last_row, self._full_acceptance_branches, exclude=None)
        self._full_acceptance_branches = 0

    def _plant_at(self, accepted: int, row: CandidateRow, count: int, exclude: int | None) -> None:
        room = self._room(accepted)
        if room <= 0 or count <= 0:
            return
        ends = self._drafter.rules.end_token_ids
        ranked = self._drafter.candidates(row, len(self._committed) + accepted, count + len(ends), exclude)
        for token in [t for t in ranked if t not in ends][:count]:
            self._branches[accepted, token] = Branch((accepted, token), room, parent=accepted - 1)

    def _room(self, accepted: int) -> int:
        """Longest chain that may follow an outcome with ``accepted`` tokens."""
        num_committed = len(self._committed) + accepted + 1
        remaining = self._token_limit - num_committed
        return min(self._max_chain, remaining - 1, self._drafter.max_chain(num_committed))

    def _growing(self, branch: Branch) -> bool:
        return len(branch.chain) < branch.max_length and not self._drafter.ends(branch.chain)

    def _wants_last_row(self) -> bool:
        return self._full_acceptance_branches > 0 and self._last_logits is None
