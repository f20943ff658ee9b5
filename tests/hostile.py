"""Attacks on a verifier process, and what they cost it: ``python tests/hostile.py``.

Each attack says how the server met it, and fails if it was met wrongly. Meanwhile a client that behaves must
get its text, and the server's resident memory is watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import click
import grpc
import grpc.aio

from acespec.edge_runtime.channel_security import ChannelSecurity
from acespec.edge_runtime.grpc_transport import LinkSettings, VerifierChannel, result_at_once
from acespec.speculation import SamplingParams
from acespec.wire import (
    AcceptanceMode,
    Busy,
    Close,
    CloudMessage,
    Codec,
    EdgeTransport,
    ErrorCode,
    Open,
    Opened,
    PrefixCheck,
    Reset,
    ResetReason,
    Resume,
    Round,
    SessionError,
    TokenVerdict,
    encode_open,
)
from acespec.wire import verifier_pb2 as pb
from coupled_text import coupled_text, remembered
from fake_draft import hashed_table
from raw_http2 import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GRPC_HEADERS,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    RawConnection,
    frame,
    grpc_message,
    header_block,
    open_stream,
)
from server_process import ServerProcess
from table_server import MAX_CONTEXT, VOCAB, table_server

SALT = 1
TABLE = remembered(hashed_table(VOCAB, SALT))
LIMITS = {
    "max_sessions": 64,
    "open_timeout_s": 1.0,
    "idle_timeout_s": 2.0,
    "write_timeout_s": 1.0,
    "resume_ttl_s": 2.0,
    "busy_retry_ms": 50,
}
OPTIONS = {"max_connections": 256, "max_streams": 96, "handshake_timeout_s": 2.0}
QUOTA = {"max_sessions": 48}
"""Of one tenant: some of the server is left for others."""
MALLORY, ALICE = "mallory", "alice"
MOST_MIB = 80.0
"""Resident memory the server may take beyond what it has before the first attack, at any time."""
IN_GRPC = ("unfinished_headers",)
"""Attacks on gRPC that no setting of it bounds: their memory is reported and not counted. One connection has
been seen to take some 25 MiB for 10 MB of such headers, some 400 MiB for 1.6 GB sent as fast as it goes."""
SAMPLE_S = 0.05

Status = grpc.StatusCode


def server_command(port: int) -> list[str]:
    """The server under attack."""
    return table_server(
        "--port", str(port), "--salt", str(SALT), "--forward-ms", "1", "--kv-tokens", str(64 * MAX_CONTEXT),
        "--limits", json.dumps(LIMITS), "--options", json.dumps(OPTIONS), "--quota", json.dumps(QUOTA),
    )  # fmt: skip


def request_to_open(seed: int = 1, **changes: object) -> Open:
    """An ``Open`` the server accepts, with ``changes``."""
    request = Open(
        model="",
        fingerprint="",
        vocabulary_hash="a" * 64,
        vocab_size=VOCAB,
        end_token_ids=(),
        sampling=SamplingParams(),
        seed=seed,
        mode=AcceptanceMode.COUPLED,
        committed=(1, 2, 3),
        prompt_length=3,
        token_limit=40,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


OPEN = encode_open(request_to_open())
CODEC = Codec(VOCAB, AcceptanceMode.COUPLED)


@contextlib.asynccontextmanager
async def channel_to(address: str) -> AsyncIterator[grpc.aio.Channel]:
    """A connection of its own."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel


