"""What the packed messages share: widths, runs of items that fill the rest of a message, weighted targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from acespec.wire.bits import BitReader, BitWriter
from acespec.wire.errors import malformed
from acespec.wire.messages import SparseTarget, TargetDraws

POSITION_BITS = 24
"""Width of a position: positions and token limits are below 2**24."""
POSITION_LIMIT = 1 << POSITION_BITS
SEQ_BITS = 6
"""Width of a request's number."""
DRAW_INDEX_BITS = 24
"""Width of the index of a draw."""
BITS_BITS = 6
"""Width of the field that says how wide target weights are."""
MAX_TARGET_BITS = 40
"""Widest target weight."""
MAX_DRAWS = 2**18
"""Most draws in one message; beyond, the sparse form is smaller for any vocabulary served."""

RESIDUAL_ONLY = frozenset(["round_resampled", "verdict_sparse", "verdict_draws", "more_sparse", "more_draws"])
"""Kinds of either direction that coupled mode has no use for."""
COUPLED_ONLY = frozenset(["draft", "race_commit"])
"""Kinds of either direction that residual mode has no use for."""


def token_bits(vocab_size: int) -> int:
    """Width of a token id on the wire: enough for the vocabulary, and at least 8.

    Padding stays under 8 bits, so a run of tokens tells its count by its length in bytes.
    """
    return max(8, (vocab_size - 1).bit_length())


def downlink_bits_sparse(support_size: int, bits: int, token_bits: int) -> int:
    """Size in bits of a sparse target of ``support_size`` tokens with weights out of ``2**bits``."""
    return BITS_BITS + support_size * (token_bits + bits)


def downlink_bits_draws(num_draws: int, bits: int, token_bits: int, first_index: int = 0) -> int:
    """Size in bits of ``num_draws`` draws; those that do not begin at 0 say where they begin.

    Depends on counts and fixed widths alone: choosing the form by the values drawn would bias them.
    """
    index_bits = DRAW_INDEX_BITS if first_index else 0
    return BITS_BITS + index_bits + num_draws * (token_bits + bits)


def allowed_kind(kind: str | None, *, residual: bool) -> str:
    """The kind of a message, refused if it is unknown or not of the session's mode."""
    if kind is None:
        raise malformed("a message of no kind known here: both sides need the same AceSpec release")
    if kind in RESIDUAL_ONLY and not residual:
        raise malformed(f"{kind} belongs to residual mode; this session is coupled")
    if kind in COUPLED_ONLY and residual:
        raise malformed(f"{kind} belongs to coupled mode; this session is residual")
    return kind


def check_range(what: str, value: int, low: int, high: int) -> None:
    """Refuse a value outside ``low..high``; ``what`` names it in the error."""
    if not low <= value <= high:
        raise malformed(f"{what} must be {low}..{high}, not {value}")


def check_tokens(what: str, tokens: Iterable[int], vocab_size: int) -> None:
    """Refuse tokens outside the vocabulary; ``what`` names them in the error."""
    largest = max(tokens, default=0)
    if largest >= vocab_size:
        raise malformed(f"{what}: token {largest} is outside the vocabulary of {vocab_size}")


def read_count(what: str, reader: BitReader, item_bits: int) -> int:
    """How many items of ``item_bits`` (>= 8) fill the rest of a message.

    Refuses padding of a byte or more, or that is not zero.
    """
    count, padding = divmod(reader.remaining, item_bits)
    if padding >= 8:
        raise malformed(
            f"{what}: {reader.remaining} bits are no whole number of {item_bits}-bit items; "
            "both sides must use the same vocabulary and mode"
        )
    if reader.last(padding):
        raise malformed(f"{what}: the padding bits are not zero")
    return count


