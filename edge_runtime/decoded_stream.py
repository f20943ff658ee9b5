"""The tokens that the cloud decodes by itself, taken as they come; the controller learns from their times."""

from __future__ import annotations

from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.drafter import Drafter
from acespec.edge_runtime.session import EdgeSession
from acespec.edge_runtime.step_clock import now_ms
from acespec.wire import Commit


class DecodedStream:
    """One stretch of them, without a pause in it."""

    def __init__(self, session: EdgeSession, drafter: Drafter, controller: Controller) -> None:
        self._session = session
        self._drafter = drafter
        self._controller = controller
        self._last_ms: float | None = None
        """When the commit before the next one came."""
        self.since_ms: float | None = None
        """How long after the one before it the last one came; None where nothing can be told from that."""

    async def receive(self) -> Commit:
        """Take and commit the next tokens."""
        session, statistics, controller = self._session, self._session.statistics, self._controller
        waiting_since, model_ms = now_ms(), self._drafter.model_ms
        disturbances = statistics.disturbances
        commit = await session.receive_commit()
        arrived_ms = now_ms()
        if not session.is_racing:  # who drafts for a race counts its own waits
            drafting_ms = self._drafter.model_ms - model_ms
            statistics.waiting_ms += max(arrived_ms - waiting_since - drafting_ms, 0.0)
        self.since_ms = None
        # After an outage, what is sent again comes in one piece: its time says nothing.
        if statistics.disturbances == disturbances:
            self.since_ms = None if self._last_ms is None else arrived_ms - self._last_ms
            num_tokens = len(commit.tokens)
            if session.is_racing:
                waits = session.waits_for_drafts
                controller.observe_race(self.since_ms, num_tokens, commit.compute_ms, waits=waits)
                statistics.raced += num_tokens - 1
            else:
                controller.observe_commit(self.since_ms, num_tokens, commit.compute_ms)
        if session.connection.opening_ms is not None:
            controller.observe_opening(session.connection.opening_ms)
        self._last_ms = arrived_ms
        session.commit(list(commit.tokens))
        statistics.decoded += len(commit.tokens)
        return commit
