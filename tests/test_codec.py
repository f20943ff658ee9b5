"""The codec: round trips, the documented layouts, and the documented sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acespec.wire import (
    Codec,
    Commit,
    Draft,
    DraftNode,
    EndVerdict,
    MoreTarget,
    RejectVerdict,
    Round,
    ServerTimes,
    SparseTarget,
    TargetDraws,
    TokenVerdict,
    decode_first,
    downlink_bits_draws,
    downlink_bits_sparse,
    encode_open,
    token_bits,
)
from acespec.wire import verifier_pb2 as pb
from acespec.wire.times import encode_duration
from wire_messages import (
    COUPLED,
    RESIDUAL,
    cloud_messages,
    drafts,
    edge_messages,
    example_open,
    packed,
    payload,
    sessions,
    unhurried,
)

WIDE = 262144
"""A vocabulary whose tokens take 18 bits."""


# --- round trips --------------------------------------------------------------------------------------------


@unhurried
@given(st.data())
def test_edge_messages_survive_the_wire(data: st.DataObject) -> None:
    vocab_size, mode = data.draw(sessions())
    message = data.draw(edge_messages(vocab_size, mode))
    codec = Codec(vocab_size, mode)
    wire = codec.encode_edge(message).SerializeToString()
    assert codec.decode_edge(pb.EdgeMessage.FromString(wire)) == message


@unhurried
@given(st.data())
def test_cloud_messages_survive_the_wire(data: st.DataObject) -> None:
    vocab_size, mode = data.draw(sessions())
    message = data.draw(cloud_messages(vocab_size, mode))
    codec = Codec(vocab_size, mode)
    wire = codec.encode_cloud(message).SerializeToString()
    assert codec.decode_cloud(pb.CloudMessage.FromString(wire)) == message


def test_long_messages_survive_the_wire() -> None:
    committed = tuple(token * 7919 % 49152 for token in range(30_001))
    message = replace(example_open(), vocab_size=49152, committed=committed, token_limit=40_000)
    assert decode_first(encode_open(message)) == message

    support = 50_000
    weights = (2**30 - support + 1, *[1] * (support - 1))
    target = SparseTarget(30, tuple(range(3, 3 + support)), weights)
    verdict = RejectVerdict(1, 2, target)
    codec = Codec(WIDE, RESIDUAL)
    assert codec.decode_cloud(codec.encode_cloud(verdict)) == verdict


# --- layouts ------------------------------------------------------------------------------------------------


def test_layouts_worked_by_hand() -> None:
    chain_round = Codec(WIDE, COUPLED).encode_edge(Round(seq=1, prefix_check=0x1234, chain=(1, 2)))
    assert chain_round.SerializeToString().hex(" ") == "0a 08 04 12 34 00 00 40 00 20"
    verdict = TokenVerdict(seq=1, accepted=2, next_token=3, times=ServerTimes(0.0, 0.01))
    encoded = Codec(WIDE, COUPLED).encode_cloud(verdict)
    assert encoded.SerializeToString().hex(" ") == "0a 06 04 20 00 10 00 0c"


@unhurried
@given(st.data())
def test_rounds_follow_the_documented_layout(data: st.DataObject) -> None:
    vocab_size, mode = data.draw(sessions())
    message = data.draw(edge_messages(vocab_size, mode).filter(lambda message: isinstance(message, Round)))
    assert isinstance(message, Round)
    width = token_bits(vocab_size)
    fields = [(message.seq, 6), (0, 2), (message.prefix_check, 16)]
    if message.resampled is not None:
        fields.append((message.resampled, width))
    for index, token in enumerate(message.chain):
        fields.append((token, width))
        if mode is RESIDUAL:
            fields.append((message.weights[index] - 1, 16))
    encoded = Codec(vocab_size, mode).encode_edge(message)
    kind = "round" if message.resampled is None else "round_resampled"
    assert encoded.WhichOneof("kind") == kind
    assert payload(encoded) == packed(*fields)


def expected_parents(message: Draft) -> list[list[tuple[int, int]]]:
    """What each node follows, by the table of ``verifier.proto``: the first line that says it."""
    codes = []
    parents = {message.first_id + index: node.parent for index, node in enumerate(message.nodes)}
    for node_id, parent in parents.items():
        line: list[int | None] = []
        if node_id > message.first_id:
            line = [node_id - 1]
            while line[-1] in parents:
                line.append(parents[line[-1]])
        level = line.index(parent) if parent in line else 99
        before = -1 if parent is None else message.first_id - 1 - parent
        table = [
            (level == 0, [(1, 1)]),
            (level == 1, [(0b01, 2)]),
            (2 <= level <= 5, [(0b001, 3), (level - 2, 2)]),
            (parent is None, [(0b0001, 4)]),
            (0 <= before <= 127, [(0b00001, 5), (before, 7)]),
            (parent is not None, [(0b000001, 6), (node_id - 1 - (parent or 0), 16)]),
        ]
        codes.append(next(code for says, code in table if says))
    return codes


def expected_tokens(message: Draft, width: int) -> list[list[tuple[int, int]]]:
    """How each node's token is told, as ``verifier.proto`` says."""
    codes: list[list[tuple[int, int]]] = []
    told: list[int] = []
    length_bits = next(bits for bits in range(9) if 2**bits >= width)
    for node in message.nodes:
        flag = [(int(node.token not in told), 1)] if told else []
        if node.token in told:
            place_bits = next(bits for bits in range(9) if 2**bits >= len(told))
            place = [(told.index(node.token), place_bits)] if place_bits else []
            codes.append([*flag, *place])
            continue
        length = max(len(f"{node.token:b}"), 1)
        rest = (node.token, 1) if length == 1 else (node.token - 2 ** (length - 1), length - 1)
        codes.append([*flag, (length - 1, length_bits), rest])
        told.append(node.token)
    return codes