def write_weighted(
    writer: BitWriter, ids: Sequence[int], weights: Sequence[int], token_width: int, weight_width: int
) -> None:
    """Append items ``token:token_width weight_minus_1:weight_width``."""
    assert len(ids) == len(weights)
    limit = 1 << weight_width
    assert all(0 < weight <= limit for weight in weights), "a weight does not fit"
    items = [token << weight_width | weight - 1 for token, weight in zip(ids, weights, strict=True)]
    writer.write_all(items, token_width + weight_width)


def read_weighted(
    what: str, reader: BitReader, count: int, vocab_size: int, weight_width: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Take ``count`` items written by ``write_weighted``: token ids and weights."""
    mask = (1 << weight_width) - 1
    items = reader.read_all(count, token_bits(vocab_size) + weight_width)
    ids = tuple([item >> weight_width for item in items])
    check_tokens(what, ids, vocab_size)
    return ids, tuple([(item & mask) + 1 for item in items])


def write_target(writer: BitWriter, target: SparseTarget | TargetDraws, vocab_size: int) -> None:
    """Append ``bits``, for draws beyond the first their index, and the items."""
    assert 1 <= target.bits <= MAX_TARGET_BITS
    writer.write(target.bits, BITS_BITS)
    if isinstance(target, TargetDraws) and target.first_index:
        writer.write(target.first_index, DRAW_INDEX_BITS)
    write_weighted(writer, target.ids, target.weights, token_bits(vocab_size), target.bits)


def read_sparse(what: str, reader: BitReader, vocab_size: int) -> SparseTarget:
    """Take the rest of a message as a sparse target: ascending ids, weights that sum to ``2**bits``."""
    bits = _read_bits(what, reader)
    count = read_count(what, reader, token_bits(vocab_size) + bits)
    if count > vocab_size:
        raise malformed(f"{what}: {count} tokens of a vocabulary of {vocab_size}")
    ids, weights = read_weighted(what, reader, count, vocab_size, bits)
    if any(left >= right for left, right in pairwise(ids)):
        raise malformed(f"{what}: the token ids do not ascend")
    if sum(weights) != 1 << bits:
        raise malformed(f"{what}: the weights sum to {sum(weights)}, not to 2**{bits}")
    return SparseTarget(bits, ids, weights)


def read_draws(what: str, reader: BitReader, vocab_size: int, *, indexed: bool) -> TargetDraws:
    """Take the rest of a message as draws; ``indexed`` ones say the index of the first, others begin at 0.

    A token drawn twice must carry one weight, and the weights of different tokens sum to 2**bits at most.
    """
    bits = _read_bits(what, reader)
    first_index = _read_first_index(what, reader) if indexed else 0
    count = read_count(what, reader, token_bits(vocab_size) + bits)
    if not 1 <= count <= MAX_DRAWS:
        raise malformed(f"{what}: {count} draws, allowed are 1..{MAX_DRAWS}")
    ids, weights = read_weighted(what, reader, count, vocab_size, bits)
    drawn = set(zip(ids, weights, strict=True))
    if len(drawn) != len(set(ids)):
        raise malformed(f"{what}: a token drawn twice has two weights")
    if sum(weight for _, weight in drawn) > 1 << bits:
        raise malformed(f"{what}: the weights of the tokens drawn sum to more than 2**{bits}")
    return TargetDraws(bits, first_index, ids, weights)


def _read_bits(what: str, reader: BitReader) -> int:
    if reader.remaining < BITS_BITS:
        raise malformed(f"{what}: too few bits for a target")
    bits = reader.read(BITS_BITS)
    if not 1 <= bits <= MAX_TARGET_BITS:
        raise malformed(f"{what}: weights of {bits} bits, allowed are 1..{MAX_TARGET_BITS}")
    return bits


def _read_first_index(what: str, reader: BitReader) -> int:
    if reader.remaining < DRAW_INDEX_BITS:
        raise malformed(f"{what}: too few bits for draws")
    first_index = reader.read(DRAW_INDEX_BITS)
    if first_index == 0:
        raise malformed(f"{what}: first_index cannot be 0, the verdict itself brought the first draws")
    return first_index
