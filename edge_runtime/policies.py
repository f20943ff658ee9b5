"""How a session makes progress: by rounds of speculation, or by letting the cloud decode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.drafter import Chain, Drafter
from acespec.edge_runtime.outcome_tree import OutcomeTree
from acespec.edge_runtime.resampler import Resolution, resolve
from acespec.edge_runtime.session import EdgeSession
from acespec.edge_runtime.step_clock import now_ms
from acespec.wire import Verdict


class Policy(Protocol):
    """Carries an opened session to its end."""

    def run(self, session: EdgeSession) -> AsyncIterator[list[int]]:
        """Yield the tokens of each commit, already committed to ``session``, until it is finished."""


class CloudPolicy:
    """The cloud decodes by itself and streams its tokens; no draft model is used."""

    async def run(self, session: EdgeSession) -> AsyncIterator[list[int]]:
        await session.decode(session.remaining)
        while session.finished is None:
            waiting_since = now_ms()
            commit = await session.receive_commit()
            session.statistics.waiting_ms += now_ms() - waiting_since
            session.commit(list(commit.tokens))
            yield list(commit.tokens)


class RoundsPolicy:
    """The paper's Algorithm 1: send a chain, grow the outcome tree until the verdict, go on from the tree."""

    def __init__(self, drafter: Drafter, controller: Controller) -> None:
        self._drafter = drafter
        self._controller = controller

    async def run(self, session: EdgeSession) -> AsyncIterator[list[int]]:
        chain = Chain()
        while session.finished is None:
            length = self._chain_length(session)
            if length is None:  # the draft's context is full: the target goes on alone
                async for tokens in CloudPolicy().run(session):
                    yield tokens
                return
            await self._drafter.draft(session.committed, chain, length)
            chain, tokens = await self._round(session, chain)
            yield tokens

    def _chain_length(self, session: EdgeSession) -> int | None:
        """How many tokens the next chain has; None if the draft model can take no more context.

        It depends on lengths alone, never on drawn tokens (docs/exactness.md).
        """
        room = self._drafter.max_chain(len(session.committed))
        return min(self._controller.settings.gamma, session.remaining - 1, room) if room >= 1 else None

    async def _round(self, session: EdgeSession, chain: Chain) -> tuple[Chain, list[int]]:
        """One round; returns the next chain as far as the tree had it, and the tokens committed."""
        controller = self._controller
        plan = controller.plan(len(session.committed))
        session.statistics.budgets.append(plan.budget)
        await session.send_round(chain)
        sent_ms = now_ms()
        tree = OutcomeTree(self._drafter, session.committed, chain, plan.bucket)
        allocation = controller.outcomes.allocation(plan.num_branches, chain.confidences)
        tree.plant(allocation, plan.gamma, session.token_limit)
        verdict, arrived_ms = await self._grow_until_verdict(session, tree, sent_ms, plan.bucket)
        resolution = await resolve(session, chain, verdict)
        self._observe(session, tree, chain, verdict, resolution, arrived_ms - sent_ms)
        return self._go_on(session, tree, chain, resolution)

    async def _grow_until_verdict(
        self, session: EdgeSession, tree: OutcomeTree, sent_ms: float, bucket: int
    ) -> tuple[Verdict, float]:
        """Grow one step at a time; the moment the verdict is there, growth is over, whatever it reached."""
        receiving = asyncio.ensure_future(session.receive_verdict())
        try:
            while not receiving.done() and tree.can_grow():
                if not self._controller.worth_a_step(now_ms(), sent_ms, bucket):
                    await self._wait(session, receiving, self._controller.overdue_ms(now_ms(), sent_ms))
                    if receiving.done():
                        break
                await tree.grow()
            await self._wait(session, receiving, None)
            return receiving.result()
        finally:
            receiving.cancel()

    async def _wait(
        self, session: EdgeSession, receiving: asyncio.Future[tuple[Verdict, float]], at_most_ms: float | None
    ) -> None:
        """Leave the engine idle for the verdict; counted as waiting."""
        started_ms = now_ms()
        await asyncio.wait({receiving}, timeout=None if at_most_ms is None else at_most_ms / 1000.0)
        session.statistics.waiting_ms += now_ms() - started_ms

    def _observe(
        self,
        session: EdgeSession,
        tree: OutcomeTree,
        chain: Chain,
        verdict: Verdict,
        resolution: Resolution,
        round_ms: float,
    ) -> None:
        statistics, controller = session.statistics, self._controller
        statistics.round_trips_ms.append(controller.observe_round(round_ms, verdict.times))
        statistics.verify_ms.append(verdict.times.queue_ms + verdict.times.compute_ms)
        accepted, rejected = resolution.accepted, resolution.rejected
        statistics.accepted += accepted
        statistics.tested += accepted + int(rejected)
        rank = None
        if resolution.next_token is not None:
            rank = tree.rank_of((accepted, resolution.next_token), controller.outcomes.horizon)
        controller.outcomes.observe(chain.confidences, accepted, rejected, rank)

    def _go_on(
        self, session: EdgeSession, tree: OutcomeTree, chain: Chain, resolution: Resolution
    ) -> tuple[Chain, list[int]]:
        """Take the chain of this outcome's branch (a hit) or begin anew from the truth (a miss); commit."""
        tokens = chain.tokens[: resolution.accepted]
        if resolution.next_token is not None:
            tokens.append(resolution.next_token)
        next_chain = tree.settle(resolution.accepted, resolution.next_token)
        session.commit(tokens, resolution.resampled)
        if session.finished is None and self._chain_length(session) not in (None, 0):
            session.statistics.lookups += 1
            session.statistics.hits += int(next_chain is not None)
        return next_chain or Chain(), tokens
