"""Rows of logits as bytes: no more of each than decides the same, and every number exact."""

from __future__ import annotations

import functools
import hashlib
import math
import struct
import zlib
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from acespec.speculation import MAX_CANDIDATES, LogitsRow, SamplingParams, distribution
from acespec.speculation.selection import largest

ROW_FORMAT = 1
"""To be raised when the bytes, or what they are read as, change."""
_DRAFT_HEADER = struct.Struct("<dfIB")  # depth, log-sum-exp (NaN: none), entries, bytes an id
_TARGET_HEADER = struct.Struct("<IfI")  # vocabulary, filler, entries kept (0: whole)
_ID_TYPES: dict[int, np.dtype[np.unsignedinteger]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_VALUE_TYPE: np.dtype[np.float32] = np.dtype("<f4")
_LEVELS = 64
_WORTH_REDUCING = 4
"""A target row is kept whole if more than one entry in so many decides."""
SAMPLING_KEY_BYTES = 8


@dataclass(frozen=True)
class DraftRow:
    """The largest of a draft's logits: all that drawing and ranking look at, down to ``depth``."""

    logits: LogitsRow
    depth: float
    """How far below the best entries go, in logits; infinite: as far as any sampling looks."""


def cut_draft_row(row: LogitsRow, depth: float) -> DraftRow:
    """Keep what ``candidate_row`` would choose of ``row`` at this depth (``candidate_depth``)."""
    values = row.values
    kept = largest(values, MAX_CANDIDATES)
    if not math.isinf(depth):
        kept = kept[values[kept] >= float(values.max()) - depth]
    ids = kept if row.ids is None else row.ids[kept]
    return DraftRow(LogitsRow(values[kept].copy(), ids.astype(np.int64), row.log_sum_exp), depth)


def encode_draft_row(row: DraftRow) -> bytes:
    """``row`` as bytes."""
    logits = row.logits
    assert logits.ids is not None
    width = 2 if int(logits.ids[-1]) < 1 << 16 else 4
    total = math.nan if logits.log_sum_exp is None else logits.log_sum_exp
    header = _DRAFT_HEADER.pack(row.depth, total, len(logits.ids), width)
    return (
        header + logits.ids.astype(_ID_TYPES[width]).tobytes() + logits.values.astype(_VALUE_TYPE).tobytes()
    )


def decode_draft_row(data: bytes) -> DraftRow:
    """What ``encode_draft_row`` was given."""
    depth, total, count, width = _DRAFT_HEADER.unpack_from(data)
    start = _DRAFT_HEADER.size
    ids = np.frombuffer(data, _ID_TYPES[width], count, start)
    values = np.frombuffer(data, _VALUE_TYPE, count, start + count * width)
    logits = LogitsRow(
        values.astype(np.float32), ids.astype(np.int64), None if math.isnan(total) else float(total)
    )
    return DraftRow(logits, depth)


ANY_SAMPLING = bytes(SAMPLING_KEY_BYTES)
"""The key of a whole row."""


def sampling_key(params: SamplingParams) -> bytes:
    """Names sampling parameters."""
    return hashlib.blake2b(repr(astuple(params)).encode(), digest_size=SAMPLING_KEY_BYTES).digest()


def encode_target_row(logits: NDArray[np.float32], params: SamplingParams) -> tuple[bytes, bytes]:
    """Return the row as bytes and the sampling key it holds for.

    Where it can, the row is reduced to the support that ``params`` leave. All other entries become about one
    value, so chosen that they weigh as much together as those they stand for. Each reduced row is compared
    with the whole one: ``distribution`` makes exactly the same of both, in ids and in every bit of the
    probabilities, so whatever is decided from it is decided alike. Where it does not, and where penalties
    make it depend on more than the row, the row is kept whole.
    """
    reduced = None if params.has_penalties else _reduced(logits, params)
    if reduced is None:
        # By byte and not by number: signs and exponents repeat, mantissas do not.
        by_byte = np.ascontiguousarray(logits.astype(_VALUE_TYPE).view(np.uint8).reshape(-1, 4).T)
        return _TARGET_HEADER.pack(len(logits), 0.0, 0) + zlib.compress(by_byte.tobytes(), 1), ANY_SAMPLING
    ids, filler = reduced
    kept = logits[ids].astype(_VALUE_TYPE).tobytes()
    header = _TARGET_HEADER.pack(len(logits), filler, len(ids))
    return header + ids.astype(_ID_TYPES[4]).tobytes() + kept, sampling_key(params)


def decode_target_row(data: bytes) -> NDArray[np.float32]:
    """The row: float32 ``[vocab_size]``."""
    vocab_size, filler, count = _TARGET_HEADER.unpack_from(data)
    start = _TARGET_HEADER.size
    if count == 0:
        by_byte = np.frombuffer(zlib.decompress(data[start:]), np.uint8).reshape(4, vocab_size)
        whole = np.ascontiguousarray(by_byte.T).reshape(-1).view(_VALUE_TYPE)
        return whole.astype(np.float32, copy=False)
    ids = np.frombuffer(data, _ID_TYPES[4], count, start)
    values = np.frombuffer(data, _VALUE_TYPE, count, start + 4 * count)
    return _expanded(vocab_size, filler, ids, values)


def _reduced(logits: NDArray[np.float32], params: SamplingParams) -> tuple[NDArray[np.int64], float] | None:
    """The entries to keep of a row and what to put in place of the others; None if that is not exact."""
    exact = distribution(logits, params)
    count = max(len(exact.ids), params.top_k)
    if count > len(logits) // _WORTH_REDUCING:
        return None
    ids = largest(logits, count)
    filler = _filler(np.delete(logits, ids), float(logits.max()), params.temperature or 1.0)
    again = distribution(_expanded(len(logits), filler, ids, logits[ids]), params)
    same = np.array_equal(exact.ids, again.ids) and np.array_equal(exact.probs, again.probs)
    return (ids, filler) if same else None


def _filler(rest: NDArray[np.float32], best: float, temperature: float) -> float:
    """The logit that ``len(rest)`` equal entries would have to weigh as much as ``rest``, as a float32."""
    weights = np.exp((rest.astype(np.float64) - best) / temperature)
    total = float(weights.sum())
    if total == 0.0:
        return float(rest.min())
    return float(np.float32(best + temperature * math.log(total / len(rest))))


def _expanded(
    vocab_size: int, filler: float, ids: NDArray[np.integer], values: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The row of ``values`` at ``ids`` and about ``filler`` elsewhere.

    Not just that: looking for the largest among equals takes ten times as long as among numbers that differ,
    if only in their last bits.
    """
    middle = np.float32(filler)
    row: NDArray[np.float32] = middle + np.spacing(middle) * _levels(vocab_size)
    row[ids] = values
    return row


@functools.cache
def _levels(vocab_size: int) -> NDArray[np.float32]:
    """Whole numbers around 0, no more than ``_LEVELS`` different ones, as many of each."""
    return (np.arange(vocab_size) * _LEVELS // vocab_size - _LEVELS // 2).astype(np.float32)