class RawStream:
    """A session's stream that takes bytes as they are."""

    def __init__(
        self, channel: grpc.aio.Channel, tenant: str = MALLORY, extra: tuple[tuple[str, str], ...] = ()
    ) -> None:
        metadata = (("authorization", f"Bearer {tenant}"), *extra)
        self._call = channel.stream_stream("/acespec.v1.Verifier/Session")(metadata=metadata)
        self._status: Status | None = None
        self._call.add_done_callback(self._note_status)

    async def say(self, *messages: bytes | pb.EdgeMessage) -> bool:
        """Send messages; False once the stream is over."""
        try:
            for message in messages:
                await self._call.write(message if isinstance(message, bytes) else message.SerializeToString())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            if not self._call.done():
                raise
            return False
        return True

    async def hear(self) -> CloudMessage | Status:
        """The next message, or the stream's status."""
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError:
            message = grpc.aio.EOF
        if isinstance(message, bytes):
            return CODEC.decode_cloud(pb.CloudMessage.FromString(message))
        await self._call.code()
        assert self._status is not None
        return self._status

    async def end(self) -> Status:
        """Read to the end."""
        while not isinstance(heard := await asyncio.wait_for(self.hear(), 20.0), Status):
            pass
        return heard

    def cancel(self) -> None:
        self._call.cancel()

    @property
    def over(self) -> bool:
        return self._call.done()

    def _note_status(self, _: object) -> None:
        """Keep the status at the moment it is there: grpc.aio may put an INTERNAL of its own in its place."""
        self._status = self._status or result_at_once(self._call.code())


async def ends_of(streams: list[RawStream]) -> Counter[str]:
    return Counter([status.name for status in await asyncio.gather(*(one.end() for one in streams))])


# --- the attacks --------------------------------------------------------------------------------------------


async def oversize_fields(address: str) -> str:
    """Every field of Open beyond its bound, and prompts beyond the context."""
    fine = pb.EdgeMessage.FromString(OPEN.SerializeToString())
    wrong: list[pb.EdgeMessage] = []
    for field, value in (
        ("model", "m" * 257),
        ("fingerprint", "f" * 20_000),
        ("vocabulary_hash", "v" * 257),
        ("vocab_size", 2**32 - 1),
        ("committed", bytes(60_000)),
        ("prompt_length", 2**32 - 1),
        ("token_limit", 2**32 - 1),
        ("mode", 7),
    ):
        message = pb.EdgeMessage.FromString(fine.SerializeToString())
        setattr(message.open, field, value)
        wrong.append(message)
    many_ends = pb.EdgeMessage.FromString(fine.SerializeToString())
    many_ends.open.end_token_ids.extend([1] * 15_000)
    hot = pb.EdgeMessage.FromString(fine.SerializeToString())
    hot.open.sampling.temperature = float("nan")
    long_prompt = encode_open(request_to_open(committed=(1,) * 600, prompt_length=600, token_limit=601))
    long_id = pb.EdgeMessage(resume=pb.Resume(session_id=bytes(60_000), epoch=1, committed=1))
    wrong += [many_ends, hot, long_prompt, long_id]
    async with channel_to(address) as channel:
        for message in wrong * 20:
            call = RawStream(channel)
            await call.say(message)
            assert await call.end() in (Status.INVALID_ARGUMENT, Status.FAILED_PRECONDITION)
    return f"{20 * len(wrong)} refused"


async def oversize_messages(address: str) -> str:
    """Messages of megabytes, and of the largest size that is taken, filled with nothing."""
    async with channel_to(address) as channel:
        for _ in range(30):
            call = RawStream(channel)
            await call.say(bytes(8 * 2**20))
            assert await call.end() is Status.RESOURCE_EXHAUSTED
        for _ in range(100):
            call = RawStream(channel)
            await call.say(pb.EdgeMessage(padding=bytes(70_000)))
            assert await call.end() is Status.INVALID_ARGUMENT
    return "130 refused"


async def opens_in_turn(address: str, count: int = 10_000) -> str:
    """Sessions opened one after another and left behind."""
    async with channel_to(address) as channel:
        for _ in range(count):
            call = RawStream(channel)
            await call.say(OPEN)
            assert isinstance(await call.hear(), Opened | Busy)
            call.cancel()
    return f"{count} opened and displaced"


async def opens_at_once(address: str, count: int = 10_000, channels: int = 20) -> str:
    """Sessions opened all at once, over many connections; each waits for what it is told."""
    told: Counter[str] = Counter()

    async def attack(channel: grpc.aio.Channel) -> None:
        call = RawStream(channel)
        await call.say(OPEN)
        heard = await call.hear()
        told[heard.name if isinstance(heard, Status) else type(heard).__name__] += 1
        call.cancel()

    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(channel_to(address)) for _ in range(channels)]
        await asyncio.gather(*(attack(opened[i % channels]) for i in range(count)))
    # gRPC cancels or refuses by itself what comes faster than streams are taken on.
    assert set(told) <= {"Opened", "Busy", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "CANCELLED"}, told
    return ", ".join(f"{number} {what}" for what, number in sorted(told.items()))


