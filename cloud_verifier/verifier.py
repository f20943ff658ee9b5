"""The verifier without its network: streams in, sessions kept, one target for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from acespec.cloud_verifier.admission import check_open
from acespec.cloud_verifier.batcher import Batcher, StepAbandonedError, no_latency
from acespec.cloud_verifier.busy import BusyError
from acespec.cloud_verifier.engine import TargetEngine
from acespec.cloud_verifier.limits import Limits
from acespec.cloud_verifier.observer import CloseReason, Observer
from acespec.cloud_verifier.registry import Registry
from acespec.cloud_verifier.seats import Seats
from acespec.cloud_verifier.session import Session
from acespec.cloud_verifier.shared import Shared
from acespec.cloud_verifier.stream import Stream, Waiting, overdue, sweep_interval_s
from acespec.cloud_verifier.tenants import ANONYMOUS, Tenant, TenantLedger
from acespec.compute import StepRunner
from acespec.wire import (
    Busy,
    Close,
    CloudTransport,
    Draft,
    ErrorCode,
    MoreDraws,
    Open,
    Opened,
    Reset,
    ResetReason,
    Resume,
    SessionError,
    decode_first,
    encode_busy,
    encode_reset,
)
from acespec.wire.errors import SERVER_FAILED, malformed

logger = logging.getLogger(__name__)
TOLD_FINGERPRINT = 16
"""Characters of its fingerprint that a session is told: enough to tell targets apart."""

SESSION_ID_BYTES = 16
GOODBYE_S = 1.0
"""How long a last ``Reset`` may wait for room in its stream."""
MOST_DROPPED = 1
"""Requests that may follow an ``Open`` or ``Resume`` that led to no session: the edge does not wait."""
MOST_DRAFTS_DROPPED = 256
"""Drafts that may follow them."""


class Verifier:
    """Serves streams on one target engine. What ends one session ends no other.

    All methods belong to one event loop; the engine steps in the runner's thread.
    """

    def __init__(
        self,
        engine: TargetEngine,
        runner: StepRunner,
        limits: Limits | None = None,
        observer: Observer | None = None,
        latency_ms: Callable[[int], float] = no_latency,
    ) -> None:
        """``latency_ms`` tells the runner what a forward of n tokens is expected to take (simulations)."""
        limits = limits or Limits()
        observer = observer or Observer()
        info = engine.info
        self.limits = limits
        self.max_context = min(info.max_context, info.kv_tokens, limits.max_context or info.max_context)
        """Positions a session may use."""
        batcher = Batcher(engine, runner, limits, observer, latency_ms)
        seats = Seats(batcher, info.kv_tokens, limits.evict_after_s, observer)
        self._shared = Shared(engine, batcher, seats, TenantLedger(), limits, observer)
        self._registry = Registry(limits, self._shared.ledger)
        self._streams: set[Stream] = set()
        self._streams_of: dict[Session, Stream] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self._no_stream = asyncio.Event()
        self._no_stream.set()
        self._draining = False

    @property
    def num_streams(self) -> int:
        """Streams being served."""
        return len(self._streams)

    @property
    def num_sessions(self) -> int:
        """Sessions with a stream or without."""
        return len(self._registry)

    @property
    def num_parked(self) -> int:
        """Sessions that wait for a stream."""
        return self._registry.num_parked

    async def serve(self, link: CloudTransport, tenant: Tenant = ANONYMOUS) -> None:
        """Serve one stream until either side ends it.

        Raises ``SessionError`` with what the edge is to be told; a failure of the verifier itself is INTERNAL
        and says only where the log has the details. A session whose stream breaks off stays to be resumed.
        """
        if self._draining:  # not among those that are waited for: others may come for as long as they like
            self._shared.observer.refused(ErrorCode.UNAVAILABLE.value)
            raise shutting_down()
        stream = Stream(link, tenant, pad_sizes=self.limits.pad_sizes)
        self._streams.add(stream)
        self._no_stream.clear()
        self._sweep_from_now_on()
        try:
            await self._converse(stream)
        except asyncio.CancelledError:
            if stream.error is None:
                raise
            await self._say_goodbye(stream, stream.error)
            self._end_broken(stream, stream.error)
            raise stream.error from None
        except SessionError as error:
            self._end_broken(stream, error)
            raise
        except StepAbandonedError:
            raise SessionError(ErrorCode.UNAVAILABLE, "the session was ended; connect again") from None
        except Exception as error:
            internal = self._internal_error(stream)
            self._end_broken(stream, internal)
            raise internal from error
        finally:
            self._leave(stream)

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, let requests under way be answered, send ``Reset`` to everyone, free everything.

        What is not answered within ``timeout_s`` seconds is ended all the same.
        """
        self._draining = True
        for stream in list(self._streams):
            if stream.waiting is Waiting.EDGE:
                stream.end(shutting_down())
        if self._streams and timeout_s > 0.0:
            await asyncio.wait([asyncio.ensure_future(self._no_stream.wait())], timeout=timeout_s)
        for stream in list(self._streams):
            stream.end(shutting_down())
        await self._no_stream.wait()
        for session in self._registry:
            self._end(session, "drained")
        while self._endings:
            await asyncio.wait(self._endings)
        await self._shared.batcher.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def _converse(self, stream: Stream) -> None:
        session = await self._introduce(stream)
        if session is None:
            return
        inbox = stream.read_ahead(session)
        try:
            await stream.send(session.codec.encode_cloud(self._opened(session)))
            await session.prefill(lambda: not stream.closed and not stream.over.is_set())
            while not self._draining:
                stream.wait_for(Waiting.EDGE)
                received = await inbox.next()
                stream.wait_for(Waiting.TARGET)
                message = received.message
                if isinstance(message, Close):
                    if not received.lost:
                        self._end(session, "closed")
                    return
                if isinstance(message, Open | Resume):
                    raise malformed("the session is open already: open another stream for another session")
                assert not isinstance(message, Draft), "the inbox hands them over"
                try:
                    if isinstance(message, MoreDraws):
                        await session.more_draws(message, stream)
                    else:
                        await session.answer(message, received.arrived, stream)
                except BusyError as busy:
                    await self._tell_busy(stream, busy)
            await self._say_goodbye(stream, shutting_down())
            raise shutting_down()
        finally:
            inbox.stop()

    async def _introduce(self, stream: Stream) -> Session | None:
        """Read until a session stands; None if the edge leaves before."""
        dropped, drafts_dropped = MOST_DROPPED, MOST_DRAFTS_DROPPED
        while (message := await stream.first()) is not None:
            if message.WhichOneof("kind") == "close":
                return None
            if message.WhichOneof("kind") == "draft" and drafts_dropped < MOST_DRAFTS_DROPPED:
                drafts_dropped += 1
                continue
            if dropped < MOST_DROPPED and message.WhichOneof("kind") not in ("open", "resume"):
                dropped += 1
                continue
            request = decode_first(message)
            if self._draining:
                await stream.send(encode_reset(Reset(request.epoch, ResetReason.SHUTTING_DOWN)))
                raise shutting_down()
            try:
                session = await self._open(request, stream) if isinstance(request, Open) else None
            except BusyError as busy:
                await self._tell_busy(stream, busy)
                dropped = drafts_dropped = 0
                continue
            if isinstance(request, Resume):
                session = await self._resume(request, stream)
            if session is not None:
                self._streams_of[session] = stream
                return session
            await stream.send(encode_reset(Reset(request.epoch, ResetReason.UNKNOWN_SESSION)))
            dropped = drafts_dropped = 0
        return None

    async def _open(self, request: Open, stream: Stream) -> Session:
        """Admit a new session. Raises ``SessionError`` or ``BusyError``."""
        check_open(request, self._shared.engine.info, self.max_context)
        session = Session(
            secrets.token_bytes(SESSION_ID_BYTES), stream.tenant, request, self._shared, self.max_context
        )
        session.check_rate()  # before anything is given up for it
        while (victim := self._registry.victim(session)) is not None:
            self._end(victim, "displaced")
        self._registry.add(session)
        try:
            await session.sit()
        except BaseException:
            self._registry.remove(session)
            self._track(session.end())
            raise
        self._shared.observer.opened(stream.tenant.name)
        logger.info("%s: opened with %d tokens", session, session.max_committed)
        return session

    async def _resume(self, request: Resume, stream: Stream) -> Session | None:
        """Give the session to the stream, and take it from one that has it; None if it is not known here."""
        session = self._registry.find(stream.tenant, request.session_id)
        if session is None or request.committed > session.max_committed:
            return None
        if request.epoch <= session.epoch:
            raise taken_over()
        session.epoch = request.epoch
        older = self._streams_of.get(session)
        self._streams_of[session] = stream
        stream.session = session  # from here on it waits for another stream if this one breaks
        if older is not None:
            older.session = None  # it has nothing to leave behind any more
            older.end(taken_over())
            await older.over.wait()
            if session.epoch != request.epoch:
                raise taken_over()
        self._registry.unpark(session)
        self._shared.seats.unpark(session.seat)
        stream.committed = request.committed
        self._shared.observer.resumed(stream.tenant.name)
        logger.info("%s: resumed with %d tokens", session, session.max_committed)
        return session

    def _opened(self, session: Session) -> Opened:
        info, limits = self._shared.engine.info, self.limits
        return Opened(
            session_id=session.id,
            epoch=session.epoch,
            model=info.name,
            fingerprint=info.fingerprint[:TOLD_FINGERPRINT],
            max_context=self.max_context,
            max_chain=limits.max_chain,
            idle_timeout_ms=max(1, round(1000.0 * limits.idle_timeout_s)),
            resume_ttl_ms=round(1000.0 * limits.resume_ttl_s),
            pad_sizes=limits.pad_sizes,
            eagerness=limits.race_eagerness if session.races else None,
            max_race_nodes=limits.max_race_nodes if session.races else 0,
        )

    async def _tell_busy(self, stream: Stream, busy: BusyError) -> None:
        self._shared.observer.busy(stream.tenant.name)
        await stream.send(encode_busy(Busy(busy.retry_ms)))

    async def _say_goodbye(self, stream: Stream, error: SessionError) -> None:
        """Send ``Reset`` before a stream that the shutdown ends, unless a message is stuck in it already."""
        if stream.waiting is Waiting.READER:
            return
        if self._draining and error.code is ErrorCode.UNAVAILABLE and stream.session is not None:
            stream.wait_for(Waiting.READER)
            reset = Reset(stream.session.epoch, ResetReason.SHUTTING_DOWN)
            with contextlib.suppress(SessionError, asyncio.TimeoutError):
                await asyncio.wait_for(stream.send(encode_reset(reset)), GOODBYE_S)

    def _end_broken(self, stream: Stream, error: SessionError) -> None:
        """Count a refusal, and end the session unless it can be gone on with over another stream."""
        self._shared.observer.refused(error.code.value)
        session = stream.session
        if session is not None:
            logger.info("%s: stream ended: %s", session, error.code.value)
            logger.debug("%s: %s", session, error.message)
            if error.code not in (ErrorCode.UNAVAILABLE, ErrorCode.ABORTED):
                self._end(session, "failed")

    def _internal_error(self, stream: Stream) -> SessionError:
        label = secrets.token_hex(8) if stream.session is None else stream.session.label
        logger.exception("session %s failed", label)
        return SessionError(
            ErrorCode.INTERNAL, f"{SERVER_FAILED}; its log has the reason under {label}; try again"
        )

    def _leave(self, stream: Stream) -> None:
        """The stream is over: its session, if it has one still, waits for another stream."""
        session, stream.session = stream.session, None
        self._streams.discard(stream)
        if session is not None and self._registry.find(session.tenant, session.id) is session:
            if self._streams_of.get(session) is stream:
                del self._streams_of[session]
            if self.limits.resume_ttl_s > 0.0:
                self._shared.seats.park(session.seat)
                self._registry.park(session, asyncio.get_running_loop().time())
            else:
                self._end(session, "expired")
        stream.over.set()
        if not self._streams:
            self._no_stream.set()
        self._report_usage()

    def _end(self, session: Session, reason: CloseReason) -> None:
        """End a session for good; what it holds is freed as soon as no step uses it."""
        if self._registry.remove(session):
            self._streams_of.pop(session, None)
            self._shared.observer.closed(session.tenant.name, reason)
            logger.info("%s: ended with %d tokens (%s)", session, session.max_committed, reason)
            self._track(session.end())

    def _track(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def _report_usage(self) -> None:
        parked = self._registry.num_parked
        attached = len(self._registry) - parked
        self._shared.observer.usage(attached, parked, self._shared.seats.kv_tokens)

    def _sweep_from_now_on(self) -> None:
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.ensure_future(self._sweep())

    async def _sweep(self) -> None:
        """End what has taken too long, while there is anything."""
        limits, now = self.limits, asyncio.get_running_loop().time
        while self._streams or len(self._registry):
            await asyncio.sleep(sweep_interval_s(limits))
            for stream in list(self._streams):
                error = overdue(
                    stream.waiting, now() - stream.since, limits, known=stream.session is not None
                )
                if error is not None:
                    stream.end(error)
            for session in self._registry.expired(now()):
                self._end(session, "expired")
            self._report_usage()


def shutting_down() -> SessionError:
    """Why a stream ends when the server stops."""
    return SessionError(ErrorCode.UNAVAILABLE, "the server is shutting down; connect again")


def taken_over() -> SessionError:
    """Why a stream ends whose session goes on over another one."""
    return SessionError(ErrorCode.ABORTED, "a newer stream has this session; give this one up")
