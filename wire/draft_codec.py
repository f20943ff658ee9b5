"""A ``Draft`` as bits and back: a tree, in fewer bits than its tokens take. See ``verifier.proto``.

Branches repeat each other's tokens, and in the vocabularies of byte-pair encoding frequent tokens have small
ids: so a token that came before in the message is told by its place among those, and any other by its length
in bits and the rest. A parent is told by its level on the *line*: the node before, what that follows, and so
on up. Each code of a parent begins with so many zeros and a one, the likeliest with the fewest.
"""

from __future__ import annotations

from collections.abc import Sequence

from acespec.wire.bits import BitReader, BitWriter
from acespec.wire.errors import malformed
from acespec.wire.layout import POSITION_BITS, SEQ_BITS, check_range, check_tokens, token_bits
from acespec.wire.messages import MAX_DRAFT_NODES, MAX_NODE_DISTANCE, Draft, DraftNode

ID_BITS = 32
HEADER_BITS = SEQ_BITS + 2 + ID_BITS
"""seq, a zero bit, whether a root is told, first id."""
UPPER_LEVEL = 2
"""Levels below it are told by so many zeros; from it on they share one code, of that many zeros."""
LEVEL_BITS = 2
"""What that code tells the level in, counted from ``UPPER_LEVEL``."""
NUM_LEVELS = UPPER_LEVEL + (1 << LEVEL_BITS)
ROOT_ZEROS, NEAR_ZEROS, FAR_ZEROS = 3, 4, 5
"""Zeros of the other codes: the committed token, a node not long before this message, any other."""
NEAR_BITS = 7
"""Counts ids back from the first of this message."""
FAR_BITS = 16
"""Counts ids back from the node itself."""
WHAT = "draft"

assert MAX_NODE_DISTANCE == 1 << FAR_BITS


def encode_draft(message: Draft, token_width: int) -> bytes:
    """The packed field; a value that does not fit is a bug."""
    nodes, first_id = message.nodes, message.first_id
    assert 1 <= len(nodes) <= MAX_DRAFT_NODES
    rooted = any(node.parent is None for node in nodes)
    assert rooted or message.root == 0
    writer = BitWriter()
    writer.write(message.seq, SEQ_BITS)
    writer.write(int(rooted), 2)
    writer.write(first_id, ID_BITS)
    if rooted:
        writer.write(message.root, POSITION_BITS)
    before: list[DraftNode] = []
    told: list[int] = []
    for node in nodes:
        _write_parent(writer, node.parent, before, first_id)
        _write_token(writer, node.token, told, token_width)
        before.append(node)
    return writer.to_bytes()


def decode_draft(data: bytes, vocab_size: int) -> Draft:
    """Check and read the packed field. Raises ``SessionError``."""
    reader = BitReader(data)
    if reader.remaining < HEADER_BITS:
        raise malformed(f"{WHAT}: {len(data)} bytes are too few")
    seq = reader.read(SEQ_BITS)
    if reader.read(1):
        raise malformed(f"{WHAT}: the bit after seq is not zero")
    rooted = bool(reader.read(1))
    first_id = reader.read(ID_BITS)
    root = _take(reader, POSITION_BITS) if rooted else 0
    nodes = _read_nodes(reader, first_id, vocab_size)
    check_range(f"{WHAT}: first_id", first_id, 0, (1 << ID_BITS) - len(nodes))
    if rooted is not any(node.parent is None for node in nodes):
        raise malformed(f"{WHAT}: a root is told where no node follows it, or is missing")
    return Draft(seq, first_id, root, nodes)


def _read_nodes(reader: BitReader, first_id: int, vocab_size: int) -> tuple[DraftNode, ...]:
    """The rest of the message: every node has a bit that is set, the padding none."""
    width = token_bits(vocab_size)
    nodes: list[DraftNode] = []
    told: list[int] = []
    padding = reader.ending_zeros()  # looked for once: a message may be long
    while reader.remaining > padding:
        if len(nodes) == MAX_DRAFT_NODES:
            raise malformed(f"{WHAT}: more than {MAX_DRAFT_NODES} nodes")
        parent = _read_parent(reader, nodes, first_id)
        nodes.append(DraftNode(_read_token(reader, told, width), parent))
    if reader.remaining >= 8:
        raise malformed(f"{WHAT}: {reader.remaining} bits of padding")
    if not nodes:
        raise malformed(f"{WHAT}: no nodes")
    check_tokens(WHAT, told, vocab_size)
    return tuple(nodes)


