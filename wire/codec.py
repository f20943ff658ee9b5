"""Messages to protobuf and back. The layouts are documented in ``verifier.proto``.

Decoding is strict: whatever breaks a layout or a bound raises ``SessionError(INVALID_ARGUMENT)`` with one
precise line, before anything of a size the message does not justify is allocated. Encoding trusts its caller:
a value that does not fit is a bug and fails an assertion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from acespec.wire import verifier_pb2 as pb
from acespec.wire.bits import BitReader, BitWriter
from acespec.wire.errors import malformed
from acespec.wire.handshake import decode_open, decode_opened, encode_open, encode_opened
from acespec.wire.layout import (
    POSITION_BITS,
    check_tokens,
    read_count,
    read_draws,
    read_sparse,
    read_weighted,
    token_bits,
    write_target,
    write_weighted,
)
from acespec.wire.messages import (
    MAX_CHAIN,
    AcceptanceMode,
    Close,
    CloudMessage,
    Commit,
    Decode,
    EdgeMessage,
    EndVerdict,
    MoreDraws,
    MoreTarget,
    Open,
    Opened,
    RejectVerdict,
    Round,
    ServerTimes,
    SparseTarget,
    TargetDraws,
    TokenVerdict,
    Verdict,
)
from acespec.wire.times import decode_duration, encode_duration

__all__ = ["Codec", "decode_open", "encode_open"]

SEQ_BITS = 6
CHECK_BITS = 16
ACCEPTED_BITS = 6
DURATION_BITS = 8
DRAFT_WEIGHT_BITS = 16
ROUND_HEADER_BITS = 24
"""seq, two zero bits, prefix check."""
VERDICT_HEADER_BITS = SEQ_BITS + ACCEPTED_BITS + 2 * DURATION_BITS
"""Everything of a verdict but its token or target."""
POSITION_LIMIT = 1 << POSITION_BITS
RESIDUAL_ONLY = frozenset(["round_resampled", "verdict_sparse", "verdict_draws", "more_sparse", "more_draws"])
"""Kinds that coupled mode refuses, in either direction."""


class VerdictHeader(NamedTuple):
    seq: int
    accepted: int
    times: ServerTimes


class Codec:
    """Encodes and decodes the messages of one session, whose vocabulary size and mode fix the layouts."""

    def __init__(self, vocab_size: int, mode: AcceptanceMode) -> None:
        self._vocab_size = vocab_size
        self._token_bits = token_bits(vocab_size)
        self._residual = mode is AcceptanceMode.RESIDUAL
        self._edge_decoders: dict[str, Callable[[pb.EdgeMessage], EdgeMessage]] = {
            "open": decode_open,
            "round": self._decode_round,
            "round_resampled": self._decode_round_resampled,
            "decode": self._decode_decode,
            "more_draws": self._decode_more_draws,
            "close": lambda _: Close(),
        }
        self._cloud_decoders: dict[str, Callable[[pb.CloudMessage], CloudMessage]] = {
            "opened": decode_opened,
            "verdict_token": self._decode_verdict_token,
            "verdict_end": self._decode_verdict_end,
            "verdict_sparse": self._decode_verdict_sparse,
            "verdict_draws": self._decode_verdict_draws,
            "more_sparse": self._decode_more_target_sparse,
            "more_draws": self._decode_more_target_draws,
            "commit": self._decode_commit,
        }

    # --- edge to cloud --------------------------------------------------------------------------------------

    def encode_edge(self, message: EdgeMessage) -> pb.EdgeMessage:
        """Encode what the edge sends."""
        if isinstance(message, Round):
            return self._encode_round(message)
        if isinstance(message, Open):
            return encode_open(message)
        if isinstance(message, Decode):
            assert self._residual or message.resampled is None
            return pb.EdgeMessage(
                decode=pb.Decode(
                    seq=message.seq,
                    prefix_check=message.prefix_check,
                    count=message.count,
                    resampled=message.resampled,
                )
            )
        if isinstance(message, MoreDraws):
            assert self._residual
            assert message.first_index >= 1
            return pb.EdgeMessage(
                more_draws=pb.MoreDraws(position=message.position, first_index=message.first_index)
            )
        return pb.EdgeMessage(close=pb.Close())

    def decode_edge(self, message: pb.EdgeMessage) -> EdgeMessage:
        """Check and decode what the edge sent; raises ``SessionError``."""
        kind = self._allowed(message.WhichOneof("kind"))
        return self._edge_decoders[kind](message)

    def _encode_round(self, message: Round) -> pb.EdgeMessage:
        assert len(message.chain) <= MAX_CHAIN
        writer = BitWriter()
        writer.write(message.seq, SEQ_BITS)
        writer.write(0, ROUND_HEADER_BITS - SEQ_BITS - CHECK_BITS)
        writer.write(message.prefix_check, CHECK_BITS)
        if not self._residual:
            assert message.resampled is None
            assert not message.weights
            writer.write_all(message.chain, self._token_bits)
            return pb.EdgeMessage(round=writer.to_bytes())
        if message.resampled is not None:
            writer.write(message.resampled, self._token_bits)
        write_weighted(writer, message.chain, message.weights, self._token_bits, DRAFT_WEIGHT_BITS)
        if message.resampled is not None:
            return pb.EdgeMessage(round_resampled=writer.to_bytes())
        return pb.EdgeMessage(round=writer.to_bytes())

    def _decode_round(self, message: pb.EdgeMessage) -> Round:
        reader, seq, prefix_check = self._read_round_header("round", message.round, ROUND_HEADER_BITS)
        chain, weights = self._read_chain("round", reader)
        return Round(seq, prefix_check, chain, weights)

    def _decode_round_resampled(self, message: pb.EdgeMessage) -> Round:
        what = "round_resampled"
        reader, seq, prefix_check = self._read_round_header(
            what, message.round_resampled, ROUND_HEADER_BITS + self._token_bits
        )
        resampled = reader.read(self._token_bits)
        check_tokens(what, [resampled], self._vocab_size)
        chain, weights = self._read_chain(what, reader)
        return Round(seq, prefix_check, chain, weights, resampled)

    def _read_round_header(self, what: str, data: bytes, least_bits: int) -> tuple[BitReader, int, int]:
        reader = BitReader(data)
        if reader.remaining < least_bits:
            raise malformed(f"{what}: {len(data)} bytes are too few")
        seq = reader.read(SEQ_BITS)
        if reader.read(ROUND_HEADER_BITS - SEQ_BITS - CHECK_BITS):
            raise malformed(f"{what}: the two bits after seq are not zero")
        return reader, seq, reader.read(CHECK_BITS)

    def _read_chain(self, what: str, reader: BitReader) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The rest of a round: the chain and, in residual mode, its draft weights."""
        item_bits = self._token_bits + (DRAFT_WEIGHT_BITS if self._residual else 0)
        count = read_count(what, reader, item_bits)
        if count > MAX_CHAIN:
            raise malformed(f"{what}: a chain of {count} tokens, at most {MAX_CHAIN} are allowed")
        if self._residual:
            return read_weighted(what, reader, count, self._vocab_size, DRAFT_WEIGHT_BITS)
        tokens = reader.read_all(count, self._token_bits)
        check_tokens(what, tokens, self._vocab_size)
        return tuple(tokens), ()

    def _decode_decode(self, message: pb.EdgeMessage) -> Decode:
        fields = message.decode
        _check_range("decode: seq", fields.seq, 0, (1 << SEQ_BITS) - 1)
        _check_range("decode: prefix_check", fields.prefix_check, 0, (1 << CHECK_BITS) - 1)
        _check_range("decode: count", fields.count, 1, POSITION_LIMIT - 1)
        resampled = fields.resampled if fields.HasField("resampled") else None
        if resampled is not None:
            if not self._residual:
                raise malformed("decode: a resampled token belongs to residual mode; this session is coupled")
            check_tokens("decode", [resampled], self._vocab_size)
        return Decode(fields.seq, fields.prefix_check, fields.count, resampled)

    def _decode_more_draws(self, message: pb.EdgeMessage) -> MoreDraws:
        fields = message.more_draws
        _check_range("more_draws: position", fields.position, 0, POSITION_LIMIT - 1)
        _check_range("more_draws: first_index", fields.first_index, 1, POSITION_LIMIT - 1)
        return MoreDraws(fields.position, fields.first_index)

    # --- cloud to edge --------------------------------------------------------------------------------------

    def encode_cloud(self, message: CloudMessage) -> pb.CloudMessage:
        """Encode what the cloud sends."""
        if isinstance(message, TokenVerdict):
            return pb.CloudMessage(verdict_token=self._encode_verdict_token(message))
        if isinstance(message, Commit):
            return pb.CloudMessage(commit=self._encode_commit(message))
        if isinstance(message, EndVerdict):
            assert message.accepted >= 1
            return pb.CloudMessage(verdict_end=_verdict_writer(message).to_bytes())
        if isinstance(message, Opened):
            return encode_opened(message)
        assert self._residual
        if isinstance(message, RejectVerdict):
            assert message.accepted < MAX_CHAIN
            return self._encode_verdict_target(message)
        writer = BitWriter()
        write_target(writer, message.target, self._vocab_size)
        if isinstance(message.target, SparseTarget):
            return pb.CloudMessage(more_sparse=writer.to_bytes())
        assert message.target.first_index >= 1
        return pb.CloudMessage(more_draws=writer.to_bytes())

    def decode_cloud(self, message: pb.CloudMessage) -> CloudMessage:
        """Check and decode what the cloud sent; raises ``SessionError``."""
        kind = self._allowed(message.WhichOneof("kind"))
        return self._cloud_decoders[kind](message)

    def _encode_verdict_token(self, message: TokenVerdict) -> bytes:
        writer = BitWriter()
        writer.write(message.seq, SEQ_BITS)
        writer.write(message.accepted, ACCEPTED_BITS)
        writer.write(message.next_token, self._token_bits)
        writer.write(encode_duration(message.times.queue_ms), DURATION_BITS)
        writer.write(encode_duration(message.times.compute_ms), DURATION_BITS)
        return writer.to_bytes()

    def _decode_verdict_token(self, message: pb.CloudMessage) -> TokenVerdict:
        what = "verdict_token"
        reader = BitReader(message.verdict_token)
        _check_length(what, message.verdict_token, VERDICT_HEADER_BITS + self._token_bits)
        seq = reader.read(SEQ_BITS)
        accepted = reader.read(ACCEPTED_BITS)
        next_token = reader.read(self._token_bits)
        check_tokens(what, [next_token], self._vocab_size)
        times = _read_times(reader)
        _check_padding(what, reader)
        return TokenVerdict(seq, accepted, next_token, times)

    def _decode_verdict_end(self, message: pb.CloudMessage) -> EndVerdict:
        _check_length("verdict_end", message.verdict_end, VERDICT_HEADER_BITS)
        reader = BitReader(message.verdict_end)
        header = _read_verdict_header("verdict_end", reader)
        if header.accepted == 0:
            raise malformed("verdict_end: an end token was accepted, so accepted cannot be 0")
        _check_padding("verdict_end", reader)
        return EndVerdict(*header)

    def _encode_verdict_target(self, message: RejectVerdict) -> pb.CloudMessage:
        writer = _verdict_writer(message)
        write_target(writer, message.target, self._vocab_size)
        if isinstance(message.target, TargetDraws):
            assert message.target.first_index == 0
            return pb.CloudMessage(verdict_draws=writer.to_bytes())
        return pb.CloudMessage(verdict_sparse=writer.to_bytes())

    def _decode_verdict_sparse(self, message: pb.CloudMessage) -> RejectVerdict:
        reader = BitReader(message.verdict_sparse)
        seq, accepted, times = _read_rejection("verdict_sparse", reader)
        return RejectVerdict(seq, accepted, read_sparse("verdict_sparse", reader, self._vocab_size), times)

    def _decode_verdict_draws(self, message: pb.CloudMessage) -> RejectVerdict:
        reader = BitReader(message.verdict_draws)
        seq, accepted, times = _read_rejection("verdict_draws", reader)
        target = read_draws("verdict_draws", reader, self._vocab_size, indexed=False)
        return RejectVerdict(seq, accepted, target, times)

    def _decode_more_target_sparse(self, message: pb.CloudMessage) -> MoreTarget:
        return MoreTarget(read_sparse("more_sparse", BitReader(message.more_sparse), self._vocab_size))

    def _decode_more_target_draws(self, message: pb.CloudMessage) -> MoreTarget:
        reader = BitReader(message.more_draws)
        return MoreTarget(read_draws("more_draws", reader, self._vocab_size, indexed=True))

    def _encode_commit(self, message: Commit) -> bytes:
        assert message.tokens
        assert message.position + len(message.tokens) <= POSITION_LIMIT
        writer = BitWriter()
        writer.write(message.position, POSITION_BITS)
        writer.write(encode_duration(message.compute_ms), DURATION_BITS)
        writer.write_all(message.tokens, self._token_bits)
        return writer.to_bytes()

    def _decode_commit(self, message: pb.CloudMessage) -> Commit:
        reader = BitReader(message.commit)
        if reader.remaining < POSITION_BITS + DURATION_BITS + self._token_bits:
            raise malformed(f"commit: {len(message.commit)} bytes are too few")
        position = reader.read(POSITION_BITS)
        compute_ms = decode_duration(reader.read(DURATION_BITS))
        count = read_count("commit", reader, self._token_bits)
        _check_range("commit: position", position, 0, POSITION_LIMIT - count)
        tokens = reader.read_all(count, self._token_bits)
        check_tokens("commit", tokens, self._vocab_size)
        return Commit(position, tuple(tokens), compute_ms)

    def _allowed(self, kind: str | None) -> str:
        if kind is None:
            raise malformed("a message of no kind known here: both sides need the same AceSpec release")
        if kind in RESIDUAL_ONLY and not self._residual:
            raise malformed(f"{kind} belongs to residual mode; this session is coupled")
        return kind


