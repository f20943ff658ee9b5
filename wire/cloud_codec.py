"""What the cloud sends, to protobuf and back. The layouts are documented in ``verifier.proto``."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from acespec.wire import verifier_pb2 as pb
from acespec.wire.bits import BitReader, BitWriter
from acespec.wire.errors import malformed
from acespec.wire.handshake import (
    decode_busy,
    decode_opened,
    decode_reset,
    encode_busy,
    encode_opened,
    encode_reset,
)
from acespec.wire.layout import (
    POSITION_BITS,
    POSITION_LIMIT,
    SEQ_BITS,
    allowed_kind,
    check_range,
    check_tokens,
    read_count,
    read_draws,
    read_sparse,
    token_bits,
    write_target,
)
from acespec.wire.messages import (
    MAX_CHAIN,
    AcceptanceMode,
    Busy,
    CloudMessage,
    Commit,
    DraftsHeard,
    EndVerdict,
    MoreTarget,
    Opened,
    RejectVerdict,
    Reset,
    ServerTimes,
    SparseTarget,
    TargetDraws,
    TokenVerdict,
    Verdict,
)
from acespec.wire.times import decode_duration, encode_duration

ACCEPTED_BITS = 6
DURATION_BITS = 8
DRAFTED_BITS = 16
VERDICT_HEADER_BITS = SEQ_BITS + ACCEPTED_BITS + 2 * DURATION_BITS
"""What every verdict begins with: seq, accepted and the server's times."""


class VerdictHeader(NamedTuple):
    """What every verdict says."""

    seq: int
    accepted: int
    times: ServerTimes


