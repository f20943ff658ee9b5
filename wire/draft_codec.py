"""A ``Draft`` as bits and back: nodes of a tree, most of them one bit and a token. See ``verifier.proto``."""

from __future__ import annotations

from acespec.wire.bits import BitReader, BitWriter
from acespec.wire.errors import malformed
from acespec.wire.layout import POSITION_BITS, SEQ_BITS, check_range, check_tokens, token_bits
from acespec.wire.messages import MAX_DRAFT_NODES, MAX_NODE_DISTANCE, Draft, DraftNode

ID_BITS = 32
HEADER_BITS = SEQ_BITS + 2 + ID_BITS
"""seq, a zero bit, whether a root is told, first id."""
NEAR_BITS = 5
FAR_BITS = 16
FIRST_NEAR = 2
FIRST_FAR = FIRST_NEAR + (1 << NEAR_BITS)
WHAT = "draft"

assert MAX_NODE_DISTANCE == FIRST_FAR + (1 << FAR_BITS) - 1


def encode_draft(message: Draft, token_width: int) -> bytes:
    """The packed field; a value that does not fit is a bug."""
    assert 1 <= len(message.nodes) <= MAX_DRAFT_NODES
    rooted = any(node.parent is None for node in message.nodes)
    assert rooted or message.root == 0
    writer = BitWriter()
    writer.write(message.seq, SEQ_BITS)
    writer.write(int(rooted), 2)
    writer.write(message.first_id, ID_BITS)
    if rooted:
        writer.write(message.root, POSITION_BITS)
    for index, node in enumerate(message.nodes):
        before = message.nodes[index - 1] if index else None
        _write_parent(writer, message.first_id + index, node, before)
        writer.write(node.token, token_width)
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


def _write_parent(writer: BitWriter, node_id: int, node: DraftNode, before: DraftNode | None) -> None:
    """The shortest code: the first one of the table that says it."""
    distance = None if node.parent is None else node_id - node.parent
    if distance == 1:
        writer.write(0b0, 1)
    elif before is not None and node.parent == before.parent:
        writer.write(0b10, 2)
    elif distance is None:
        writer.write(0b110, 3)
    elif distance < FIRST_FAR:
        assert distance >= FIRST_NEAR
        writer.write(0b1110, 4)
        writer.write(distance - FIRST_NEAR, NEAR_BITS)
    else:
        writer.write(0b1111, 4)
        writer.write(distance - FIRST_FAR, FAR_BITS)


def _read_nodes(reader: BitReader, first_id: int, vocab_size: int) -> tuple[DraftNode, ...]:
    """The rest of the message: a node has more than 8 bits, the padding fewer."""
    width = token_bits(vocab_size)
    nodes: list[DraftNode] = []
    while reader.remaining >= 8:
        if len(nodes) == MAX_DRAFT_NODES:
            raise malformed(f"{WHAT}: more than {MAX_DRAFT_NODES} nodes")
        parent = _read_parent(reader, first_id + len(nodes), nodes[-1] if nodes else None)
        nodes.append(DraftNode(_take(reader, width), parent))
    if reader.last(reader.remaining):
        raise malformed(f"{WHAT}: the padding bits are not zero")
    if not nodes:
        raise malformed(f"{WHAT}: no nodes")
    check_tokens(WHAT, [node.token for node in nodes], vocab_size)
    return tuple(nodes)


def _read_parent(reader: BitReader, node_id: int, before: DraftNode | None) -> int | None:
    """What the next node follows, told by the one code that may tell it."""
    if _take(reader, 1) == 0:
        return _earlier(node_id, 1)
    if _take(reader, 1) == 0:
        if before is None:
            raise malformed(f"{WHAT}: the first node follows what one before it follows")
        return before.parent
    if _take(reader, 1) == 0:
        parent = None
    elif _take(reader, 1) == 0:
        parent = _earlier(node_id, FIRST_NEAR + _take(reader, NEAR_BITS))
    else:
        parent = _earlier(node_id, FIRST_FAR + _take(reader, FAR_BITS))
    if before is not None and parent == before.parent:
        raise malformed(f"{WHAT}: a parent is told in more bits than it takes")
    return parent


def _earlier(node_id: int, distance: int) -> int:
    if distance > node_id:
        raise malformed(f"{WHAT}: node {node_id} follows one {distance} before it")
    return node_id - distance


def _take(reader: BitReader, width: int) -> int:
    if reader.remaining < width:
        raise malformed(f"{WHAT}: it ends within a node")
    return reader.read(width)
