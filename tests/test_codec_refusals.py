"""Decoding refuses whatever breaks a layout or a bound, with one precise line, and fails in no other way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from acespec.wire import (
    AcceptanceMode,
    Codec,
    ErrorCode,
    SessionError,
    decode_first,
    encode_open,
)
from acespec.wire import verifier_pb2 as pb
from wire_messages import (
    COUPLED,
    RESIDUAL,
    cloud_messages,
    edge_messages,
    example_open,
    packed,
    payload,
    sessions,
    unhurried,
)

PACKED_EDGE = ["round", "round_resampled", "draft"]
PACKED_CLOUD = [
    "verdict_token",
    "verdict_end",
    "verdict_sparse",
    "verdict_draws",
    "more_sparse",
    "more_draws",
    "commit",
    "race_commit",
]


@contextmanager
def refusal(pattern: str, code: ErrorCode = ErrorCode.INVALID_ARGUMENT) -> Iterator[None]:
    """The block raises a ``SessionError`` of this code whose one line matches."""
    with pytest.raises(SessionError) as raised:
        yield
    assert raised.value.code is code
    assert re.search(pattern, raised.value.message), raised.value.message
    assert "\n" not in raised.value.message


# --- the handshake ------------------------------------------------------------------------------------------


def open_with(**changes: object) -> pb.EdgeMessage:
    """A valid Open with fields changed; ``sampling_x`` changes the field x of its sampling."""
    message = encode_open(example_open())
    for name, value in changes.items():
        if name.startswith("sampling_"):
            setattr(message.open.sampling, name.removeprefix("sampling_"), value)
        else:
            setattr(message.open, name, value)
    return message


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        (pb.EdgeMessage(), "first message.*open or resume, not empty"),
        (pb.EdgeMessage(close=pb.Close()), "first message.*open or resume, not close"),
        (open_with(vocab_size=1), r"vocab_size must be 2\.\.1048576, not 1"),
        (open_with(vocab_size=2**20 + 1), "vocab_size must be"),
        (open_with(mode=0), "unknown acceptance mode 0"),
        (open_with(mode=3), "unknown acceptance mode 3"),
        (open_with(model="m" * 257), "model has 257 characters, at most 256"),
        (open_with(fingerprint="f" * 257), "fingerprint has 257"),
        (open_with(vocabulary_hash="v" * 257), "vocabulary_hash has 257"),
        (open_with(sampling_temperature=-1.0), "temperature must be"),
        (open_with(sampling_temperature=float("nan")), "temperature must be"),
        (open_with(sampling_top_p=0.0), "top_p must be"),
        (open_with(sampling_top_k=2**32 - 1), "top_k must be"),
        (open_with(sampling_min_p=1.5), "min_p must be"),
        (open_with(sampling_repetition_penalty=0.0), "repetition_penalty must be"),
        (open_with(committed=b""), "prompt is empty"),
        (open_with(committed=packed((1, 9), (2, 9), (300, 9))), "token 300 is outside the vocabulary of 300"),
        (open_with(committed=b"\0"), "8 bits are no whole number of 9-bit items"),
        (open_with(committed=packed((1, 9), (2, 9), (1, 14))), "padding"),
        (open_with(prompt_length=0), r"prompt_length must be 1\.\.3, not 0"),
        (open_with(prompt_length=4), r"prompt_length must be 1\.\.3, not 4"),
        (open_with(token_limit=3), "3 tokens are committed and token_limit 3 leaves none"),
        (open_with(token_limit=2**24), "token_limit must be"),
        (open_with(mode=2, race=True), "race belongs to coupled mode"),
    ],
)
def test_open_refuses(message: pb.EdgeMessage, pattern: str) -> None:
    with refusal(pattern):
        decode_first(message)


@pytest.mark.parametrize(
    ("end_token_ids", "pattern"),
    [
        ([300], "end_token_ids: token 300 is outside the vocabulary of 300"),
        ([1] * 65, "at most 64 end tokens"),
    ],
)
def test_open_refuses_end_tokens(end_token_ids: list[int], pattern: str) -> None:
    message = encode_open(example_open())
    message.open.end_token_ids[:] = end_token_ids
    with refusal(pattern):
        decode_first(message)


def test_open_refuses_missing_sampling() -> None:
    message = encode_open(example_open())
    message.open.ClearField("sampling")
    with refusal("sampling is missing"):
        decode_first(message)


def test_open_names_both_protocol_versions() -> None:
    # Another version may well have other modes: the version is what the user must hear about.
    with refusal("version 9, this server 1: install", ErrorCode.FAILED_PRECONDITION):
        decode_first(open_with(protocol_version=9, mode=77))


def opened_with(**fields: Any) -> pb.Opened:
    """A valid one but for ``fields``."""
    valid = {"session_id": b"s", "max_context": 1, "max_chain": 1, "idle_timeout_ms": 1}
    return pb.Opened(**{**valid, **fields})


@pytest.mark.parametrize(
    ("opened", "pattern"),
    [
        (opened_with(session_id=b"s" * 65), r"session_id must be 1\.\.64, not 65"),
        (opened_with(session_id=b""), r"session_id must be 1\.\.64, not 0"),
        (opened_with(max_context=0), "max_context must be"),
        (opened_with(max_chain=0), r"max_chain must be 1\.\.63, not 0"),
        (opened_with(max_chain=64), "max_chain must be"),
        (opened_with(model="m" * 257), "model has 257"),
        (opened_with(idle_timeout_ms=0), "idle_timeout_ms must be"),
        (opened_with(eagerness=4, max_race_nodes=1), "unknown eagerness 4"),
        (opened_with(eagerness=1), r"max_race_nodes must be 1\.\.65536, not 0"),
        (opened_with(eagerness=1, max_race_nodes=65_537), "not 65537"),
        (opened_with(max_race_nodes=1), r"max_race_nodes without a race must be 0\.\.0, not 1"),
    ],
)
def test_opened_refuses(opened: pb.Opened, pattern: str) -> None:
    with refusal(pattern):
        Codec(300, COUPLED).decode_cloud(pb.CloudMessage(opened=opened))


# --- from the edge, a vocabulary of 300: 9-bit tokens -------------------------------------------------------

ROUND = ((1, 6), (0, 2), (9, 16))


@pytest.mark.parametrize(
    ("mode", "kind", "data", "pattern"),
    [
        (COUPLED, "round", b"", "0 bytes are too few"),
        (COUPLED, "round", b"\0\0", "2 bytes are too few"),
        (COUPLED, "round", packed((1, 6), (1, 2), (9, 16)), "two bits after seq"),
        (COUPLED, "round", packed(*ROUND, (1, 9), (300, 9)), "token 300 is outside"),
        (COUPLED, "round", packed(*ROUND, (0, 8)), "8 bits are no whole number of 9-bit items"),
        (COUPLED, "round", packed(*ROUND, (1, 9), (1, 7)), "padding"),
        (COUPLED, "round", packed(*ROUND, *[(1, 9)] * 64), "chain of 64 tokens, at most 63"),
        (COUPLED, "round_resampled", packed(*ROUND, (1, 9)), "belongs to residual mode"),
        (RESIDUAL, "round", packed(*ROUND, (1, 9)), "16 bits are no whole number of 25-bit items"),
        (RESIDUAL, "round", packed(*ROUND, (300, 9), (0, 16)), "token 300 is outside"),
        (RESIDUAL, "round", packed(*ROUND, *[(1, 9), (1, 16)] * 64), "chain of 64 tokens"),
        (RESIDUAL, "round_resampled", packed(*ROUND), "3 bytes are too few"),
        (RESIDUAL, "round_resampled", packed(*ROUND, (300, 9)), "token 300 is outside"),
        (RESIDUAL, "round_resampled", packed(*ROUND, (1, 9), (1, 7)), "padding"),
    ],
)
def test_rounds_refuse(mode: AcceptanceMode, kind: str, data: bytes, pattern: str) -> None:
    message = pb.EdgeMessage()
    setattr(message, kind, data)
    with refusal(f"^{kind}.*{pattern}"):
        Codec(300, mode).decode_edge(message)


@pytest.mark.parametrize(
    ("mode", "message", "pattern"),
    [
        (COUPLED, pb.EdgeMessage(), "no kind known"),
        (COUPLED, pb.EdgeMessage(decode=pb.Decode(seq=64, count=1)), r"seq must be 0\.\.63, not 64"),
        (COUPLED, pb.EdgeMessage(decode=pb.Decode(prefix_check=2**16, count=1)), "prefix_check must be"),
        (COUPLED, pb.EdgeMessage(decode=pb.Decode(count=0)), "count must be"),
        (COUPLED, pb.EdgeMessage(decode=pb.Decode(count=2**24)), "count must be"),
        (COUPLED, pb.EdgeMessage(decode=pb.Decode(count=1, resampled=0)), "belongs to residual mode"),
        (RESIDUAL, pb.EdgeMessage(decode=pb.Decode(count=1, resampled=300)), "token 300 is outside"),
        (RESIDUAL, pb.EdgeMessage(decode=pb.Decode(count=1, race=True)), "race belongs to coupled mode"),
        (COUPLED, pb.EdgeMessage(more_draws=pb.MoreDraws(first_index=8)), "belongs to residual mode"),
        (RESIDUAL, pb.EdgeMessage(more_draws=pb.MoreDraws(first_index=0)), "first_index must be"),
        (RESIDUAL, pb.EdgeMessage(more_draws=pb.MoreDraws(first_index=2**24)), "first_index must be"),
        (RESIDUAL, pb.EdgeMessage(more_draws=pb.MoreDraws(position=2**24)), "position must be"),
    ],
)
def test_edge_messages_refuse(mode: AcceptanceMode, message: pb.EdgeMessage, pattern: str) -> None:
    with refusal(pattern):
        Codec(300, mode).decode_edge(message)


DRAFT = ((1, 6), (0, 1))
ROOTED = (*DRAFT, (1, 1), (5, 32), (9, 24))
"""Of request 1, from node 5 on, rooted at position 9."""
UNROOTED = (*DRAFT, (0, 1), (5, 32))
BEFORE, SIBLING, UP, ROOT, NEAR, FAR = (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6)
"""Codes of what a node follows, of a vocabulary of 300."""
ONE = (0, 4), (1, 1)
"""Token 1, told as the first."""
AGAIN = (0, 1)
"""The only token told, again."""
NEW = (1, 1)
OTHERS = BEFORE, NEW, (0, 4), (0, 1), BEFORE, NEW, (1, 4), (1, 1)
"""Tokens 0 and 3, behind it."""


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ((), "0 bytes are too few"),
        (((1, 6), (1, 1), (0, 1), (5, 32)), "bit after seq"),
        (UNROOTED, "no nodes"),
        (ROOTED, "no nodes"),
        ((*DRAFT, (1, 1), (5, 32)), "ends within a node"),
        ((*UNROOTED, NEAR, (0, 7), (8, 4), (44, 8)), "token 300 is outside"),
        ((*UNROOTED, NEAR, (0, 7), (15, 4), (0, 15)), "token 32768 is outside"),
        ((*UNROOTED, NEAR, (0, 7), *ONE, (0, 8)), "bits of padding"),
        ((*UNROOTED, NEAR, (0, 7), (15, 4), (1, 1)), "ends within a node"),
        ((*UNROOTED, NEAR, (0, 7), *ONE, FAR, (1, 1)), "ends within a node"),
        ((*UNROOTED, (0, 6), (1, 1), *ONE), "no code begins with 6 zeros"),
        ((*UNROOTED, NEAR, (0, 7), *ONE, *[BEFORE, AGAIN] * 255), "more than 255 nodes"),
        ((*UNROOTED, BEFORE, *ONE), "follows one 0 levels up a line of 0"),
        ((*UNROOTED, SIBLING, *ONE), "follows one 1 levels up a line of 0"),
        ((*UNROOTED, NEAR, (0, 7), *ONE, UP, (0, 2), AGAIN), "follows one 2 levels up a line of 2"),
        ((*UNROOTED, NEAR, (5, 7), *ONE), "a node follows one 6 before 5"),
        ((*UNROOTED, FAR, (5, 16), *ONE), "a node follows one 6 before 5"),
        ((*UNROOTED, FAR, (0, 16), *ONE), "a parent is told in more bits"),
        ((*UNROOTED, NEAR, (0, 7), *ONE, FAR, (0, 16), AGAIN), "a parent is told in more bits"),
        ((*UNROOTED, NEAR, (0, 7), *ONE, NEAR, (0, 7), AGAIN), "a parent is told in more bits"),
        ((*ROOTED, ROOT, *ONE, ROOT, AGAIN), "a parent is told in more bits"),
        ((*UNROOTED, NEAR, (0, 7), *ONE, BEFORE, NEW, *ONE), "a token is told in more bits"),
        ((*UNROOTED, NEAR, (0, 7), *ONE, *OTHERS, BEFORE, (0, 1), (3, 2)), "token 3 of 3 told before"),
        ((*UNROOTED, ROOT, *ONE), "root is told where no node follows it, or is missing"),
        ((*ROOTED, NEAR, (0, 7), *ONE), "root is told where no node follows it, or is missing"),
        ((*DRAFT, (0, 1), (2**32 - 1, 32), NEAR, (0, 7), *ONE, BEFORE, AGAIN), "first_id must be"),
    ],
)
def test_drafts_refuse(fields: tuple[tuple[int, int], ...], pattern: str) -> None:
    with refusal(f"^draft.*{pattern}"):
        Codec(300, COUPLED).decode_edge(pb.EdgeMessage(draft=packed(*fields)))


def test_residual_mode_has_no_drafts() -> None:
    with refusal("draft belongs to coupled mode"):
        Codec(300, RESIDUAL).decode_edge(pb.EdgeMessage(draft=packed(*UNROOTED, NEAR, (0, 7), *ONE)))


# --- from the cloud -----------------------------------------------------------------------------------------

VERDICT = ((1, 6), (2, 6), (0, 8), (0, 8))
BITS = (3, 6)
"""Weights out of 8."""


@pytest.mark.parametrize(
    ("mode", "kind", "data", "pattern"),
    [
        (COUPLED, "verdict_token", packed(*VERDICT), "4 bytes instead of 5"),
        (COUPLED, "verdict_token", packed(*VERDICT, (1, 9), (0, 9)), "6 bytes instead of 5"),
        (COUPLED, "verdict_token", packed(*VERDICT, (1, 9), (1, 3)), "padding"),
        (COUPLED, "verdict_token", packed(*VERDICT, (300, 9)), "token 300 is outside"),
        (COUPLED, "verdict_end", packed(*VERDICT, (0, 8)), "5 bytes instead of 4"),
        (COUPLED, "verdict_end", packed(*VERDICT, (1, 4)), "padding"),
        (COUPLED, "verdict_end", packed((1, 6), (0, 6), (0, 16)), "accepted cannot be 0"),
        (COUPLED, "verdict_sparse", packed(*VERDICT, BITS, (1, 9), (7, 3)), "belongs to residual mode"),
        (COUPLED, "verdict_draws", packed(*VERDICT, BITS, (1, 9), (7, 3)), "belongs to residual mode"),
        (COUPLED, "more_sparse", packed(BITS, (1, 9), (7, 3)), "belongs to residual mode"),
        (COUPLED, "more_draws", packed(BITS, (8, 24), (1, 9), (7, 3)), "belongs to residual mode"),
        (RESIDUAL, "verdict_sparse", b"\0\0\0", "3 bytes are too few"),
        (RESIDUAL, "verdict_sparse", packed(*VERDICT), "too few bits"),
        (RESIDUAL, "verdict_sparse", packed(*VERDICT, (0, 6)), "weights of 0 bits"),
        (RESIDUAL, "verdict_sparse", packed(*VERDICT, (41, 6)), "weights of 41 bits"),
        (RESIDUAL, "verdict_sparse", packed(*VERDICT, BITS), "sum to 0, not to 2\\*\\*3"),
        (RESIDUAL, "verdict_sparse", packed((1, 6), (63, 6), (0, 16), BITS), "63 tokens accepted"),
        (RESIDUAL, "more_sparse", b"", "too few bits"),
        (RESIDUAL, "more_sparse", packed(BITS, (5, 9), (3, 3), (4, 9), (3, 3)), "do not ascend"),
        (RESIDUAL, "more_sparse", packed(BITS, (5, 9), (3, 3), (5, 9), (3, 3)), "do not ascend"),
        (RESIDUAL, "more_sparse", packed(BITS, (5, 9), (3, 3), (6, 9), (2, 3)), "sum to 7, not"),
        (RESIDUAL, "more_sparse", packed(BITS, (5, 9), (3, 3), (300, 9), (3, 3)), "token 300 is outside"),
        (RESIDUAL, "more_sparse", packed(BITS, *[(5, 9), (3, 3)] * 301), "301 tokens of a vocabulary of 300"),
        (RESIDUAL, "more_sparse", packed(BITS, (0, 10)), "no whole number of 12-bit items"),
        (RESIDUAL, "more_sparse", packed(BITS, (5, 9), (7, 3), (1, 6)), "padding"),
        (RESIDUAL, "verdict_draws", packed(*VERDICT, BITS), "0 draws"),
        (RESIDUAL, "more_draws", packed(BITS), "too few bits"),
        (RESIDUAL, "more_draws", packed(BITS, (0, 24), (5, 9), (3, 3)), "first_index cannot be 0"),
        (RESIDUAL, "more_draws", packed(BITS, (8, 24), (5, 9), (3, 3), (5, 9), (2, 3)), "two weights"),
        (RESIDUAL, "more_draws", packed(BITS, (8, 24), (5, 9), (3, 3), (6, 9), (4, 3)), "more than 2\\*\\*3"),
        (COUPLED, "commit", packed((1, 24), (0, 8)), "4 bytes are too few"),
        (COUPLED, "commit", packed((2**24 - 1, 24), (0, 8), (1, 9), (1, 9)), "position must be"),
        (COUPLED, "commit", packed((1, 24), (0, 8), (300, 9)), "token 300 is outside"),
        (COUPLED, "commit", packed((1, 24), (0, 8), (1, 9), (1, 7)), "padding"),
        (COUPLED, "race_commit", packed((1, 24), (0, 8), (0, 24)), "7 bytes are too few"),
        (COUPLED, "race_commit", packed((2**24 - 1, 24), (0, 8), (0, 24), (1, 9), (1, 9)), "position must"),
        (COUPLED, "race_commit", packed((1, 24), (0, 8), (0, 24), (300, 9)), "token 300 is outside"),
        (RESIDUAL, "race_commit", packed((1, 24), (0, 8), (0, 24), (1, 9)), "belongs to coupled mode"),
    ],
)
def test_cloud_messages_refuse(mode: AcceptanceMode, kind: str, data: bytes, pattern: str) -> None:
    message = pb.CloudMessage()
    setattr(message, kind, data)
    with refusal(f"^{kind}.*{pattern}"):
        Codec(300, mode).decode_cloud(message)


def test_too_many_draws_are_refused_before_they_are_read() -> None:
    data = packed(BITS, (8, 24)) + bytes(12 * (2**18 + 8) // 8)
    with refusal("draws, allowed are 1..262144"):
        Codec(300, RESIDUAL).decode_cloud(pb.CloudMessage(more_draws=data))


def test_a_message_of_no_kind_is_refused() -> None:
    with refusal("no kind known"):
        Codec(300, COUPLED).decode_cloud(pb.CloudMessage())


# --- anything at all ----------------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """``data`` with a few bytes changed, dropped or inserted."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, len(changed)))
        changed[index : index + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(changed)


def decode_or_refuse_edge(codec: Codec, wire: bytes) -> None:
    """Whatever decodes is canonical: a packed message encodes to the very same bytes again."""
    try:
        message = pb.EdgeMessage.FromString(wire)
        decoded = codec.decode_edge(message)
    except (DecodeError, SessionError):
        return
    if message.WhichOneof("kind") in PACKED_EDGE:
        assert payload(codec.encode_edge(decoded)) == payload(message)


def decode_or_refuse_cloud(codec: Codec, wire: bytes) -> None:
    try:
        message = pb.CloudMessage.FromString(wire)
        decoded = codec.decode_cloud(message)
    except (DecodeError, SessionError):
        return
    if message.WhichOneof("kind") in PACKED_CLOUD:
        assert payload(codec.encode_cloud(decoded)) == payload(message)


@unhurried
@given(st.data())
def test_damaged_edge_messages_decode_canonically_or_are_refused(data: st.DataObject) -> None:
    vocab_size, mode = data.draw(sessions())
    codec = Codec(vocab_size, mode)
    wire = codec.encode_edge(data.draw(edge_messages(vocab_size, mode))).SerializeToString()
    decode_or_refuse_edge(codec, data.draw(damaged(wire)))
    decode_or_refuse_edge(Codec(*data.draw(sessions())), wire)


@unhurried
@given(st.data())
def test_damaged_cloud_messages_decode_canonically_or_are_refused(data: st.DataObject) -> None:
    vocab_size, mode = data.draw(sessions())
    codec = Codec(vocab_size, mode)
    wire = codec.encode_cloud(data.draw(cloud_messages(vocab_size, mode))).SerializeToString()
    decode_or_refuse_cloud(codec, data.draw(damaged(wire)))
    decode_or_refuse_cloud(Codec(*data.draw(sessions())), wire)


@unhurried
@given(sessions(), st.sampled_from(PACKED_EDGE), st.binary(max_size=200))
def test_random_bytes_from_the_edge(session: tuple[int, AcceptanceMode], kind: str, data: bytes) -> None:
    message = pb.EdgeMessage()
    setattr(message, kind, data)
    decode_or_refuse_edge(Codec(*session), message.SerializeToString())


@unhurried
@given(sessions(), st.sampled_from(PACKED_CLOUD), st.binary(max_size=200))
def test_random_bytes_from_the_cloud(session: tuple[int, AcceptanceMode], kind: str, data: bytes) -> None:
    message = pb.CloudMessage()
    setattr(message, kind, data)
    decode_or_refuse_cloud(Codec(*session), message.SerializeToString())


@unhurried
@given(
    st.builds(
        pb.Open,
        protocol_version=st.just(1),
        model=st.text("aé", max_size=300),
        vocab_size=st.integers(0, 300) | st.integers(0, 2**32 - 1),
        end_token_ids=st.lists(st.integers(0, 300), max_size=70),
        sampling=st.none()
        | st.builds(
            pb.Sampling,
            temperature=st.floats(),
            top_k=st.integers(0, 2**32 - 1),
            top_p=st.just(0.9) | st.floats(),
            min_p=st.floats(),
            repetition_penalty=st.just(1.0) | st.floats(),
            presence_penalty=st.floats(),
            frequency_penalty=st.floats(),
        ),
        mode=st.integers(0, 3),
        committed=st.binary(max_size=40),
        prompt_length=st.integers(0, 50),
        token_limit=st.integers(0, 60) | st.integers(0, 2**32 - 1),
    )
)
def test_any_open_decodes_or_is_refused(fields: pb.Open) -> None:
    try:
        message = decode_first(pb.EdgeMessage(open=fields))
    except SessionError:
        return
    assert 1 <= message.prompt_length <= len(message.committed) < message.token_limit < 2**24
    assert max(*message.committed, *message.end_token_ids, 0) < message.vocab_size


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        (pb.EdgeMessage(resume=pb.Resume(epoch=1, committed=1)), r"session_id must be 1\.\.64, not 0"),
        (pb.EdgeMessage(resume=pb.Resume(session_id=bytes(65), epoch=1, committed=1)), "not 65"),
        (pb.EdgeMessage(resume=pb.Resume(session_id=b"s", committed=1)), "epoch must be 1"),
        (pb.EdgeMessage(resume=pb.Resume(session_id=b"s", epoch=1)), "committed must be 1"),
        (pb.EdgeMessage(resume=pb.Resume(session_id=b"s", epoch=1, committed=2**24)), "committed must be 1"),
        (pb.EdgeMessage(round=b"\0\0\0"), "must be open or resume, not round"),
        (pb.EdgeMessage(padding=b"\0\0\0"), "must be open or resume, not empty"),
    ],
)
def test_resume_and_other_first_messages_are_refused(message: pb.EdgeMessage, pattern: str) -> None:
    with refusal(pattern):
        decode_first(message)


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        (pb.CloudMessage(busy=pb.Busy()), r"retry_ms must be 1\.\.600000, not 0"),
        (pb.CloudMessage(busy=pb.Busy(retry_ms=600_001)), "not 600001"),
        (pb.CloudMessage(reset=pb.Reset(epoch=1)), "unknown reason 0"),
        (pb.CloudMessage(reset=pb.Reset(reason=3)), "unknown reason 3"),
    ],
)
def test_busy_and_reset_are_checked(message: pb.CloudMessage, pattern: str) -> None:
    with refusal(pattern):
        Codec(300, COUPLED).decode_cloud(message)
