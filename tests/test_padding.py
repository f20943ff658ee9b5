"""Padding hides a message's size in a bucket, and nothing else changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acespec.wire import Codec, pad
from acespec.wire import verifier_pb2 as pb
from acespec.wire.padding import padding_bytes
from wire_messages import cloud_messages, edge_messages, sessions, unhurried


def is_bucket(size: int) -> bool:
    return size >= 64 and size & (size - 1) == 0


@unhurried
@given(st.data())
def test_padded_messages_have_bucket_sizes_and_mean_the_same(data: st.DataObject) -> None:
    vocab_size, mode = data.draw(sessions())
    codec = Codec(vocab_size, mode)
    up, down = data.draw(edge_messages(vocab_size, mode)), data.draw(cloud_messages(vocab_size, mode))
    up_wire = pad(codec.encode_edge(up)).SerializeToString()
    down_wire = pad(codec.encode_cloud(down)).SerializeToString()
    assert is_bucket(len(up_wire))
    assert is_bucket(len(down_wire))
    assert codec.decode_edge(pb.EdgeMessage.FromString(up_wire)) == up
    assert codec.decode_cloud(pb.CloudMessage.FromString(down_wire)) == down


@given(st.integers(0, 70_000))
def test_every_size_is_padded_to_the_next_bucket_that_can_be_met(size: int) -> None:
    message = pb.EdgeMessage(round=bytes(size))
    plain = message.ByteSize()
    padded = pad(message).ByteSize()
    assert is_bucket(padded)
    # One or two bytes cannot be filled, nor lengths at which the padding's own length needs a byte more.
    assert padded < 4 * max(plain, 32)


@given(st.integers(0, 40_000))
def test_padding_adds_exactly_what_is_missing(missing: int) -> None:
    count = padding_bytes(missing)
    if count is None:
        assert missing in {1, 2, 130, 16387}
    else:
        assert pb.EdgeMessage(padding=bytes(count)).ByteSize() == missing


def test_padding_twice_is_padding_once() -> None:
    message = pb.CloudMessage(verdict_token=b"\1\2\3\4\5\6")
    assert pad(pad(message)).SerializeToString() == pad(message).SerializeToString()
    assert message.ByteSize() == 64
