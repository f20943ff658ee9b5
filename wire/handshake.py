"""How a session begins, goes on and is turned away. Ordinary protobuf fields, checked one by one."""

from __future__ import annotations

from dataclasses import asdict

from acespec.speculation import SamplingParams
from acespec.wire import verifier_pb2 as pb
from acespec.wire.bits import BitReader, BitWriter
from acespec.wire.errors import ErrorCode, SessionError, malformed
from acespec.wire.layout import POSITION_LIMIT, check_range, check_tokens, read_count, token_bits
from acespec.wire.messages import (
    MAX_CHAIN,
    MAX_RACE_NODES,
    PROTOCOL_VERSION,
    AcceptanceMode,
    Busy,
    Eagerness,
    Open,
    Opened,
    Reset,
    ResetReason,
    Resume,
)

MAX_VOCAB_SIZE = 2**20
MAX_NAME = 256
"""Characters of a model name, a fingerprint or a vocabulary hash."""
MAX_END_TOKENS = 64
MAX_SESSION_ID = 64
"""Bytes."""
MAX_RETRY_MS = 600_000

_MODES = {
    AcceptanceMode.COUPLED: pb.ACCEPTANCE_MODE_COUPLED,
    AcceptanceMode.RESIDUAL: pb.ACCEPTANCE_MODE_RESIDUAL,
}
_MODES_BY_NUMBER = {int(number): mode for mode, number in _MODES.items()}
_EAGERNESS = {
    None: pb.EAGERNESS_UNSPECIFIED,
    Eagerness.LATENCY: pb.EAGERNESS_LATENCY,
    Eagerness.BALANCED: pb.EAGERNESS_BALANCED,
    Eagerness.COST: pb.EAGERNESS_COST,
}
_EAGERNESS_BY_NUMBER = {int(number): eagerness for eagerness, number in _EAGERNESS.items()}
_RESET_REASONS = {
    ResetReason.UNKNOWN_SESSION: pb.RESET_REASON_UNKNOWN_SESSION,
    ResetReason.SHUTTING_DOWN: pb.RESET_REASON_SHUTTING_DOWN,
}
_RESET_REASONS_BY_NUMBER = {int(number): reason for reason, number in _RESET_REASONS.items()}


def encode_open(message: Open) -> pb.EdgeMessage:
    """The first message of a session. Raises ``ValueError`` if the seed does not fit 64 bits."""
    committed = BitWriter()
    committed.write_all(message.committed, token_bits(message.vocab_size))
    return pb.EdgeMessage(
        open=pb.Open(
            protocol_version=message.protocol_version,
            model=message.model,
            fingerprint=message.fingerprint,
            vocabulary_hash=message.vocabulary_hash,
            vocab_size=message.vocab_size,
            end_token_ids=message.end_token_ids,
            sampling=pb.Sampling(**asdict(message.sampling)),
            seed=message.seed,
            mode=_MODES[message.mode],
            committed=committed.to_bytes(),
            prompt_length=message.prompt_length,
            token_limit=message.token_limit,
            epoch=message.epoch,
            race=message.race,
        )
    )


def decode_first(message: pb.EdgeMessage) -> Open | Resume:
    """Check and read the first message of a stream. Raises ``SessionError``, as ``decode_open`` does."""
    kind = message.WhichOneof("kind")
    if kind == "open":
        return decode_open(message)
    if kind == "resume":
        return decode_resume(message)
    raise malformed(f"the first message of a stream must be open or resume, not {kind or 'empty'}")


def decode_open(message: pb.EdgeMessage) -> Open:
    """Check and read what begins a session.

    Raises ``SessionError``: FAILED_PRECONDITION if the protocol versions differ, INVALID_ARGUMENT for
    whatever else is wrong with it.
    """
    fields = message.open
    if fields.protocol_version != PROTOCOL_VERSION:
        raise SessionError(
            ErrorCode.FAILED_PRECONDITION,
            f"the edge speaks protocol version {fields.protocol_version}, this server {PROTOCOL_VERSION}: "
            "install the same AceSpec release on both",
        )
    check_range("open: vocab_size", fields.vocab_size, 2, MAX_VOCAB_SIZE)
    if fields.mode not in _MODES_BY_NUMBER:
        raise malformed(f"open: unknown acceptance mode {fields.mode}")
    if len(fields.end_token_ids) > MAX_END_TOKENS:
        raise malformed(f"open: at most {MAX_END_TOKENS} end tokens, not {len(fields.end_token_ids)}")
    check_tokens("open: end_token_ids", fields.end_token_ids, fields.vocab_size)
    if fields.race and fields.mode != pb.ACCEPTANCE_MODE_COUPLED:
        raise malformed("open: a race belongs to coupled mode; this session is residual")
    return Open(
        model=_name("open: model", fields.model),
        fingerprint=_name("open: fingerprint", fields.fingerprint),
        vocabulary_hash=_name("open: vocabulary_hash", fields.vocabulary_hash),
        vocab_size=fields.vocab_size,
        end_token_ids=tuple(fields.end_token_ids),
        sampling=_sampling(fields),
        seed=fields.seed,
        mode=_MODES_BY_NUMBER[fields.mode],
        committed=_committed(fields),
        prompt_length=fields.prompt_length,
        token_limit=fields.token_limit,
        epoch=fields.epoch,
        race=fields.race,
        protocol_version=fields.protocol_version,
    )


