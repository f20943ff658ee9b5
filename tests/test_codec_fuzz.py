"""The codec against bytes nobody meant: junk, and valid messages with a few bytes changed.

``fuzz_codec.py`` checks the same property for longer, guided by the branches reached.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acespec.wire import AcceptanceMode, Codec
from acespec.wire import verifier_pb2 as pb
from codec_property import (
    ENTRIES,
    MODES,
    NUM_SESSIONS,
    VOCAB_SIZES,
    Entry,
    check_bytes,
    input_for,
    session_of,
)
from fuzz_codec import main
from wire_messages import COUPLED, RESIDUAL, cloud_messages, edge_messages


@settings(max_examples=3000)
@given(st.binary(max_size=80))
@example(b"")
@example(b"\x00")
def test_junk_is_refused_or_the_encoding_of_a_message(data: bytes) -> None:
    check_bytes(data)


@st.composite
def nearly_valid(draw: st.DrawFn) -> bytes:
    """A valid message with bytes replaced, put in, cut out or repeated."""
    vocab_size, mode = draw(st.sampled_from(VOCAB_SIZES)), draw(st.sampled_from(MODES))
    codec = Codec(vocab_size, mode)
    message: pb.EdgeMessage | pb.CloudMessage
    if draw(st.booleans()):
        message = codec.encode_edge(draw(edge_messages(vocab_size, mode)))
        entry = "first" if message.WhichOneof("kind") in ("open", "resume") else "edge"
    else:
        message, entry = codec.encode_cloud(draw(cloud_messages(vocab_size, mode))), "cloud"
    data = bytearray(message.SerializeToString())
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 4)))
        data[start:end] = draw(st.binary(max_size=4)) * draw(st.sampled_from([1, 1, 50]))
    return input_for(entry, vocab_size, mode, bytes(data))


@settings(max_examples=3000)
@given(nearly_valid())
def test_changed_messages_are_refused_or_the_encoding_of_another(data: bytes) -> None:
    check_bytes(data)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
@pytest.mark.parametrize("length", [0, 1, 9, 1000, 200_000])
def test_long_messages_take_memory_by_their_length(entry: Entry, length: int) -> None:
    for vocab_size in VOCAB_SIZES:
        for mode in MODES:
            for fill in (b"\x00", b"\x01", b"\xff"):
                check_bytes(input_for(entry.name, vocab_size, mode, fill * length))


def test_every_session_can_be_chosen() -> None:
    assert len({session_of(choice) for choice in range(256)}) == NUM_SESSIONS


@pytest.mark.parametrize(
    ("entry", "vocab_size", "mode", "data", "valid"),
    [
        # seq 1, zero bits, check 0x1234, tokens 1 and 2 of 18 bits
        ("round", 151_936, COUPLED, "04 12 34 00 00 40 00 20", True),
        ("round", 151_936, COUPLED, "04 12 34 00 00 40 00 21", False),
        ("round", 151_936, COUPLED, "07 12 34 00 00 40 00 20", False),
        # seq 1, accepted 2, times 0 and 1, token 3
        ("verdict_token", 151_936, RESIDUAL, "04 20 00 10 00 0c", True),
        ("verdict_token", 151_936, RESIDUAL, "04 20 00 10 00 0d", False),
        ("cloud", 151_936, RESIDUAL, "0a 06 04 20 00 10 00 0c", True),
        ("committed", 257, COUPLED, "00 80 80", True),  # tokens 1 and 2 of 9 bits
        ("committed", 257, COUPLED, "00 80 81", False),
        ("committed", 257, COUPLED, "80 80 80", False),  # token 257
    ],
)
def test_the_property_tells_valid_from_invalid(
    entry: str, vocab_size: int, mode: AcceptanceMode, data: str, valid: bool
) -> None:
    assert check_bytes(input_for(entry, vocab_size, mode, bytes.fromhex(data))) is valid


def test_inputs_are_replayed_from_files(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(input_for("verdict_end", 2, COUPLED, bytes.fromhex("04 20 00 10")))
    bad.write_bytes(input_for("verdict_end", 2, COUPLED, b""))
    result = CliRunner().invoke(main, [str(good), str(bad)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].endswith("good: 6 bytes, as verdict_end")
    assert lines[1] == "  a valid message"
    assert lines[2].endswith("bad: 2 bytes, as verdict_end")
    assert lines[3] == "  refused"
