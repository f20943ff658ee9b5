"""The baselines' messages as bytes. Token ids take ``token_bits`` of the vocabulary, at least 8.

Fields follow one another, most significant bit first; the last byte is filled with zero bits. How many items
a message has follows from its length. Dense rows are float16, little-endian, one number for each token of the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from acespec.bench.lab.baselines.rejection import HalfPrecision
from acespec.wire import token_bits
from acespec.wire.bits import BitReader, BitWriter
from acespec.wire.layout import read_weighted, write_weighted

EPOCHS = 64
"""Rollbacks are told apart modulo this."""
_EPOCH_BITS = 6
_WEIGHT_BITS = 16
_HALF: np.dtype[np.float16] = np.dtype("<f2")


def encode_tokens(tokens: Sequence[int], vocab_size: int) -> bytes:
    """``token`` x n."""
    writer = BitWriter()
    writer.write_all(tokens, token_bits(vocab_size))
    return writer.to_bytes()


def decode_tokens(data: bytes, vocab_size: int) -> list[int]:
    """What ``encode_tokens`` was given."""
    reader = BitReader(data)
    width = token_bits(vocab_size)
    return reader.read_all(reader.remaining // width, width)


def encode_full_chain(tokens: Sequence[int], rows: Sequence[HalfPrecision], vocab_size: int) -> bytes:
    """``count:8 token`` x count, then a dense row for each token, or none at all (greedy)."""
    return (
        bytes([len(tokens)])
        + encode_tokens(tokens, vocab_size)
        + b"".join(dense(row, vocab_size) for row in rows)
    )


def decode_full_chain(data: bytes, vocab_size: int) -> tuple[list[int], list[HalfPrecision]]:
    """What ``encode_full_chain`` was given."""
    start = 1 + -(-data[0] * token_bits(vocab_size) // 8)
    tokens = decode_tokens(data[1:start], vocab_size)[: data[0]]
    row_bytes = vocab_size * _HALF.itemsize
    return tokens, [from_dense(data[at : at + row_bytes]) for at in range(start, len(data), row_bytes)]


def dense(row: HalfPrecision, vocab_size: int) -> bytes:
    """A number for each token of the vocabulary."""
    values: NDArray[np.float16] = np.zeros(vocab_size, _HALF)
    values[row.ids] = row.values
    return values.tobytes()


def from_dense(data: bytes) -> HalfPrecision:
    """What ``dense`` was given."""
    values = np.frombuffer(data, _HALF)
    ids = np.flatnonzero(values)
    return HalfPrecision(ids, values[ids].astype(np.float16))


def encode_batch(tokens: Sequence[int], ask: bool, vocab_size: int) -> bytes:
    """``ask:8`` (whether a check is asked for), ``token`` x n."""
    return bytes([ask]) + encode_tokens(tokens, vocab_size)


def decode_batch(data: bytes, vocab_size: int) -> tuple[list[int], bool]:
    """What ``encode_batch`` was given."""
    return decode_tokens(data[1:], vocab_size), bool(data[0])


@dataclass(frozen=True)
class ChainPart:
    """Drafted tokens, each with its weight out of 2^16 in the distribution it was drawn from."""

    tokens: tuple[int, ...]
    weights: tuple[int, ...]
    resampled: int | None = None
    """The token the edge put in the place of a rejected one, which goes before these."""
    epoch: int = 0
    """How many rejections the edge has learnt of, modulo ``EPOCHS``."""
    last: bool = True
    """Whether the chain ends here."""


def encode_chain_part(part: ChainPart, vocab_size: int) -> bytes:
    """``has_resampled:1 last:1 epoch:6 [token] (token weight-1:16)`` x n."""
    writer = BitWriter()
    writer.write(part.resampled is not None, 1)
    writer.write(part.last, 1)
    writer.write(part.epoch, _EPOCH_BITS)
    if part.resampled is not None:
        writer.write(part.resampled, token_bits(vocab_size))
    write_weighted(writer, part.tokens, part.weights, token_bits(vocab_size), _WEIGHT_BITS)
    return writer.to_bytes()


def decode_chain_part(data: bytes, vocab_size: int) -> ChainPart:
    """What ``encode_chain_part`` was given."""
    reader = BitReader(data)
    has_resampled, last, epoch = reader.read(1), reader.read(1), reader.read(_EPOCH_BITS)
    resampled = reader.read(token_bits(vocab_size)) if has_resampled else None
    count = reader.remaining // (token_bits(vocab_size) + _WEIGHT_BITS)
    tokens, weights = read_weighted("chain", reader, count, vocab_size, _WEIGHT_BITS)
    return ChainPart(tokens, weights, resampled, epoch, bool(last))


@dataclass(frozen=True)
class Verdict:
    """How a check ended. At most one of the two is set; neither if all stand and nothing follows."""

    accepted: int
    next_token: int | None = None
    """The token behind the accepted ones, drawn in the cloud."""
    target: HalfPrecision | None = None
    """The target distribution that rejected a token, for the edge to resample from."""


def following(verdict: Verdict) -> tuple[int, ...]:
    """The token the cloud drew, if it drew one."""
    return () if verdict.next_token is None else (verdict.next_token,)


class _Kind(IntEnum):
    NOTHING = 0
    TOKEN = 1
    DENSE = 2
    SPARSE = 3


def encode_verdict(verdict: Verdict, vocab_size: int, sparse: bool = False) -> bytes:
    """``kind:2 accepted:6``, then nothing, ``token``, a dense row, or ``(token float16)`` x n (sparse)."""
    if verdict.target is None:
        kind = _Kind.NOTHING if verdict.next_token is None else _Kind.TOKEN
    else:
        kind = _Kind.SPARSE if sparse else _Kind.DENSE
    header = bytes([kind << 6 | verdict.accepted])
    if verdict.next_token is not None:
        return header + encode_tokens([verdict.next_token], vocab_size)
    if verdict.target is None:
        return header
    if kind is _Kind.DENSE:
        return header + dense(verdict.target, vocab_size)
    items = verdict.target.ids << 16 | verdict.target.values.view(np.uint16)
    writer = BitWriter()
    writer.write_all(items.tolist(), token_bits(vocab_size) + 16)
    return header + writer.to_bytes()


def decode_verdict(data: bytes, vocab_size: int) -> Verdict:
    """What ``encode_verdict`` was given."""
    kind, accepted = _Kind(data[0] >> 6), data[0] & 63
    if kind is _Kind.TOKEN:
        return Verdict(accepted, next_token=decode_tokens(data[1:], vocab_size)[0])
    if kind is _Kind.DENSE:
        return Verdict(accepted, target=from_dense(data[1:]))
    if kind is _Kind.SPARSE:
        reader = BitReader(data[1:])
        width = token_bits(vocab_size) + 16
        items = np.array(reader.read_all(reader.remaining // width, width), np.int64)
        return Verdict(
            accepted, target=HalfPrecision(items >> 16, (items & 0xFFFF).astype(np.uint16).view(np.float16))
        )
    return Verdict(accepted)