def encode_resume(message: Resume) -> pb.EdgeMessage:
    """The first message of a stream that goes on with a session."""
    return pb.EdgeMessage(resume=pb.Resume(**asdict(message)))


def decode_resume(message: pb.EdgeMessage) -> Resume:
    """Check and read what goes on with a session. Raises ``SessionError``."""
    fields = message.resume
    check_range("resume: bytes of session_id", len(fields.session_id), 1, MAX_SESSION_ID)
    check_range("resume: epoch", fields.epoch, 1, 2**32 - 1)
    check_range("resume: committed", fields.committed, 1, POSITION_LIMIT - 1)
    return Resume(fields.session_id, fields.epoch, fields.committed)


def encode_opened(message: Opened) -> pb.CloudMessage:
    """The server's answer to ``Open`` and ``Resume``."""
    return pb.CloudMessage(
        opened=pb.Opened(
            session_id=message.session_id,
            epoch=message.epoch,
            model=message.model,
            fingerprint=message.fingerprint,
            max_context=message.max_context,
            max_chain=message.max_chain,
            idle_timeout_ms=message.idle_timeout_ms,
            resume_ttl_ms=message.resume_ttl_ms,
            pad_sizes=message.pad_sizes,
            eagerness=_EAGERNESS[message.eagerness],
            max_race_nodes=message.max_race_nodes,
        )
    )


def decode_opened(message: pb.CloudMessage) -> Opened:
    """Check and read the server's answer to ``Open`` and ``Resume``."""
    fields = message.opened
    check_range("opened: bytes of session_id", len(fields.session_id), 1, MAX_SESSION_ID)
    check_range("opened: max_context", fields.max_context, 1, 2**32 - 1)
    check_range("opened: max_chain", fields.max_chain, 1, MAX_CHAIN)
    check_range("opened: idle_timeout_ms", fields.idle_timeout_ms, 1, 2**32 - 1)
    if fields.eagerness not in _EAGERNESS_BY_NUMBER:
        raise malformed(f"opened: unknown eagerness {fields.eagerness}")
    eagerness = _EAGERNESS_BY_NUMBER[fields.eagerness]
    if eagerness is None:
        check_range("opened: max_race_nodes without a race", fields.max_race_nodes, 0, 0)
    else:
        check_range("opened: max_race_nodes", fields.max_race_nodes, 1, MAX_RACE_NODES)
    return Opened(
        session_id=fields.session_id,
        epoch=fields.epoch,
        model=_name("opened: model", fields.model),
        fingerprint=_name("opened: fingerprint", fields.fingerprint),
        max_context=fields.max_context,
        max_chain=fields.max_chain,
        idle_timeout_ms=fields.idle_timeout_ms,
        resume_ttl_ms=fields.resume_ttl_ms,
        pad_sizes=fields.pad_sizes,
        eagerness=eagerness,
        max_race_nodes=fields.max_race_nodes,
    )


def encode_busy(message: Busy) -> pb.CloudMessage:
    """ "Come again later"."""
    return pb.CloudMessage(busy=pb.Busy(retry_ms=message.retry_ms))


def decode_busy(message: pb.CloudMessage) -> Busy:
    """Check and read how long to wait."""
    check_range("busy: retry_ms", message.busy.retry_ms, 1, MAX_RETRY_MS)
    return Busy(message.busy.retry_ms)


def encode_reset(message: Reset) -> pb.CloudMessage:
    """ "The session is gone"."""
    return pb.CloudMessage(reset=pb.Reset(epoch=message.epoch, reason=_RESET_REASONS[message.reason]))


def decode_reset(message: pb.CloudMessage) -> Reset:
    """Check and read why the session is gone."""
    fields = message.reset
    if fields.reason not in _RESET_REASONS_BY_NUMBER:
        raise malformed(f"reset: unknown reason {fields.reason}")
    return Reset(fields.epoch, _RESET_REASONS_BY_NUMBER[fields.reason])


def _committed(fields: pb.Open) -> tuple[int, ...]:
    check_range("open: token_limit", fields.token_limit, 1, POSITION_LIMIT - 1)
    reader = BitReader(fields.committed)
    width = token_bits(fields.vocab_size)
    count = read_count("open: committed", reader, width)
    if count == 0:
        raise malformed("open: the prompt is empty: send at least one token")
    if count >= fields.token_limit:
        raise malformed(
            f"open: {count} tokens are committed and token_limit {fields.token_limit} leaves none"
        )
    check_range("open: prompt_length", fields.prompt_length, 1, count)
    tokens = reader.read_all(count, width)
    check_tokens("open: committed", tokens, fields.vocab_size)
    return tuple(tokens)


def _sampling(fields: pb.Open) -> SamplingParams:
    if not fields.HasField("sampling"):
        raise malformed("open: sampling is missing")
    sampling = fields.sampling
    try:
        return SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
        )
    except ValueError as error:
        raise malformed(f"open: {error}") from error


def _name(what: str, text: str) -> str:
    if len(text) > MAX_NAME:
        raise malformed(f"{what} has {len(text)} characters, at most {MAX_NAME}")
    return text
