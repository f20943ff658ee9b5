"""How a session makes progress: by rounds of speculation, or by letting the cloud decode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from acespec.edge_runtime.budget import StepPlan
from acespec.edge_runtime.controller import Controller
from acespec.edge_runtime.drafter import Chain, Drafter
from acespec.edge_runtime.outcome_tree import OutcomeTree
from acespec.edge_runtime.provisional import ProvisionalLine
from acespec.edge_runtime.resampler import Resolution, resolve
from acespec.edge_runtime.session import Arrival, EdgeSession
from acespec.edge_runtime.step_clock import now_ms
from acespec.wire import AcceptanceMode


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
            session.statistics.decoded += len(commit.tokens)
            yield list(commit.tokens)


class RoundsPolicy:
    """The paper's Algorithm 1: send a chain, grow the outcome tree until the verdict, go on from the tree.

    If the link is lost meanwhile, and the session is to go on nevertheless, a provisional line takes the
    tree's place; afterwards it gives the next chains until it ends or a token of it is rejected.
    """

    def __init__(self, drafter: Drafter, controller: Controller) -> None:
        self._drafter = drafter
        self._controller = controller
        self._wanted = 0
        """Tokens the next chain is to have, limits apart."""
        self.drafted = Chain()
        """What is drafted behind the committed tokens when ``rounds`` returns."""

    async def run(self, session: EdgeSession) -> AsyncIterator[list[int]]:
        async for tokens in self.rounds(session, Chain(), lambda _ms, _tokens: True):
            yield tokens

    async def rounds(
        self, session: EdgeSession, drafted: Chain, goes_on: Callable[[float, int], bool]
    ) -> AsyncIterator[list[int]]:
        """Run rounds, the first with ``drafted``, until the text ends or ``goes_on`` says no.

        That is asked after each round, and told the milliseconds it took and the tokens it committed. If the
        draft's context is full the cloud decodes what remains.
        """
        self._wanted = self._controller.plan(len(session.committed)).redraft
        while session.finished is None:
            began_ms = now_ms()
            length = self._chain_length(session, len(drafted))
            if length is None:  # the draft's context is full: the target goes on alone
                session.show_provisional([])
                async for tokens in CloudPolicy().run(session):
                    yield tokens
                return
            await self._drafter.draft(session.committed, drafted, length)
            drafted, tokens = await self._round(session, drafted, length)
            stays = goes_on(now_ms() - began_ms, len(tokens))
            self.drafted = drafted
            yield tokens
            session.note_committed(len(tokens), drafted.tokens)
            if not stays:
                return

    def _chain_length(self, session: EdgeSession, num_drafted: int) -> int | None:
        """How many tokens the next chain has; None if the draft model can take no more context.

        In residual mode it depends on no drawn token that the chain may hold (docs/exactness.md), and not on
        what an outage left behind either, so that the text does not. Whether the last outcome was in the tree
        is settled by tokens before the chain. In coupled mode nothing can change the text: ``num_drafted``
        tokens that wait already are sent all at once.
        """
        room = self._drafter.max_chain(len(session.committed))
        if room < 1:
            return None
        longest = self._wanted
        if session.request.mode is AcceptanceMode.COUPLED:
            longest = max(longest, num_drafted)
        return min(longest, session.max_chain, session.remaining - 1, room)

    async def _round(self, session: EdgeSession, drafted: Chain, length: int) -> tuple[Chain, list[int]]:
        """One round of ``length`` tokens of ``drafted``.

        Returns what is drafted behind the tokens it committed, and these.
        """
        controller = self._controller
        chain = Chain(drafted.drafted[:length])
        await session.send_round(chain)
        sent_ms = now_ms()
        plan = controller.plan(len(session.committed))
        session.statistics.budgets.append(plan.budget)
        growth: OutcomeTree | ProvisionalLine
        if len(drafted) > len(chain):
            growth = ProvisionalLine(self._drafter, session.committed, chain, drafted.drafted)
        else:
            growth = OutcomeTree(self._drafter, session.committed, chain, plan.bucket)
            allocation = controller.outcomes.allocation(plan.num_branches, chain.confidences)
            growth.plant(allocation, min(plan.gamma, session.max_chain), session.token_limit)
        arrival, growth = await self._grow_until_verdict(session, growth, chain, sent_ms, plan.bucket)
        resolution = await resolve(session, chain, arrival.verdict)
        self._observe(session, growth, chain, arrival, resolution, sent_ms)
        return self._go_on(session, growth, chain, resolution, plan)

    async def _grow_until_verdict(
        self,
        session: EdgeSession,
        growth: OutcomeTree | ProvisionalLine,
        chain: Chain,
        sent_ms: float,
        bucket: int,
    ) -> tuple[Arrival, OutcomeTree | ProvisionalLine]:
        """Grow one step at a time; the moment the verdict is there, growth is over, whatever it reached."""
        receiving = asyncio.ensure_future(session.receive_verdict())
        try:
            while not receiving.done() and growth.can_grow() and not session.outage.drafts_alone:
                if not self._controller.worth_a_step(now_ms(), sent_ms, bucket):
                    overdue_ms = self._controller.overdue_ms(now_ms(), sent_ms)
                    await self._wait(session, receiving, overdue_ms)
                    if receiving.done() or session.outage.drafts_alone:
                        break
                await growth.grow()
            while not receiving.done():
                if session.outage.drafts_alone:
                    if isinstance(growth, OutcomeTree):
                        growth = ProvisionalLine(self._drafter, session.committed, chain, chain.drafted)
                    await self._draft_on(session, growth, receiving)
                await self._wait(session, receiving, None)
            return receiving.result(), growth
        finally:
            receiving.cancel()

    async def _draft_on(
        self, session: EdgeSession, line: ProvisionalLine, receiving: asyncio.Future[Arrival]
    ) -> None:
        """Extend the provisional line, and show it, until the link is up, the verdict is there or it ends."""
        session.show_provisional(line.tokens)
        while not receiving.done() and session.outage.down.is_set():
            if not line.can_extend(session.remaining):
                await self._wait(session, receiving, None, wakes_on_outage=False)
                return
            await line.extend()
            session.show_provisional(line.tokens)

    async def _wait(
        self,
        session: EdgeSession,
        receiving: asyncio.Future[Arrival],
        at_most_ms: float | None,
        wakes_on_outage: bool = True,
    ) -> None:
        """Leave the engine idle for the verdict; counted as waiting.

        ``wakes_on_outage``: return early if the draft model has to go on.
        """
        started_ms = now_ms()
        waits: list[asyncio.Future[Any]] = [receiving]
        if session.outage.drafts and wakes_on_outage:
            waits.append(asyncio.ensure_future(session.outage.down.wait()))
        timeout_s = None if at_most_ms is None else at_most_ms / 1000.0
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for other in waits[1:]:
                other.cancel()
        session.statistics.waiting_ms += now_ms() - started_ms

    def _observe(
        self,
        session: EdgeSession,
        growth: OutcomeTree | ProvisionalLine,
        chain: Chain,
        arrival: Arrival,
        resolution: Resolution,
        sent_ms: float,
    ) -> None:
        statistics, controller = session.statistics, self._controller
        times = arrival.verdict.times
        if not arrival.disturbed:
            statistics.round_trips_ms.append(controller.observe_round(arrival.at_ms - sent_ms, times))
        statistics.verify_ms.append(times.queue_ms + times.compute_ms)
        accepted, rejected = resolution.accepted, resolution.rejected
        statistics.accepted += accepted
        statistics.tested += accepted + int(rejected)
        rank = None
        # A chain that the server cut ends in a token nobody ranked candidates for.
        if resolution.next_token is not None and (rejected or accepted == len(chain)):
            rank = growth.rank_of((accepted, resolution.next_token), controller.outcomes.horizon)
        controller.outcomes.observe(chain.confidences, accepted, rejected, rank)

    def _go_on(
        self,
        session: EdgeSession,
        growth: OutcomeTree | ProvisionalLine,
        chain: Chain,
        resolution: Resolution,
        plan: StepPlan,
    ) -> tuple[Chain, list[int]]:
        """Take what was drafted for this outcome (a hit) or begin anew from the truth (a miss); commit."""
        tokens = chain.tokens[: resolution.accepted]
        if resolution.next_token is not None:
            tokens.append(resolution.next_token)
        drafted = growth.settle(resolution.accepted, resolution.next_token)
        session.commit(tokens, resolution.resampled)
        hit_in_residual = drafted is not None and session.request.mode is AcceptanceMode.RESIDUAL
        self._wanted = plan.gamma if hit_in_residual else plan.redraft
        if session.finished is None and self._chain_length(session, 0) not in (None, 0):
            session.statistics.lookups += 1
            session.statistics.hits += int(drafted is not None)
            session.statistics.ready_tokens += 0 if drafted is None else len(drafted)
        return drafted or Chain(), tokens