@unhurried
@given(st.data())
def test_drafts_follow_the_documented_layout(data: st.DataObject) -> None:
    vocab_size, _ = data.draw(sessions())
    message = data.draw(drafts(vocab_size))
    rooted = any(node.parent is None for node in message.nodes)
    fields = [(message.seq, 6), (0, 1), (int(rooted), 1), (message.first_id, 32)]
    if rooted:
        fields.append((message.root, 24))
    tokens = expected_tokens(message, token_bits(vocab_size))
    for parent, token in zip(expected_parents(message), tokens, strict=True):
        fields += [*parent, *token]
    encoded = Codec(vocab_size, COUPLED).encode_edge(message)
    assert encoded.WhichOneof("kind") == "draft"
    assert payload(encoded) == packed(*fields)


def test_a_tree_of_repeated_tokens_takes_half_of_them() -> None:
    """Sixteen lines of four of the same eight tokens each: 64 of 16 bits would be 128 bytes."""
    nodes: list[DraftNode] = []
    for line in range(16):
        for place in range(4):
            nodes.append(DraftNode(900 + (3 * line + place) % 8, len(nodes) - 1 if place else None))
    encoded = Codec(49_152, COUPLED).encode_edge(Draft(1, 0, 40, tuple(nodes)))
    assert len(payload(encoded)) <= 66


def expected_cloud_layout(
    message: TokenVerdict | EndVerdict | RejectVerdict | MoreTarget | Commit, width: int
) -> bytes:
    if isinstance(message, Commit):
        drafts = message.drafts
        drafted = [] if drafts is None else [(drafts.next_id, 16), (encode_duration(drafts.age_ms), 8)]
        tokens = [(token, width) for token in message.tokens]
        return packed((message.position, 24), (encode_duration(message.compute_ms), 8), *drafted, *tokens)
    fields: list[tuple[int, int]] = []
    if not isinstance(message, MoreTarget):
        times = (encode_duration(message.times.queue_ms), encode_duration(message.times.compute_ms))
        fields += [(message.seq, 6), (message.accepted, 6), (times[0], 8), (times[1], 8)]
    if isinstance(message, TokenVerdict):
        fields.append((message.next_token, width))
    if isinstance(message, RejectVerdict | MoreTarget):
        target = message.target
        fields.append((target.bits, 6))
        if isinstance(message, MoreTarget) and isinstance(target, TargetDraws):
            fields.append((target.first_index, 24))
        for token, weight in zip(target.ids, target.weights, strict=True):
            fields += [(token, width), (weight - 1, target.bits)]
    return packed(*fields)


