"""A single chain of drafted tokens that never waits: the pipeline PicoSpec and E²-SCI have in common.

The edge drafts on while earlier tokens are being checked, as if they would all stand, and sends its draft in
chains. The cloud tests token after token. While all stand nothing else is said: the row behind a chain's last
token tests the first of the next, so there is no bonus token. Where one falls, everything drafted behind it
is void: the cloud drops what is on its way until it meets a chain of the next *epoch*, which the edge begins
when it learns of the rejection, behind the token that took the rejected one's place.

Rows of the target are computed a chain at a time. A chain whose first token falls by the row that is at hand
already costs no forward.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from acespec.bench.lab.baselines.messages import (
    EPOCHS,
    ChainPart,
    Verdict,
    decode_chain_part,
    decode_verdict,
    encode_chain_part,
    encode_verdict,
)
from acespec.bench.lab.baselines.rejection import Drafted, SixteenBits
from acespec.bench.lab.baselines.sides import Drafter, Inbox, extended, is_end, send, send_prompt, settle
from acespec.bench.lab.strategy import World
from acespec.bench.lab.token_path import TokenPath
from acespec.speculation import CandidateRow

Chain = list[Drafted[SixteenBits]]


class EdgeRules(Protocol):
    """What an edge does its own way."""

    leads: bool
    """Whether a chain's first token goes up ahead of the rest while others wait for their verdict."""

    def chain_length(self) -> int:
        """Tokens of the chain that is begun now."""

    def draw(self, row: CandidateRow, position: int) -> Drafted[SixteenBits]:
        """The token drafted at ``position``."""

    def replace(self, verdict: Verdict, rejected: Drafted[SixteenBits], position: int) -> int:
        """The token in the place of the rejected one; drawn here unless the verdict brings it."""

    def note(self, all_stood: bool) -> None:
        """A verdict has come."""


class CloudRules(Protocol):
    """What a cloud does its own way."""

    def stands(self, path: TokenPath, token: int, weight: int) -> bool:
        """Whether a drafted token stands behind ``path``; ``weight`` is its own, out of 2^16."""

    def reject(self, path: TokenPath, accepted: int) -> Verdict:
        """What is said of the token that does not stand behind ``path``."""

    def note(self, accepted: int, length: int) -> None:
        """A chain of ``length`` tokens was checked."""


class PipelineEdge:
    """The edge's side."""

    def __init__(self, world: World, rules: EdgeRules, max_in_flight: int) -> None:
        """At most ``max_in_flight`` chains wait for their verdict."""
        self._world = world
        self._rules = rules
        self._max_in_flight = max_in_flight
        self._drafter = Drafter(world)
        self._committed = self._tip = world.start()
        self._in_flight: deque[Chain] = deque()
        self._epoch = 0
        self._resampled: int | None = None
        self._begin_chain()

    async def run(self) -> None:
        """Generate to the end."""
        send_prompt(self._world)
        inbox = Inbox(self._world.down)
        try:
            while not self._world.finished:
                if inbox.ready:
                    self._take(decode_verdict(await inbox.take(), self._world.models.vocab_size))
                elif self._is_complete:
                    self._send_rest()
                elif self._may_draft:
                    await self._draft_token()
                else:
                    self._take(decode_verdict(await inbox.take(), self._world.models.vocab_size))
        finally:
            inbox.close()

    def _begin_chain(self) -> None:
        self._chain: Chain = []
        self._num_sent = 0
        self._length = self._rules.chain_length()

    @property
    def _num_drafted(self) -> int:
        """Tokens drafted and not decided about."""
        return self._tip.length - self._committed.length

    @property
    def _at_the_end(self) -> bool:
        """Whether nothing may follow the last drafted token."""
        return self._num_drafted >= self._world.room or (
            self._num_drafted > 0 and is_end(self._world, self._tip.token)
        )

    @property
    def _is_complete(self) -> bool:
        return bool(self._chain) and (len(self._chain) >= self._length or self._at_the_end)

    @property
    def _may_draft(self) -> bool:
        return len(self._in_flight) < self._max_in_flight and not self._at_the_end

    async def _draft_token(self) -> None:
        row = await self._drafter.row(self._tip)
        self._chain.append(self._rules.draw(row, self._tip.length))
        self._tip = self._tip.then(self._chain[-1].token)
        if self._rules.leads and self._in_flight and len(self._chain) == 1 and not self._is_complete:
            self._send_part(last=False)

    def _send_rest(self) -> None:
        self._send_part(last=True)
        self._in_flight.append(self._chain)
        self._begin_chain()

    def _send_part(self, last: bool) -> None:
        unsent = self._chain[self._num_sent :]
        self._num_sent = len(self._chain)
        part = ChainPart(
            tuple(drafted.token for drafted in unsent),
            tuple(drafted.row.weighted.weight_of(drafted.token) for drafted in unsent),
            self._resampled,
            self._epoch,
            last,
        )
        self._resampled = None
        send(self._world.up, encode_chain_part(part, self._world.models.vocab_size))

    def _take(self, verdict: Verdict) -> None:
        chain = self._in_flight.popleft() if self._in_flight else self._chain
        accepted = [drafted.token for drafted in chain[: verdict.accepted]]
        all_stood = verdict.next_token is None and verdict.target is None
        self._rules.note(all_stood)
        if all_stood:
            self._committed = settle(self._world, self._committed, accepted)
        else:
            self._roll_back(verdict, accepted, chain[verdict.accepted])
        if not self._world.finished:
            self._world.log.lookups += 1
            self._world.log.hits += int(self._num_drafted > 0)
            self._world.log.ready_tokens += self._num_drafted

    def _roll_back(self, verdict: Verdict, accepted: list[int], rejected: Drafted[SixteenBits]) -> None:
        position = self._committed.length + len(accepted)
        token = self._rules.replace(verdict, rejected, position)
        self._resampled = token if verdict.next_token is None else None
        self._drafter.roll_back(position)
        self._committed = self._tip = settle(self._world, self._committed, [*accepted, token])
        self._in_flight.clear()
        self._epoch = (self._epoch + 1) % EPOCHS
        self._begin_chain()