class CloudCodec:
    """The cloud's messages in one session, whose vocabulary size and mode fix the layouts."""

    def __init__(self, vocab_size: int, mode: AcceptanceMode) -> None:
        self._vocab_size = vocab_size
        self._token_bits = token_bits(vocab_size)
        self._residual = mode is AcceptanceMode.RESIDUAL

    def encode(self, message: CloudMessage) -> pb.CloudMessage:
        """To protobuf; a value that does not fit is a bug."""
        if isinstance(message, TokenVerdict):
            return pb.CloudMessage(verdict_token=self._encode_verdict_token(message))
        if isinstance(message, Commit):
            if message.drafts is not None:
                return pb.CloudMessage(race_commit=self._encode_commit(message))
            return pb.CloudMessage(commit=self._encode_commit(message))
        if isinstance(message, EndVerdict):
            assert message.accepted >= 1
            return pb.CloudMessage(verdict_end=_verdict_writer(message).to_bytes())
        if isinstance(message, Opened):
            return encode_opened(message)
        if isinstance(message, Busy):
            return encode_busy(message)
        if isinstance(message, Reset):
            return encode_reset(message)
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

    def decode(self, message: pb.CloudMessage) -> CloudMessage:
        """From protobuf; raises ``SessionError`` for whatever breaks the protocol."""
        kind = allowed_kind(message.WhichOneof("kind"), residual=self._residual)
        return self._DECODERS[kind](self, message)

    def _encode_verdict_token(self, message: TokenVerdict) -> bytes:
        writer = _verdict_writer(message)
        writer.write(message.next_token, self._token_bits)
        return writer.to_bytes()

    def _decode_verdict_token(self, message: pb.CloudMessage) -> TokenVerdict:
        what = "verdict_token"
        reader = _exact_reader(what, message.verdict_token, VERDICT_HEADER_BITS + self._token_bits)
        seq, accepted, times = _read_verdict_header(what, reader)
        next_token = reader.read(self._token_bits)
        check_tokens(what, [next_token], self._vocab_size)
        return TokenVerdict(seq, accepted, next_token, times)

    def _decode_verdict_end(self, message: pb.CloudMessage) -> EndVerdict:
        what = "verdict_end"
        header = _read_verdict_header(what, _exact_reader(what, message.verdict_end, VERDICT_HEADER_BITS))
        if header.accepted == 0:
            raise malformed(f"{what}: an end token was accepted, so accepted cannot be 0")
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

    def _decode_more_sparse(self, message: pb.CloudMessage) -> MoreTarget:
        return MoreTarget(read_sparse("more_sparse", BitReader(message.more_sparse), self._vocab_size))

    def _decode_more_draws(self, message: pb.CloudMessage) -> MoreTarget:
        reader = BitReader(message.more_draws)
        return MoreTarget(read_draws("more_draws", reader, self._vocab_size, indexed=True))

    def _encode_commit(self, message: Commit) -> bytes:
        assert message.tokens
        assert message.position + len(message.tokens) <= POSITION_LIMIT
        writer = BitWriter()
        writer.write(message.position, POSITION_BITS)
        writer.write(encode_duration(message.compute_ms), DURATION_BITS)
        if message.drafts is not None:
            assert not self._residual
            writer.write(message.drafts.next_id, DRAFTED_BITS)
            writer.write(encode_duration(message.drafts.age_ms), DURATION_BITS)
        writer.write_all(message.tokens, self._token_bits)
        return writer.to_bytes()

    def _decode_commit(self, message: pb.CloudMessage) -> Commit:
        return self._read_commit("commit", message.commit, races=False)

    def _decode_race_commit(self, message: pb.CloudMessage) -> Commit:
        return self._read_commit("race_commit", message.race_commit, races=True)

    def _read_commit(self, what: str, data: bytes, races: bool) -> Commit:
        reader = BitReader(data)
        header_bits = POSITION_BITS + DURATION_BITS + (DRAFTED_BITS + DURATION_BITS if races else 0)
        if reader.remaining < header_bits + self._token_bits:
            raise malformed(f"{what}: {len(data)} bytes are too few")
        position = reader.read(POSITION_BITS)
        compute_ms = decode_duration(reader.read(DURATION_BITS))
        drafts = None
        if races:
            next_id = reader.read(DRAFTED_BITS)
            drafts = DraftsHeard(next_id, decode_duration(reader.read(DURATION_BITS)))
        count = read_count(what, reader, self._token_bits)
        check_range(f"{what}: position", position, 0, POSITION_LIMIT - count)
        tokens = reader.read_all(count, self._token_bits)
        check_tokens(what, tokens, self._vocab_size)
        return Commit(position, tuple(tokens), compute_ms, drafts)

    _DECODERS: ClassVar[dict[str, Callable[[CloudCodec, pb.CloudMessage], CloudMessage]]] = {
        "opened": lambda _, message: decode_opened(message),
        "busy": lambda _, message: decode_busy(message),
        "reset": lambda _, message: decode_reset(message),
        "verdict_token": _decode_verdict_token,
        "verdict_end": _decode_verdict_end,
        "verdict_sparse": _decode_verdict_sparse,
        "verdict_draws": _decode_verdict_draws,
        "more_sparse": _decode_more_sparse,
        "more_draws": _decode_more_draws,
        "commit": _decode_commit,
        "race_commit": _decode_race_commit,
    }
    """Not bound to a codec, which would then live until a garbage collection: each session has one."""


def _verdict_writer(message: Verdict) -> BitWriter:
    """A writer that holds what every verdict begins with."""
    writer = BitWriter()
    writer.write(message.seq, SEQ_BITS)
    writer.write(message.accepted, ACCEPTED_BITS)
    writer.write(encode_duration(message.times.queue_ms), DURATION_BITS)
    writer.write(encode_duration(message.times.compute_ms), DURATION_BITS)
    return writer


def _read_verdict_header(what: str, reader: BitReader) -> VerdictHeader:
    if reader.remaining < VERDICT_HEADER_BITS:
        raise malformed(f"{what}: {reader.remaining // 8} bytes are too few")
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


def _exact_reader(what: str, data: bytes, num_bits: int) -> BitReader:
    """A reader of a message that has ``num_bits`` and zero padding to whole bytes, nothing else."""
    num_bytes = -(-num_bits // 8)
    if len(data) != num_bytes:
        raise malformed(f"{what}: {len(data)} bytes instead of {num_bytes}")
    reader = BitReader(data)
    if reader.last(8 * num_bytes - num_bits):
        raise malformed(f"{what}: the padding bits are not zero")
    return reader