@unhurried
@given(st.data())
def test_verdicts_follow_the_documented_layout(data: st.DataObject) -> None:
    vocab_size, mode = data.draw(sessions())
    kinds = TokenVerdict | EndVerdict | RejectVerdict | MoreTarget | Commit
    message = data.draw(cloud_messages(vocab_size, mode).filter(lambda message: isinstance(message, kinds)))
    assert isinstance(message, kinds)
    encoded = Codec(vocab_size, mode).encode_cloud(message)
    assert payload(encoded) == expected_cloud_layout(message, token_bits(vocab_size))


# --- sizes (whole serialized messages, 18-bit tokens) -------------------------------------------------------


@pytest.mark.parametrize("length", range(64))
def test_round_sizes(length: int) -> None:
    chain = tuple(range(WIDE - length, WIDE))
    long_prefix = 1 if length > 55 else 0  # protobuf writes lengths from 128 bytes on in two bytes
    size = Codec(WIDE, COUPLED).encode_edge(Round(63, 0xFFFF, chain)).ByteSize()
    assert size <= 6 + 2.25 * length + long_prefix

    long_prefix = 1 if length > 28 else 0
    weights = (65536,) * length
    size = Codec(WIDE, RESIDUAL).encode_edge(Round(63, 0xFFFF, chain, weights)).ByteSize()
    assert size <= 6 + 4.25 * length + long_prefix
    resampled = Codec(WIDE, RESIDUAL).encode_edge(Round(63, 0xFFFF, chain, weights, WIDE - 1))
    assert resampled.ByteSize() <= 6 + 2.25 * (length + 1) + 2 * length + long_prefix


@pytest.mark.parametrize("length", [1, 16, 45])
def test_draft_sizes(length: int) -> None:
    codec = Codec(WIDE, COUPLED)
    tokens = [WIDE - 1 - index for index in range(length)]  # the dearest there are, none of them twice
    chain = [DraftNode(token, 2**31 + index - 1) for index, token in enumerate(tokens)]
    long_prefix = length > 40  # two bytes of protobuf's tell a length of 128 and more
    # A token of 18 bits takes 1 bit as new (the first none), 5 for its length and 17. A parent takes 1 bit in
    # the line, but 12 for its first node; 2 among the siblings, but 4 for the first.
    line = codec.encode_edge(Draft(63, 2**31, 0, tuple(chain)))
    assert line.ByteSize() <= 7 + -(-(11 + length * 24) // 8) + long_prefix
    siblings = codec.encode_edge(Draft(63, 2**31, 2**24 - 1, tuple(map(DraftNode, tokens))))
    assert siblings.ByteSize() <= 10 + -(-(2 + length * 25) // 8) + long_prefix
    small = Draft(63, 2**31, 2**24 - 1, tuple(DraftNode(300 + index) for index in range(length)))
    assert codec.encode_edge(small).ByteSize() <= 10 + -(-(2 + length * 16) // 8)


def test_verdict_sizes() -> None:
    times = ServerTimes(30_000.0, 30_000.0)
    codec = Codec(WIDE, COUPLED)
    assert codec.encode_cloud(TokenVerdict(63, 63, WIDE - 1, times)).ByteSize() == 8
    assert codec.encode_cloud(EndVerdict(63, 63, times)).ByteSize() == 6


@settings(deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.data())
def test_predicted_target_sizes_are_the_real_ones(data: st.DataObject) -> None:
    vocab_size, _ = data.draw(sessions())
    rejections = cloud_messages(vocab_size, RESIDUAL).filter(
        lambda message: isinstance(message, RejectVerdict | MoreTarget)
    )
    message = data.draw(rejections)
    assert isinstance(message, RejectVerdict | MoreTarget)
    target = message.target
    encoded = Codec(vocab_size, RESIDUAL).encode_cloud(message)
    if isinstance(target, SparseTarget):
        predicted = downlink_bits_sparse(len(target.ids), target.bits, token_bits(vocab_size))
    else:
        predicted = downlink_bits_draws(
            len(target.ids), target.bits, token_bits(vocab_size), target.first_index
        )
    header = 28 if isinstance(message, RejectVerdict) else 0
    assert len(payload(encoded)) == -(-(header + predicted) // 8)