class PipelineCloud:
    """The cloud's side."""

    def __init__(self, world: World, rules: CloudRules, sparse: bool) -> None:
        """``sparse``: target rows go down as their support alone."""
        self._world = world
        self._rules = rules
        self._sparse = sparse
        self._path = world.start()
        self._fed = len(world.request.prompt) - 1
        """Tokens of the path the target has been fed."""
        self._tokens: list[int] = []
        """Of the chain under way."""
        self._weights: list[int] = []
        self._num_tested = 0
        self._epoch = 0
        self._rejected = False
        """Whether what comes is void until the next epoch begins."""

    async def run(self) -> None:
        """Check what comes, for ever."""
        await self._world.up.receive()
        await self._world.prefill_target()
        while True:
            part = decode_chain_part(await self._world.up.receive(), self._world.models.vocab_size)
            if self._rejected and part.epoch == self._epoch:
                continue
            self._rejected, self._epoch = False, part.epoch
            if part.resampled is not None:
                self._path = self._path.then(part.resampled)
            self._tokens += part.tokens
            self._weights += part.weights
            await self._check(part.last)

    async def _check(self, complete: bool) -> None:
        """Test what can be tested of the chain under way, which may be ``complete``."""
        row_at_hand = self._fed == self._path.length
        if row_at_hand and self._num_tested == 0 and not self._test():
            self._say_rejected()
            return
        if not complete:
            return
        await self._world.target_forward(self._path.length - self._fed + len(self._tokens))
        while self._num_tested < len(self._tokens):
            if not self._test():
                self._say_rejected()
                return
        self._path = extended(self._path, self._tokens)
        self._fed = self._path.length
        self._say(Verdict(len(self._tokens)))

    def _test(self) -> bool:
        """Test the next token; whether it stands."""
        index = self._num_tested
        before = extended(self._path, self._tokens[:index])
        stands = self._rules.stands(before, self._tokens[index], self._weights[index])
        self._world.log.tested += 1
        self._world.log.accepted += int(stands)
        self._num_tested += int(stands)
        return stands

    def _say_rejected(self) -> None:
        accepted = self._num_tested
        self._path = extended(self._path, self._tokens[:accepted])
        self._fed = self._path.length
        verdict = self._rules.reject(self._path, accepted)
        self._path = extended(self._path, () if verdict.next_token is None else (verdict.next_token,))
        self._rejected = True
        self._say(verdict)

    def _say(self, verdict: Verdict) -> None:
        self._rules.note(verdict.accepted, len(self._tokens))
        self._tokens, self._weights, self._num_tested = [], [], 0
        send(self._world.down, encode_verdict(verdict, self._world.models.vocab_size, self._sparse))
