"""Attacks that gRPC's own client can carry out. Each says how it was met, and fails if it was met wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter

import grpc
import grpc.aio

from acespec.wire import (
    MAX_DRAFT_NODES,
    Busy,
    Decode,
    Draft,
    DraftNode,
    Opened,
    PrefixCheck,
    Reset,
    ResetReason,
    Resume,
    Round,
    encode_open,
)
from acespec.wire import verifier_pb2 as pb
from attacked_server import (
    ALICE,
    CODEC,
    MALLORY,
    OPEN,
    RawStream,
    Status,
    channel_to,
    ends_of,
    request_to_open,
)


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


async def draft_floods(address: str, count: int = 20, drafts: int = 20_000) -> str:
    """Races into which drafts as large as may be are poured, for what is asked and for what is not."""
    ask = CODEC.encode_edge(Decode(0, PrefixCheck((1, 2, 3)).value, 1, race=True))

    async def attack(channel: grpc.aio.Channel, seq: int) -> str:
        call = RawStream(channel)
        await call.say(OPEN, ask)

        async def flood() -> None:
            for number in range(drafts):
                nodes = tuple(DraftNode(k % 2, None) for k in range(MAX_DRAFT_NODES))
                draft = CODEC.encode_edge(Draft(seq, number * MAX_DRAFT_NODES, 2, nodes))
                if not await call.say(draft.SerializeToString()):
                    return

        flooding = asyncio.ensure_future(flood())
        await asyncio.wait([flooding], timeout=1.5)  # a stream that asks for nothing is ended after 2 s
        end = "over" if call.over else "taken" if flooding.done() else "held back"
        call.cancel()
        await flooding
        return end

    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(channel_to(address)) for _ in range(count)]
        ends = Counter(await asyncio.gather(*[attack(channel, k % 2) for k, channel in enumerate(channels)]))
    assert ends == {"held back": count}, ends
    return f"{count} held back"


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