async def slow_readers(address: str, count: int = 40, replays: int = 20_000) -> str:
    """A round replayed without end, over streams whose verdicts nobody reads."""
    first = Round(0, PrefixCheck((1, 2, 3)).value, (1, 1))
    message = CODEC.encode_edge(first).SerializeToString()

    async def attack(channel: grpc.aio.Channel) -> str:
        call = RawStream(channel)
        await call.say(OPEN)

        async def flood() -> None:
            for _ in range(replays):
                if not await call.say(message):
                    return

        flooding = asyncio.ensure_future(flood())
        await asyncio.wait([flooding], timeout=6.0)
        end = (await call.end()).name if call.over else "held back"
        call.cancel()
        await flooding
        return end

    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(channel_to(address)) for _ in range(count)]
        ends = Counter(await asyncio.gather(*map(attack, channels)))
    assert set(ends) <= {"held back", "UNAVAILABLE"}, ends
    return ", ".join(f"{number} {what}" for what, number in sorted(ends.items()))


async def slow_writers(address: str, count: int = 100) -> str:
    """Connections that bring half a preface, half an Open, or one byte of it every now and then."""
    message = grpc_message(OPEN.SerializeToString())
    promise = grpc_message(bytes(60_000))[:50]

    async def half_a_preface() -> bool:
        async with RawConnection(address) as raw:
            await raw.send(PREFACE[:10])
            return await raw.closed(10.0)

    async def trickle(data: bytes) -> bool:
        async with RawConnection(address) as raw:
            await raw.greet()
            await raw.send(open_stream(1, [("authorization", f"Bearer {MALLORY}")]))
            until = time.monotonic() + 3.0
            for byte in data:
                if time.monotonic() > until or not await raw.send(frame(DATA, 1, bytes([byte]))):
                    break
                await asyncio.sleep(0.1)
            return True

    ended = await asyncio.gather(
        *(half_a_preface() for _ in range(count // 2)),
        *(trickle(message) for _ in range(count // 4)),
        *(trickle(promise) for _ in range(count // 4)),
    )
    assert all(ended)
    return f"{count} ended"


async def idle_streams(address: str, count: int = 25) -> str:
    """Sessions that ask for nothing, and streams that never introduce themselves."""
    async with channel_to(address) as channel:
        mute = [RawStream(channel) for _ in range(count)]
        idle = [RawStream(channel) for _ in range(count)]
        for call in idle:
            await call.say(OPEN)
        ends = await ends_of([*mute, *idle])
    assert ends == {"UNAVAILABLE": 2 * count}, ends
    return f"{2 * count} ended"


async def session_id_guesses(address: str, count: int = 2000) -> str:
    """Resuming sessions by ids made up, and by the real id of another tenant's session."""
    async with channel_to(address) as channel:
        victim = RawStream(channel, ALICE)
        await victim.say(OPEN)
        opened = await victim.hear()
        assert isinstance(opened, Opened)
        call = RawStream(channel)
        for number in range(count):
            guess = opened.session_id if number % 2 else secrets.token_bytes(len(opened.session_id))
            await call.say(CODEC.encode_edge(Resume(guess, 1 + number, 1)))
            assert await call.hear() == Reset(1 + number, ResetReason.UNKNOWN_SESSION)
        call.cancel()
        victim.cancel()
    return f"{count} told nothing"


async def altered_replays(address: str, count: int = 200) -> str:
    """A round sent again under its number with another chain."""
    check = PrefixCheck((1, 2, 3)).value
    async with channel_to(address) as channel:
        for _ in range(count):
            call = RawStream(channel)
            first, altered = Round(0, check, (1,)), Round(0, check, (2,))
            await call.say(OPEN, CODEC.encode_edge(first), CODEC.encode_edge(altered))
            assert await call.end() is Status.INVALID_ARGUMENT
    return f"{count} refused"


async def metadata_floods(address: str, count: int = 300) -> str:
    """Streams with far more metadata than a token takes: one large value, and many small ones."""
    large = (("x-large", "x" * 200_000),)
    many = tuple((f"x-{number}", "x" * 50) for number in range(2000))
    refused: Counter[str] = Counter()
    for extra in (large, many):
        async with channel_to(address) as channel:
            calls = []
            for _ in range(count // 2):
                call = RawStream(channel, MALLORY, extra)
                await call.say(OPEN)
                calls.append(call)
            refused += await ends_of(calls)
    assert "OK" not in refused
    assert "INTERNAL" not in refused
    return ", ".join(f"{number} {what}" for what, number in sorted(refused.items()))


async def unfinished_headers(address: str, frames: int = 2000) -> str:
    """Headers that never end (CVE-2024-27316). gRPC itself takes them, before any code here is asked."""
    block = header_block([(f"x-{number}", "x" * 100) for number in range(100)])

    async def attack() -> bool:
        async with RawConnection(address) as raw:
            await raw.greet()
            await raw.send(frame(HEADERS, 1, header_block(GRPC_HEADERS)))
            for _ in range(frames):
                if not await raw.send(frame(CONTINUATION, 1, block)):
                    return True
            await raw.send(frame(CONTINUATION, 1, b"", END_HEADERS))
            return await raw.closed(0.5)

    closed = await asyncio.gather(*(attack() for _ in range(4)))
    return f"{sum(closed)} of {len(closed)} connections closed"


async def ping_floods(address: str, count: int = 50_000) -> str:
    """Pings and settings without end, whose answers nobody reads (CVE-2019-9512 and -9515)."""

    async def attack(data: bytes) -> bool:
        async with RawConnection(address) as raw:
            await raw.greet()
            with contextlib.suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(flood(raw, data), 6.0)
            return False

    async def flood(raw: RawConnection, data: bytes) -> bool:
        for _ in range(count // 100):
            if not await raw.send(data * 100):
                return True
        return await raw.closed(3.0)

    pings, settings = frame(PING, 0, bytes(8)), frame(SETTINGS, 0)
    closed = await asyncio.gather(*(attack(data) for data in (pings, settings) * 4))
    return f"{sum(closed)} of {len(closed)} connections closed, the others held back"


async def rapid_resets(address: str, count: int = 10_000) -> str:
    """Streams begun and cancelled at once (CVE-2023-44487), by hand and by gRPC's own client."""

    async def by_hand() -> bool:
        async with RawConnection(address) as raw:
            await raw.greet()
            opening = grpc_message(OPEN.SerializeToString())
            for number in range(count):
                identifier = 2 * number + 1
                sent = await raw.send(
                    open_stream(identifier, [("authorization", f"Bearer {MALLORY}")])
                    + frame(DATA, identifier, opening)
                    + frame(RST_STREAM, identifier, CANCEL.to_bytes(4, "big"))
                )
                if not sent:
                    return True
                if number % 50 == 0:
                    await asyncio.sleep(0)
            return await raw.closed(0.5)

    await asyncio.gather(*(by_hand() for _ in range(2)))
    async with channel_to(address) as channel:
        for _ in range(count // 5):
            call = RawStream(channel)
            await call.say(OPEN)
            call.cancel()
    return f"{2 * count + count // 5} survived"


ATTACKS: dict[str, Callable[[str], Awaitable[str]]] = {
    attack.__name__: attack
    for attack in (
        oversize_fields,
        oversize_messages,
        opens_in_turn,
        opens_at_once,
        slow_readers,
        slow_writers,
        idle_streams,
        session_id_guesses,
        altered_replays,
        metadata_floods,
        ping_floods,
        rapid_resets,
        unfinished_headers,
    )
}


# --- what must hold meanwhile -------------------------------------------------------------------------------


@dataclass
class Watch:
    """Resident memory of the server over an attack, in MiB."""

    before: float
    most: float
    after: float = 0.0


async def behaved_texts(address: str, stop: asyncio.Event) -> int:
    """Generate texts, in rounds right and wrong, until ``stop``; returns how many: all must be right."""
    num_texts = 0
    while not stop.is_set() or num_texts == 0:
        async with VerifierChannel(address, LinkSettings(ChannelSecurity(token=ALICE))) as channel:
            try:
                await behaved_text(channel, request_to_open(seed=num_texts))
            except SessionError as error:
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.05)
                continue
        num_texts += 1
    return num_texts


async def behaved_text(channel: VerifierChannel, request: Open) -> None:
    """One text over a stream of its own."""
    truth = coupled_text(TABLE, request, MAX_CONTEXT)
    link = channel.session()
    committed, seq = list(request.committed), 0
    await admitted(link, request)
    while len(committed) < len(truth):
        room = request.token_limit - len(committed) - 1
        chain = truth[len(committed) : len(committed) + min(3, room)]
        if chain and seq % 3 == 0:
            chain[-1] = (chain[-1] + 1) % VOCAB
        await link.send(CODEC.encode_edge(Round(seq, PrefixCheck(committed).value, tuple(chain))))
        verdict = CODEC.decode_cloud(await link.receive())
        assert isinstance(verdict, TokenVerdict)
        committed += [*chain[: verdict.accepted], verdict.next_token]
        seq += 1
    assert committed == truth
    await link.send(CODEC.encode_edge(Close()))
    await link.close()


async def admitted(link: EdgeTransport, request: Open) -> None:
    """Open the session; while the server is full it says how long to wait."""
    await link.send(encode_open(request))
    while not isinstance(message := CODEC.decode_cloud(await link.receive()), Opened):
        assert isinstance(message, Busy)
        await asyncio.sleep(message.retry_ms / 1000.0)
        await link.send(encode_open(request))


async def sample(server: ServerProcess, watch: Watch) -> None:
    while True:
        watch.most = max(watch.most, mebibytes(server))
        await asyncio.sleep(SAMPLE_S)


def mebibytes(server: ServerProcess) -> float:
    return server.resident_bytes / 2**20


async def survive(server: ServerProcess, attack: Callable[[str], Awaitable[str]]) -> tuple[str, int, Watch]:
    """Carry an attack out; returns how it was met, how many texts were right meanwhile, and the memory."""
    watch = Watch(before=mebibytes(server), most=mebibytes(server))
    stop = asyncio.Event()
    sampling = asyncio.ensure_future(sample(server, watch))
    behaving = asyncio.ensure_future(behaved_texts(server.address, stop))
    try:
        met = await attack(server.address)
    finally:
        stop.set()
        num_texts = await behaving
        sampling.cancel()
    watch.after = mebibytes(server)
    return met, num_texts, watch


async def warm_up(server: ServerProcess) -> float:
    """Serve a few texts, so that what every process takes once is taken; returns the memory then, in MiB."""
    stop = asyncio.Event()
    stop.set()
    for _ in range(5):
        await behaved_texts(server.address, stop)
    return mebibytes(server)


async def survive_all(names: tuple[str, ...]) -> bool:
    """Carry out attacks on one server and print what became of it; whether it held against all of them."""
    async with ServerProcess(server_command) as server:
        base = await warm_up(server)
        click.echo(f"{'attack':>22}{'texts':>7}{'before':>9}{'most':>9}{'after':>9} MiB resident")
        most, held = base, True
        for name in names:
            click.echo(f"{name.replace('_', ' '):>22}", nl=False)
            try:
                met, num_texts, watch = await survive(server, ATTACKS[name])
            except (AssertionError, SessionError) as error:
                held = False
                click.echo(f"  FAILED: {error}")
                continue
            if name not in IN_GRPC:
                most = max(most, watch.most)
            memory = f"{watch.before:>9.1f}{watch.most:>9.1f}{watch.after:>9.1f}"
            click.echo(f"{num_texts:>7}{memory}      {met}")
        click.echo(
            f"resident memory: {base:.1f} MiB before, {most:.1f} MiB at most (without that of "
            f"{', '.join(IN_GRPC)}): {most - base:.1f} MiB more; the bound is {MOST_MIB:g} MiB"
        )
        return held and most - base <= MOST_MIB


@click.command()
@click.argument("attacks", nargs=-1, type=click.Choice(list(ATTACKS)))
def main(attacks: tuple[str, ...]) -> None:
    """Carry out ATTACKS, all by default, on a server of a table. Exit status 1 if it did not hold."""
    if not asyncio.run(survive_all(attacks or tuple(ATTACKS))):
        sys.exit(1)


if __name__ == "__main__":
    main()
