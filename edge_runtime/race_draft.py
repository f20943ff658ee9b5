"""The edge's part in a race: grow the tree, send of it what the link can take, and go along with the text."""

from __future__ import annotations

import asyncio
import math

from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.drafter import Chain, Drafter
from acespec.edge_runtime.node_values import Choice, CoupledValues, NodeValues
from acespec.edge_runtime.outcome_estimates import OutcomeEstimates
from acespec.edge_runtime.race_sender import RaceSender
from acespec.edge_runtime.race_tree import RaceNode, RaceTree
from acespec.edge_runtime.reliability import Reliability
from acespec.edge_runtime.session import EdgeSession
from acespec.edge_runtime.step_clock import now_ms
from acespec.speculation import CandidateRow
from acespec.wire import Commit

LEAST_STEP_VALUE = 0.05
"""Summed chances of the nodes of a step below which it is not worth its energy."""
RECHECK_S = 0.02
"""How long to wait before nodes that the link had no room for are offered again, if nothing happens."""
LEAST_WAIT_S = 5e-4
"""Clocks need not be able to wait for less."""
DEPTH = 4
"""Of a budget that is given without gamma, the part that is gamma's."""


class LearnedFromText:
    """Node values that tell the controller, too, what the text says of acceptance (as ``BesideDraft``)."""

    def __init__(self, values: NodeValues, drafter: Drafter, outcomes: OutcomeEstimates) -> None:
        self._values = values
        self._drafter = drafter
        self._outcomes = outcomes

    @property
    def reliability(self) -> Reliability:
        """Of the values themselves."""
        return self._values.reliability

    def choices(self, row: CandidateRow, position: int) -> list[Choice]:
        """As `NodeValues.choices`."""
        return self._values.choices(row, position)

    def observe(self, row: CandidateRow, position: int, token: int) -> None:
        """As `NodeValues.observe`: the draft's first candidate is the token it had drafted."""
        self._values.observe(row, position, token)
        ranked = self._drafter.candidates(row, position, self._outcomes.horizon + 1, None)
        self._outcomes.observe_beside(row.prob_of(ranked[0]), ranked, ranked[0], token)


class RaceDraft:
    """Runs in a task of its own, so that no commit is held up by a step."""

    def __init__(
        self,
        session: EdgeSession,
        drafter: Drafter,
        controller: Controller,
        values: NodeValues | None = None,
    ) -> None:
        """``values``: how chances are estimated; None: from this position's scores."""
        values = values or CoupledValues(drafter.rules)
        session.statistics.reliability = values.reliability
        self._session = session
        self._drafter = drafter
        self._controller = controller
        learned = LearnedFromText(values, drafter, controller.outcomes)
        self._tree = RaceTree(drafter, learned, session.committed, session.token_limit)
        self._sender = RaceSender(session, self._tree)
        self._changed = asyncio.Event()
        self._ending = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Draft from now on."""
        self._task = asyncio.ensure_future(self._run())

    def notice(self, commit: Commit) -> None:
        """``commit`` has come, and is committed."""
        self._sender.committed(commit, now_ms())
        if commit.drafts is not None:
            self._sender.arrived(commit.drafts, now_ms(), self._controller.cloud_ms)
        self._changed.set()

    def prepare(self, length: int) -> None:
        """No chain is drafted ahead (as ``BesideDraft.prepare`` does): the tree is in its place."""

    async def end(self) -> Chain:
        """Stop, once the step under way is over, and leave rows of committed tokens alone: an empty chain."""
        assert self._task is not None
        self._ending = True
        self._changed.set()
        await self._task
        self._take_in()
        self._tree.clear()
        return Chain()

    async def _run(self) -> None:
        while not self._ending:
            self._take_in()
            await self._sender.send(now_ms(), self._controller.cloud_ms, self._widest_step_ms)
            if not await self._step():
                await self._wait()

    async def _step(self) -> bool:
        """Compute one step, if one is worth it."""
        tree = self._tree
        if tree.needs_root:
            if not tree.can_feed_root():
                return False
            await tree.feed_root()
        elif self._session.outage.drafts_alone:
            if not tree.can_extend_line():
                return False
            await tree.extend_line()
        else:
            nodes = self._worth_feeding()
            if not nodes:
                return False
            await tree.grow(nodes)
        if self._session.outage.drafts_alone:
            self._session.show_provisional(tree.line)
        return True

    def _worth_feeding(self) -> list[RaceNode]:
        tree, budget = self._tree, self._budget()
        if tree.num_fed >= self._most_nodes:
            return []
        nodes = tree.open_nodes(budget)
        nodes = nodes[: tree.width(nodes, self._controller.step_times.current())]
        worth = sum(tree.value(node) for node in nodes)
        return nodes if worth >= LEAST_STEP_VALUE else []

    def _budget(self) -> int:
        """Most nodes of a step: B*(t), the widest whose step fits into the time until a verdict.

        One step must fit, not a whole tree: a commit does not end the tree, it goes on from there.
        """
        controller, settings = self._controller, self._controller.settings
        if settings.budget is not None:
            return max(settings.budget - (settings.gamma or DEPTH), 1)
        step_ms = controller.step_times.current()
        window_ms = controller.window_ms if controller.round_trip.known else math.inf
        return max((bucket for bucket in step_ms if step_ms[bucket] <= window_ms), default=min(step_ms))

    @property
    def _widest_step_ms(self) -> float:
        return max(self._controller.step_times.current().values())

    @property
    def _most_nodes(self) -> int:
        """Fed nodes that are enough: the server keeps no more."""
        opened = self._session.opened
        return opened.max_race_nodes if opened is not None and opened.max_race_nodes else 256

    def _take_in(self) -> None:
        """Go along with what was committed."""
        session, tree = self._session, self._tree
        tree.token_limit = session.token_limit
        tokens = session.committed[len(tree.known) :]
        if not tokens:
            return
        tree.advance(tokens)
        if session.provisional:  # the line is looked for with every commit only while it is shown
            session.note_committed(len(tokens), tree.line)

    async def _wait(self) -> None:
        """Leave the engine idle until something has changed."""
        started_ms = now_ms()
        recheck_s = RECHECK_S if self._sender.is_held_up else None
        if self._sender.due_ms is not None:
            recheck_s = max((self._sender.due_ms - started_ms) / 1000.0, LEAST_WAIT_S)
        await self._session.outage.wait_beside(self._changed, recheck_s)
        self._session.statistics.waiting_ms += now_ms() - started_ms
