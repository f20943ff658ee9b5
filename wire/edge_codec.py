"""What the edge sends, to protobuf and back. The layouts are documented in ``verifier.proto``."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from acespec.wire import verifier_pb2 as pb
from acespec.wire.bits import BitReader, BitWriter
from acespec.wire.draft_codec import decode_draft, encode_draft
from acespec.wire.errors import malformed
from acespec.wire.handshake import decode_open, decode_resume, encode_open, encode_resume
from acespec.wire.layout import (
    POSITION_LIMIT,
    SEQ_BITS,
    allowed_kind,
    check_range,
    check_tokens,
    read_count,
    read_weighted,
    token_bits,
    write_weighted,
)
from acespec.wire.messages import (
    MAX_CHAIN,
    AcceptanceMode,
    Close,
    Decode,
    Draft,
    EdgeMessage,
    MoreDraws,
    Open,
    Resume,
    Round,
)

CHECK_BITS = 16
ROUND_HEADER_BITS = 24
"""seq, two zero bits, prefix check."""
DRAFT_WEIGHT_BITS = 16


class EdgeCodec:
    """The edge's messages in one session, whose vocabulary size and mode fix the layouts."""

    def __init__(self, vocab_size: int, mode: AcceptanceMode) -> None:
        self._vocab_size = vocab_size
        self._token_bits = token_bits(vocab_size)
        self._residual = mode is AcceptanceMode.RESIDUAL

    def encode(self, message: EdgeMessage) -> pb.EdgeMessage:
        """To protobuf; a value that does not fit is a bug."""
        if isinstance(message, Round):
            return self._encode_round(message)
        if isinstance(message, Draft):
            assert not self._residual
            return pb.EdgeMessage(draft=encode_draft(message, self._token_bits))
        if isinstance(message, Open):
            return encode_open(message)
        if isinstance(message, Resume):
            return encode_resume(message)
        if isinstance(message, Decode):
            assert self._residual or message.resampled is None
            assert not self._residual or not message.race
            return pb.EdgeMessage(
                decode=pb.Decode(
                    seq=message.seq,
                    prefix_check=message.prefix_check,
                    count=message.count,
                    resampled=message.resampled,
                    race=message.race,
                )
            )
        if isinstance(message, MoreDraws):
            assert self._residual
            assert message.first_index >= 1
            return pb.EdgeMessage(
                more_draws=pb.MoreDraws(position=message.position, first_index=message.first_index)
            )
        return pb.EdgeMessage(close=pb.Close())

    def decode(self, message: pb.EdgeMessage) -> EdgeMessage:
        """From protobuf; raises ``SessionError`` for whatever breaks the protocol."""
        kind = allowed_kind(message.WhichOneof("kind"), residual=self._residual)
        return self._DECODERS[kind](self, message)

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
        check_range("decode: seq", fields.seq, 0, (1 << SEQ_BITS) - 1)
        check_range("decode: prefix_check", fields.prefix_check, 0, (1 << CHECK_BITS) - 1)
        check_range("decode: count", fields.count, 1, POSITION_LIMIT - 1)
        resampled = fields.resampled if fields.HasField("resampled") else None
        if resampled is not None:
            if not self._residual:
                raise malformed("decode: a resampled token belongs to residual mode; this session is coupled")
            check_tokens("decode", [resampled], self._vocab_size)
        if fields.race and self._residual:
            raise malformed("decode: a race belongs to coupled mode; this session is residual")
        return Decode(fields.seq, fields.prefix_check, fields.count, resampled, fields.race)

    def _decode_draft(self, message: pb.EdgeMessage) -> Draft:
        return decode_draft(message.draft, self._vocab_size)

    def _decode_more_draws(self, message: pb.EdgeMessage) -> MoreDraws:
        fields = message.more_draws
        check_range("more_draws: position", fields.position, 0, POSITION_LIMIT - 1)
        check_range("more_draws: first_index", fields.first_index, 1, POSITION_LIMIT - 1)
        return MoreDraws(fields.position, fields.first_index)

    _DECODERS: ClassVar[dict[str, Callable[[EdgeCodec, pb.EdgeMessage], EdgeMessage]]] = {
        "open": lambda _, message: decode_open(message),
        "resume": lambda _, message: decode_resume(message),
        "round": _decode_round,
        "round_resampled": _decode_round_resampled,
        "decode": _decode_decode,
        "draft": _decode_draft,
        "more_draws": _decode_more_draws,
        "close": lambda _, __: Close(),
    }
    """Not bound to a codec, which would then live until a garbage collection: each session has one."""