def _line(nodes: Sequence[DraftNode], first_id: int) -> list[int | None]:
    """The last of ``nodes``, what that follows, and so on, as far as this message tells and levels reach.

    Ids, by level; None is the committed token.
    """
    line: list[int | None] = []
    at: int | None = first_id + len(nodes) - 1
    while nodes and len(line) < NUM_LEVELS:
        line.append(at)
        if at is None or at < first_id:
            break
        at = nodes[at - first_id].parent
    return line


def _write_parent(writer: BitWriter, parent: int | None, before: Sequence[DraftNode], first_id: int) -> None:
    """What the node behind ``before`` follows, by the first code of the table that says it."""
    line = _line(before, first_id)
    if parent in line:
        level = line.index(parent)
        _write_zeros(writer, min(level, UPPER_LEVEL))
        if level >= UPPER_LEVEL:
            writer.write(level - UPPER_LEVEL, LEVEL_BITS)
    elif parent is None:
        _write_zeros(writer, ROOT_ZEROS)
    elif _is_near(parent, first_id):
        _write_zeros(writer, NEAR_ZEROS)
        writer.write(first_id - 1 - parent, NEAR_BITS)
    else:
        _write_zeros(writer, FAR_ZEROS)
        writer.write(first_id + len(before) - 1 - parent, FAR_BITS)


def _read_parent(reader: BitReader, before: Sequence[DraftNode], first_id: int) -> int | None:
    """The inverse of ``_write_parent``; told by another code it is refused."""
    line, zeros = _line(before, first_id), _read_zeros(reader)
    if zeros <= UPPER_LEVEL:
        level = zeros + (_take(reader, LEVEL_BITS) if zeros == UPPER_LEVEL else 0)
        if level >= len(line):
            raise malformed(f"{WHAT}: a node follows one {level} levels up a line of {len(line)}")
        return line[level]
    parent = None
    if zeros == NEAR_ZEROS:
        parent = _earlier(first_id, 1 + _take(reader, NEAR_BITS))
    elif zeros == FAR_ZEROS:
        parent = _earlier(first_id + len(before), 1 + _take(reader, FAR_BITS))
    is_near = parent is not None and _is_near(parent, first_id)
    if parent in line or (is_near and zeros != NEAR_ZEROS):
        raise malformed(f"{WHAT}: a parent is told in more bits than it takes")
    return parent


def _is_near(parent: int, first_id: int) -> bool:
    """Whether it is a node of an earlier message that ``NEAR_BITS`` reach."""
    return 1 <= first_id - parent <= 1 << NEAR_BITS


def _write_token(writer: BitWriter, token: int, told: list[int], width: int) -> None:
    """``told``: the tokens of the message so far, each once; a new one is added to them."""
    assert token.bit_length() <= width
    is_new = token not in told
    if told:
        writer.write(int(is_new), 1)
    if is_new:
        length = max(token.bit_length(), 1)
        writer.write(length - 1, _length_bits(width))
        rest = max(length - 1, 1)
        writer.write(token & (1 << rest) - 1, rest)
        told.append(token)
    else:
        writer.write(told.index(token), _place_bits(told))


def _read_token(reader: BitReader, told: list[int], width: int) -> int:
    """The inverse of ``_write_token``."""
    if told and not _take(reader, 1):
        place = _take(reader, _place_bits(told))
        if place >= len(told):
            raise malformed(f"{WHAT}: token {place} of {len(told)} told before")
        return told[place]
    length = 1 + _take(reader, _length_bits(width))
    token = _take(reader, 1) if length == 1 else 1 << length - 1 | _take(reader, length - 1)
    if token in told:
        raise malformed(f"{WHAT}: a token is told in more bits than it takes")
    told.append(token)
    return token


def _length_bits(width: int) -> int:
    """Width of the field for a token's length, 1 to ``width``, less 1."""
    return (width - 1).bit_length()


def _place_bits(told: Sequence[int]) -> int:
    """Width of a place among those told: 0 if there is but one."""
    return (len(told) - 1).bit_length()


def _write_zeros(writer: BitWriter, count: int) -> None:
    """``count`` zeros and a one."""
    writer.write(1, count + 1)


def _read_zeros(reader: BitReader) -> int:
    """How many zeros come before a one, which is taken too."""
    for zeros in range(FAR_ZEROS + 1):
        if _take(reader, 1):
            return zeros
    raise malformed(f"{WHAT}: no code begins with {FAR_ZEROS + 1} zeros")


def _earlier(node_id: int, distance: int) -> int:
    """The id ``distance`` before ``node_id``, refused below 0."""
    if distance > node_id:
        raise malformed(f"{WHAT}: a node follows one {distance} before {node_id}")
    return node_id - distance


def _take(reader: BitReader, width: int) -> int:
    if reader.remaining < width:
        raise malformed(f"{WHAT}: it ends within a node")
    return reader.read(width)
