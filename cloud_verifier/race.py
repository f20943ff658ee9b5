"""A session's part in the race: it decodes on, and every forward takes along the drafts that have come."""

from __future__ import annotations

import asyncio

from acespec.cloud_verifier.acceptance import Walk
from acespec.cloud_verifier.batcher import Timed
from acespec.cloud_verifier.committed import CommittedText
from acespec.cloud_verifier.draft_tree import NO_BRANCHES, Branches, DraftTree
from acespec.cloud_verifier.observer import RaceReport
from acespec.cloud_verifier.race_width import NodeWorth, Offer
from acespec.cloud_verifier.seats import Seat
from acespec.cloud_verifier.shared import Shared
from acespec.cloud_verifier.steps import Steps
from acespec.cloud_verifier.tenants import Tenant
from acespec.wire import DRAFTED_MODULUS, Decode, Draft, DraftsHeard, Eagerness, Round


class Race:
    """What one session drafts, and the steps that commit what came true.

    Drafts only ever make a step commit more of the same text: the tokens are the target's own picks.
    """

    def __init__(
        self, label: str, tenant: Tenant, text: CommittedText, seat: Seat, steps: Steps, shared: Shared
    ) -> None:
        self._label = label
        self._tenant = tenant
        self._text = text
        self._seat = seat
        self._steps = steps
        self._shared = shared
        self._tree = DraftTree(text.tokens, shared.limits.max_race_nodes)
        self._worth = NodeWorth()
        self._seq: int | None = None
        self._epoch: int | None = None
        self._drafted = asyncio.Event()
        self._received = 0
        self._kept = 0
        self._heard_at = 0.0
        """When the last draft came; seconds of the loop's clock."""
        self._told = 0
        """Up to which id a commit has told that nodes have come."""

    def begin(self, request: Round | Decode, epoch: int) -> None:
        """Take drafts for ``request`` from now on, if it is a race, and for no other.

        For another request, and over another stream, the edge numbers its nodes anew.
        """
        if not (isinstance(request, Decode) and request.race):
            self._seq = None
            return
        if (request.seq, epoch) != (self._seq, self._epoch):
            self._tree = DraftTree(self._text.tokens, self._shared.limits.max_race_nodes)
            self._told = 0
        self._seq, self._epoch = request.seq, epoch

    def take(self, draft: Draft, epoch: int) -> bool:
        """Take drafts for what is under way at once; False if they are for something else."""
        if (draft.seq, epoch) != (self._seq, self._epoch):
            return False
        self._heard_at = asyncio.get_running_loop().time()
        self._tree.advance()
        self._received += len(draft.nodes)
        self._kept += self._tree.add(draft)
        if len(self._tree):
            self._drafted.set()
            if self._seat.sequence is not None:
                self._shared.batcher.press(self._seat.sequence)
        return True

    def heard(self) -> DraftsHeard | None:
        """What a commit that is sent now tells of drafts; None if none has come since the one before."""
        if self._tree.next_id == self._told:
            return None
        self._told = self._tree.next_id
        age_ms = 1000.0 * (asyncio.get_running_loop().time() - self._heard_at)
        return DraftsHeard(self._told % DRAFTED_MODULUS, age_ms)

    async def ready(self, goal: int) -> None:
        """Where forwards are to be few: wait for drafts, not for ever, nor where they could bring nothing."""
        limits = self._shared.limits
        if limits.race_eagerness is Eagerness.COST and self._depth(goal) > 0 and not self._has_drafts():
            self._drafted.clear()
            patience = asyncio.get_running_loop().call_later(
                limits.race_patience_ms / 1000.0, self._drafted.set
            )
            try:
                await self._drafted.wait()
            finally:
                patience.cancel()

    async def step(self, goal: int, arrived: float) -> float:
        """Commit one token or more, at most up to position ``goal``; returns the forward's milliseconds."""
        await self._steps.fill(lambda: True)
        spare = self._shared.limits.race_eagerness is Eagerness.BALANCED and not self._has_drafts()
        timed = await self._steps.race(lambda offer: self._grow(offer, goal), spare=spare)
        walk = timed.result
        self._text.append(walk.tokens)
        if walk.num_nodes:
            self._worth.learn(walk.num_nodes, walk.path)
        self._report(timed, arrived)
        return 1000.0 * (timed.ended - timed.started)

    def _grow(self, offer: Offer, goal: int) -> Branches:
        """The nodes for the forward that is about to begin."""
        self._tree.advance()
        room = self._seat.max_tokens - len(self._text.tokens)
        most = min(len(self._tree), room, self._shared.limits.max_race_width)
        if most <= 0 or self._depth(goal) <= 0:
            return NO_BRANCHES
        now = asyncio.get_running_loop().time()
        width = min(self._worth.width(offer, most), self._shared.ledger.surplus(self._tenant, now))
        branches = self._tree.select(width, last_position=goal - 2)
        self._shared.ledger.take(self._tenant, len(branches.tokens), now)
        return branches

    def _depth(self, goal: int) -> int:
        """How many drafted tokens in a row may come true before ``goal``: the target's own follows them."""
        return goal - len(self._text.tokens) - 1

    def _has_drafts(self) -> bool:
        self._tree.advance()
        return len(self._tree) > 0

    def _report(self, timed: Timed[Walk], arrived: float) -> None:
        self._shared.observer.race(
            RaceReport(
                session=self._label,
                tenant=self._tenant.name,
                drafted=timed.result.num_nodes,
                committed=len(timed.result.tokens),
                received=self._received,
                ignored=self._received - self._kept,
                arrived=arrived,
                started=timed.started,
                ended=timed.ended,
            )
        )
        self._received = self._kept = 0
