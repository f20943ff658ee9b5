"""Hides the sizes of messages, and with them how many tokens were accepted, in a few buckets."""

from __future__ import annotations

from typing import TypeVar

from acespec.wire import verifier_pb2 as pb

SMALLEST = 64
"""Bytes; higher buckets are powers of two. A coupled round of 26 tokens at 18 bits fits the smallest."""

Padded = TypeVar("Padded", pb.EdgeMessage, pb.CloudMessage)


def pad(message: Padded) -> Padded:
    """Fill ``message`` so that its serialized size is 64 bytes or a higher power of two; returns it."""
    message.ClearField("padding")
    size = message.ByteSize()
    bucket = SMALLEST
    while (count := padding_bytes(bucket - size)) is None:
        bucket *= 2
    if count:
        message.padding = bytes(count)
    return message


def padding_bytes(missing: int) -> int | None:
    """How many bytes of padding make a message ``missing`` bytes longer; None if no number does.

    The field's tag takes one byte and its length one for every seven bits.
    """
    if missing == 0:
        return 0
    for length_bytes in range(1, 5):
        count = missing - 1 - length_bytes
        if count >= 1 and -(-count.bit_length() // 7) == length_bytes:
            return count
    return None