def _verdict_writer(message: Verdict) -> BitWriter:
    """A writer that holds the header of an end or reject verdict."""
    writer = BitWriter()
    writer.write(message.seq, SEQ_BITS)
    writer.write(message.accepted, ACCEPTED_BITS)
    writer.write(encode_duration(message.times.queue_ms), DURATION_BITS)
    writer.write(encode_duration(message.times.compute_ms), DURATION_BITS)
    return writer


def _read_verdict_header(what: str, reader: BitReader) -> VerdictHeader:
    if reader.remaining < VERDICT_HEADER_BITS:
        raise malformed(f"{what}: the message is too short")
    return VerdictHeader(reader.read(SEQ_BITS), reader.read(ACCEPTED_BITS), _read_times(reader))


def _read_rejection(what: str, reader: BitReader) -> VerdictHeader:
    header = _read_verdict_header(what, reader)
    if header.accepted >= MAX_CHAIN:
        raise malformed(
            f"{what}: {header.accepted} tokens accepted before a rejection, at most {MAX_CHAIN - 1}"
        )
    return header


def _read_times(reader: BitReader) -> ServerTimes:
    queue_ms = decode_duration(reader.read(DURATION_BITS))
    return ServerTimes(queue_ms, decode_duration(reader.read(DURATION_BITS)))


def _check_length(what: str, data: bytes, num_bits: int) -> None:
    expected = -(-num_bits // 8)
    if len(data) != expected:
        raise malformed(f"{what}: {len(data)} bytes instead of {expected}")


def _check_padding(what: str, reader: BitReader) -> None:
    if reader.last(reader.remaining):
        raise malformed(f"{what}: the padding bits are not zero")


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise malformed(f"{what} must be {low}..{high}, not {value}")
