"""What must hold of the codec whatever bytes arrive, shared by the fuzzer and by Hypothesis.

An input is two bytes that choose what is decoded and for which session, and the bytes to decode. Most choices
are whole messages; the others put the bytes into one packed field, which protobuf's own framing hides from
random changes.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from acespec.wire import AcceptanceMode, Codec, SessionError, decode_first
from acespec.wire import verifier_pb2 as pb

VOCAB_SIZES = (2, 257, 300, 4096, 49_152, 151_936, 2**20)
MODES = tuple(AcceptanceMode)
NUM_SESSIONS = len(VOCAB_SIZES) * len(MODES)
EDGE_FIELDS = ("round", "round_resampled", "draft")
CLOUD_FIELDS = (
    "verdict_token",
    "verdict_end",
    "verdict_sparse",
    "verdict_draws",
    "more_sparse",
    "more_draws",
    "commit",
    "race_commit",
)
LONGEST_REASON = 600
"""Characters of a refusal: it names at most one model, of 256 characters."""
BYTES_PER_BYTE = 300
"""Bound of the peak memory of decoding and encoding for each byte received. A byte is at most one token: a
Python integer in a list and a tuple, 9 bytes for each of its bits while NumPy unpacks it, and a weighted one
stands in a set of pairs besides."""
BYTES_BESIDES = 32_768
"""Bound of what a message takes whatever its size: the codec, an object or an error, NumPy's fixed costs."""


@dataclass(frozen=True)
class Entry:
    """One way into the codec."""

    name: str
    parse: Callable[[bytes], pb.EdgeMessage | pb.CloudMessage]
    first: bool = False
    """Decoded as the first message of a stream."""


def _edge_field(name: str) -> Entry:
    return Entry(name, lambda data: pb.EdgeMessage(**{name: data}))  # type: ignore[arg-type]


def _cloud_field(name: str) -> Entry:
    return Entry(name, lambda data: pb.CloudMessage(**{name: data}))  # type: ignore[arg-type]


def _committed(data: bytes) -> pb.EdgeMessage:
    """An ``Open`` whose committed tokens are ``data``."""
    return pb.EdgeMessage(
        open=pb.Open(
            protocol_version=1,
            vocab_size=257,
            sampling=pb.Sampling(top_p=1.0, repetition_penalty=1.0),
            mode=pb.ACCEPTANCE_MODE_COUPLED,
            committed=data,
            prompt_length=1,
            token_limit=2**24 - 1,
        )
    )


ENTRIES = (
    Entry("edge", pb.EdgeMessage.FromString),
    Entry("cloud", pb.CloudMessage.FromString),
    Entry("first", pb.EdgeMessage.FromString, first=True),
    Entry("committed", _committed, first=True),
    *map(_edge_field, EDGE_FIELDS),
    *map(_cloud_field, CLOUD_FIELDS),
)
ENTRY_INDEX = {entry.name: index for index, entry in enumerate(ENTRIES)}


def session_of(choice: int) -> tuple[int, AcceptanceMode]:
    """Vocabulary size and mode that the second byte of an input chooses."""
    choice %= NUM_SESSIONS
    return VOCAB_SIZES[choice // len(MODES)], MODES[choice % len(MODES)]


def input_for(entry: str, vocab_size: int, mode: AcceptanceMode, data: bytes) -> bytes:
    """The input that has ``data`` decoded so."""
    session = VOCAB_SIZES.index(vocab_size) * len(MODES) + MODES.index(mode)
    return bytes([ENTRY_INDEX[entry], session]) + data


def check_bytes(data: bytes) -> bool:
    """Decode one input; returns whether it was a valid message.

    Fails unless the bytes are refused with one line, or are the one encoding of what they decode to; and
    unless the memory it took is bounded by their number.
    """
    if len(data) < 2:
        return False
    entry, payload = ENTRIES[data[0] % len(ENTRIES)], data[2:]
    codec = Codec(*session_of(data[1]))
    tracemalloc.start()
    try:
        accepted = _decode(codec, entry, payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    allowed = BYTES_BESIDES + BYTES_PER_BYTE * len(payload)
    assert peak <= allowed, f"{peak} bytes for a message of {len(payload)}"
    return accepted


def _decode(codec: Codec, entry: Entry, payload: bytes) -> bool:
    try:
        message = entry.parse(payload)
        again = _recoded(codec, entry, message)
    except DecodeError:  # the transport turns it into a refusal
        return False
    except SessionError as error:
        _check_reason(error.message)
        return False
    message.DiscardUnknownFields()
    message.ClearField("padding")
    assert again == message, f"{entry.name} is not the encoding of what it was decoded to"
    return True


def _check_reason(reason: str) -> None:
    assert reason, "a refusal says why"
    assert reason.isprintable(), "a refusal is one line"
    assert len(reason) <= LONGEST_REASON, "a refusal is short"


def _recoded(
    codec: Codec, entry: Entry, message: pb.EdgeMessage | pb.CloudMessage
) -> pb.EdgeMessage | pb.CloudMessage:
    """What ``message`` decodes to, encoded again."""
    if isinstance(message, pb.CloudMessage):
        return codec.encode_cloud(codec.decode_cloud(message))
    if entry.first:
        return codec.encode_edge(decode_first(message))
    return codec.encode_edge(codec.decode_edge(message))
