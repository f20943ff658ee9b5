"""One generation as the edge sees it: committed tokens, and the requests made of the cloud."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from acespec.edge_runtime.backoff import Random
from acespec.edge_runtime.connection import Connection, Connector
from acespec.edge_runtime.drafter import Chain
from acespec.edge_runtime.errors import protocol_error, unexpected
from acespec.edge_runtime.outage import LinkChange, Outage, OutageSettings, ignore_change
from acespec.edge_runtime.request import FinishReason, GenerationRequest
from acespec.edge_runtime.requests import Requests
from acespec.edge_runtime.statistics import Statistics
from acespec.edge_runtime.step_clock import now_ms
from acespec.wire import (
    MAX_CHAIN,
    AcceptanceMode,
    Codec,
    Commit,
    Decode,
    Draft,
    DraftNode,
    Eagerness,
    EdgeMessage,
    MoreDraws,
    MoreTarget,
    Open,
    Opened,
    PrefixCheck,
    Resume,
    Round,
    SparseTarget,
    TargetDraws,
    Verdict,
)


@dataclass(frozen=True)
class TargetIdentity:
    """The target the edge expects; an empty field accepts any."""

    model: str = ""
    fingerprint: str = ""
    vocabulary_hash: str = ""


@dataclass(frozen=True)
class SessionSettings:
    """How a session is carried, none of which changes its text."""

    target: TargetIdentity = field(default_factory=TargetIdentity)
    outage: OutageSettings = field(default_factory=OutageSettings)
    pad_sizes: bool = False
    """Hide the sizes of all messages; without it, if the server asks for it."""


@dataclass(frozen=True)
class Arrival:
    """A verdict and how it came."""

    verdict: Verdict
    at_ms: float
    """Loop milliseconds."""
    disturbed: bool
    """Whether a stream was lost, or the server busy, since the round was sent: its time says nothing then."""


def ignore(_: Sequence[int]) -> None:
    """For callers that do not show provisional tokens."""


class EdgeSession:
    """Holds the truth about a generation (the committed tokens) and speaks the protocol for its policy.

    Requests return and answers come as if the link were always up (see ``Connection``); only what a server
    refuses, and an outage that lasts too long, are raised.
    """

    def __init__(
        self,
        connector: Connector,
        request: GenerationRequest,
        vocab_size: int,
        statistics: Statistics,
        settings: SessionSettings | None = None,
        on_provisional: Callable[[list[int]], object] = ignore,
        jitter: Random = random.random,
        on_change: Callable[[LinkChange], object] = ignore_change,
        races: bool = False,
    ) -> None:
        """``races``: the server is to set room aside for drafted tokens, if it takes part in races."""
        self.request = request
        self.committed: list[int] = list(request.prompt)
        self.finished: FinishReason | None = None
        self.opened: Opened | None = None
        """What the server said of itself; it arrives before the first answer."""
        self.token_limit = request.token_limit
        """Absolute position at which generation ends: the request's, or where the target's context does."""
        self.provisional: list[int] = []
        """Tokens drafted in an outage and not verified yet, behind the committed ones."""
        self.statistics = statistics
        self._settings = settings or SessionSettings()
        self._races = races
        self.vocab_size = vocab_size
        self._known = False
        self._requests = Requests()
        self._check = PrefixCheck()
        self._check.update(request.prompt)
        self._resampled: int | None = None
        self._end_token_ids = frozenset(request.end_token_ids)
        self._on_provisional = on_provisional
        self._disturbances_before = 0
        self.connection = Connection(
            connector,
            self,
            Codec(vocab_size, request.mode),
            Outage(self._settings.outage, statistics, on_change),
            statistics,
            jitter,
            self._settings.pad_sizes,
        )

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return self.token_limit - len(self.committed)

    @property
    def max_chain(self) -> int:
        """Longest chain the server checks; of a longer one, sent before that is known, it checks so much."""
        return MAX_CHAIN if self.opened is None else self.opened.max_chain

    @property
    def outage(self) -> Outage:
        """Whether the link is down."""
        return self.connection.outage

    async def open(self) -> None:
        """Connect and introduce the request. The answer is not waited for: the first round may follow."""
        await self.connection.open()

    async def send_round(self, chain: Chain) -> None:
        """Send ``chain`` for one check."""
        residual = self.request.mode is AcceptanceMode.RESIDUAL
        weights = tuple(d.weight for d in chain.drafted) if residual else ()
        seq = self._requests.next_seq
        self._disturbances_before = self.statistics.disturbances
        await self._ask(Round(seq, self._check.value, tuple(chain.tokens), weights, self._resampled))
        self.statistics.rounds += 1
        self.statistics.forwards += 1

    async def receive_verdict(self) -> Arrival:
        """The verdict on the round under way."""
        message = await self.connection.receive()
        at_ms = now_ms()
        if not isinstance(message, Verdict) or message.seq != self._requests.seq:
            raise unexpected(message, f"the verdict on request {self._requests.seq}")
        return Arrival(message, at_ms, self.statistics.disturbances > self._disturbances_before)

    @property
    def tokens_due(self) -> int:
        """Tokens still to come of those the cloud was asked to decode."""
        return self._requests.tokens_due

    async def decode(self, count: int, race: bool = False) -> None:
        """Ask the cloud to decode ``count`` tokens by itself; ``receive_commit`` takes them.

        While tokens are due it is asked to go on behind them, as before: in time, and it does so without a
        pause. ``race``: it may take drafts along (``send_draft``), if it does so at all.
        """
        if self.tokens_due:
            await self.connection.send(self._requests.ask_on(count))
            return
        await self._ask(Decode(self._requests.next_seq, self._check.value, count, self._resampled, race))

    @property
    def may_race(self) -> bool:
        """Whether the server takes part in races, as far as it has said."""
        return self.opened is not None and self.opened.eagerness is not None

    @property
    def request_seq(self) -> int:
        """The number of the last request."""
        return self._requests.seq

    @property
    def is_racing(self) -> bool:
        """Whether what is outstanding is a race that the server takes part in."""
        return self.may_race and self._requests.races

    @property
    def waits_for_drafts(self) -> bool:
        """Whether the server computes for a race once drafts have come, so that none can be too early."""
        return self.opened is not None and self.opened.eagerness is Eagerness.COST

    @property
    def takes_drafts(self) -> bool:
        """Whether there is a race under way (``is_racing``), on a stream that stands."""
        return self.is_racing and self.connection.stands

    async def send_draft(self, first_id: int, root: int, nodes: tuple[DraftNode, ...]) -> None:
        """Send nodes for the race under way; lost, like the link, without a word."""
        await self.connection.hint(Draft(self._requests.seq, first_id, root, nodes))

    async def receive_commit(self) -> Commit:
        """The next tokens the cloud committed by itself: in a race, those of a forward or more."""
        message = await self.connection.receive()
        if not isinstance(message, Commit) or message.position != len(self.committed):
            raise unexpected(message, f"tokens from position {len(self.committed)} on")
        self.statistics.forwards += 1 if self._requests.races else len(message.tokens)
        return message

    async def more_draws(self, position: int, first_index: int) -> SparseTarget | TargetDraws | Verdict:
        """Residual mode: every draw so far failed; ask for more. Costs a round trip.

        Returns a verdict if the server had forgotten the session: the round was then decided once more, with
        the same outcome where the target computes the same, and the caller begins again from it.
        """
        request = MoreDraws(position, first_index)
        self._requests.ask_more(request)
        await self.connection.send(request)
        message = await self.connection.receive()
        forgotten = self._requests.outstanding is not request
        if forgotten and isinstance(message, Verdict) and message.seq == self._requests.seq:
            return message
        if forgotten or not isinstance(message, MoreTarget):
            raise unexpected(message, "more draws")
        self._requests.received_more()
        target = message.target
        if isinstance(target, TargetDraws) and target.first_index != first_index:
            raise protocol_error(f"it sent draws from {target.first_index} on where {first_index} is due")
        return target

    def commit(self, tokens: list[int], resampled: bool = False) -> None:
        """Make ``tokens`` final. ``resampled``: the last one was drawn here, and the cloud must be told.

        Raises ``SessionError`` if the verifier let tokens follow the end of the text.
        """
        for token in tokens:
            if self.finished is not None:
                raise protocol_error("it went on after the end of the text")
            self.committed.append(token)
            if token in self._end_token_ids:
                self.finished = FinishReason.END_TOKEN
            elif self.remaining <= 0:
                self.finished = FinishReason.LENGTH
        self._check.update(tokens)
        self._resampled = tokens[-1] if resampled else None
        self._requests.committed(len(tokens))
        self.statistics.count_tokens(len(tokens))

    def show_provisional(self, tokens: list[int]) -> None:
        """``tokens`` are what is provisional now, behind the committed ones."""
        if tokens != self.provisional:
            self.statistics.provisional += max(len(tokens) - len(self.provisional), 0)
            self.provisional = tokens
            self._on_provisional(tokens)

    def note_committed(self, num_tokens: int, drafted: Sequence[int]) -> None:
        """Of what is provisional so many tokens were committed, and ``drafted`` is what stands behind them.

        The rest is provisional still if it is part of that, else it was ruled out.
        """
        still = self.provisional[num_tokens:]
        self.show_provisional(still if list(drafted[: len(still)]) == still else [])

    async def close(self) -> None:
        """Tell the cloud that nothing more comes, if it can be told."""
        await self.connection.finish()

    async def _ask(self, request: Round | Decode) -> None:
        self._requests.ask(request)
        await self.connection.send(request)

    # --- what the connection says on a new stream (a ``Conversation``) --------------------------------------

    def introduction(self, epoch: int) -> Open | Resume:
        """``Resume`` where the server knows the session, else ``Open`` with all that is committed."""
        if self._known and self.opened is not None:
            return Resume(self.opened.session_id, epoch, len(self.committed))
        request, target = self.request, self._settings.target
        return Open(
            model=target.model,
            fingerprint=target.fingerprint,
            vocabulary_hash=target.vocabulary_hash,
            vocab_size=self.vocab_size,
            end_token_ids=request.end_token_ids,
            sampling=request.sampling,
            seed=request.seed,
            mode=request.mode,
            committed=tuple(self.committed),
            prompt_length=len(request.prompt),
            token_limit=request.token_limit,
            epoch=epoch,
            race=self._races,
        )

    @property
    def outstanding(self) -> EdgeMessage | None:
        """The request without a whole answer."""
        return self._requests.outstanding

    def note_opened(self, opened: Opened) -> None:
        """The session stands, at a server of these limits."""
        self._known = True
        self.opened = opened
        self.token_limit = min(self.token_limit, opened.max_context)

    def note_forgotten(self) -> None:
        """The server has forgotten the session."""
        self._known = False
        self._requests.begin_anew(self._check.value)
