"""The protocol's messages as plain data: what the codec encodes and both sides reason about.

Positions are absolute: position ``p`` is the index of a token in the committed sequence, prompt included.
Tokens are plain ``int`` ids below the session's vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from acespec.speculation import SamplingParams

PROTOCOL_VERSION = 1
MAX_CHAIN = 63
"""Longest chain a round may carry: ``accepted`` has six bits."""
SEQ_MODULUS = 64
"""Sequence numbers wrap here; at most one request of a session is outstanding, so six bits name it."""
MAX_DRAFT_NODES = 255
"""Most nodes of one ``Draft``."""
MAX_NODE_DISTANCE = 65_536
"""How far back, in ids, the node may lie that a drafted node follows."""

DRAFTED_MODULUS = 65_536
"""A ``Commit`` tells modulo this how many nodes have come."""
MAX_RACE_NODES = 65_536
"""Most drafted nodes that a server may say it keeps for a session."""


class AcceptanceMode(str, Enum):
    """How the cloud decides on a drafted token (docs/exactness.md)."""

    COUPLED = "coupled"
    RESIDUAL = "residual"


class Eagerness(str, Enum):
    """When the server computes for a racing session (docs/protocol.md); the text never depends on it."""

    LATENCY = "latency"
    """Always: a forward follows the one before."""
    BALANCED = "balanced"
    """Without drafts in the room that others leave, and after about a forward's time like anybody."""
    COST = "cost"
    """Once drafts have come, or have not come for long."""


# --- edge to cloud ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    """Begin a session. Sent once, first. A mismatch with the server's model is refused."""

    model: str
    """Name of the target the edge expects; empty accepts whatever is served."""
    fingerprint: str
    """Fingerprint of that target; empty accepts any."""
    vocabulary_hash: str
    vocab_size: int
    """Tokenizer's size; both sides cut padded logits to it."""
    end_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    mode: AcceptanceMode
    committed: tuple[int, ...]
    """Prompt, and in a reopened session what was committed after it."""
    prompt_length: int
    token_limit: int
    """Absolute position at which generation ends: at most this many tokens, prompt included."""
    epoch: int = 0
    """0 for a new generation; one more with each ``Open`` or ``Resume`` of the same one."""
    race: bool = False
    """Coupled mode: the edge means to race. Room is set aside for drafted tokens beside the text's."""
    protocol_version: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class Resume:
    """Go on with a session over a new stream. Sent once, first, instead of ``Open``."""

    session_id: bytes
    epoch: int
    """Higher than in any message before: a stale connection cannot take the session back."""
    committed: int
    """How many committed tokens the edge has."""


@dataclass(frozen=True)
class Round:
    """One chain for one check."""

    seq: int
    prefix_check: int
    """16-bit check of the committed tokens, ``resampled`` included."""
    chain: tuple[int, ...]
    weights: tuple[int, ...] = ()
    """Residual mode: the 16-bit draft weight (1..65536) of each chain token."""
    resampled: int | None = None
    """Residual mode: the last committed token, where the edge drew it and the cloud cannot know it."""


@dataclass(frozen=True)
class Decode:
    """Let the cloud decode up to ``count`` tokens by itself, streaming a ``Commit`` for each."""

    seq: int
    prefix_check: int
    count: int
    resampled: int | None = None
    race: bool = False
    """Coupled mode: take drafts along; a forward then commits one token or more."""


@dataclass(frozen=True, slots=True)
class DraftNode:
    """One drafted token of a tree."""

    token: int
    parent: int | None = None
    """Id of the earlier node it follows, of this message or one before; None: the message's root."""


@dataclass(frozen=True)
class Draft:
    """The race: more nodes of the tree, best first. A hint: one that comes late or is wrong changes no text.

    Ids rise in the order sent: ``nodes[k]`` has id ``first_id + k``. They belong to one ``Decode`` over one
    stream: for another of either no node of before is known, and they may begin at 0 again.
    """

    seq: int
    """Of the ``Decode`` it belongs to."""
    first_id: int
    root: int
    """Position of the committed token that nodes without a parent follow; 0 if there are none."""
    nodes: tuple[DraftNode, ...]


@dataclass(frozen=True)
class MoreDraws:
    """Residual mode: every draw for ``position`` failed; send more, from index ``first_index`` on."""

    position: int
    first_index: int


@dataclass(frozen=True)
class Close:
    """End the session and free what the server holds for it."""


EdgeMessage = Open | Resume | Round | Decode | Draft | MoreDraws | Close


# --- cloud to edge ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """The session stands; what the server told about itself."""

    session_id: bytes
    epoch: int
    """Of the ``Open`` or ``Resume`` this answers."""
    model: str
    fingerprint: str
    """What the target's begins with."""
    max_context: int
    """Positions a session may use."""
    max_chain: int
    idle_timeout_ms: int = 600_000
    resume_ttl_ms: int = 0
    pad_sizes: bool = False
    """Whether the server pads its messages and wishes the edge to."""
    eagerness: Eagerness | None = None
    """How the server takes part in a race; None: it does not."""
    max_race_nodes: int = 0
    """Drafted nodes it keeps for a session; 0 where it does not race."""


class ResetReason(str, Enum):
    """Why a session is gone."""

    UNKNOWN_SESSION = "unknown_session"
    """Open it anew over the same stream."""
    SHUTTING_DOWN = "shutting_down"
    """The stream ends; connect again."""


@dataclass(frozen=True)
class Busy:
    """The message just received could not be taken and changed nothing: send it again in ``retry_ms``."""

    retry_ms: int


@dataclass(frozen=True)
class Reset:
    """The session is over on the server's side; the committed tokens are the edge's to keep."""

    epoch: int
    reason: ResetReason


@dataclass(frozen=True)
class ServerTimes:
    """What the server spent on a request, as it travels: two log-scale bytes (within 3 percent)."""

    queue_ms: float = 0.0
    compute_ms: float = 0.0


@dataclass(frozen=True)
class TokenVerdict:
    """``accepted`` chain tokens stand and ``next_token`` follows them."""

    seq: int
    accepted: int
    next_token: int
    times: ServerTimes = field(default_factory=ServerTimes)


@dataclass(frozen=True)
class EndVerdict:
    """``accepted`` chain tokens stand, the last of them an end token: no bonus token follows."""

    seq: int
    accepted: int
    times: ServerTimes = field(default_factory=ServerTimes)


@dataclass(frozen=True)
class SparseTarget:
    """Residual mode: a rounded target distribution, every support id (ascending) with its weight.

    ``weights`` are positive and sum to ``2**bits``.
    """

    bits: int
    ids: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True)
class TargetDraws:
    """Residual mode: ids drawn from the rounded target, in the order drawn, duplicates kept.

    ``weights[j]`` is the target weight of ``ids[j]``, out of ``2**bits``. Draw ``j`` here has index
    ``first_index + j``.
    """

    bits: int
    first_index: int
    ids: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True)
class RejectVerdict:
    """Residual mode: ``accepted`` chain tokens stand and the next was rejected; the edge draws another."""

    seq: int
    accepted: int
    target: SparseTarget | TargetDraws
    times: ServerTimes = field(default_factory=ServerTimes)


@dataclass(frozen=True)
class MoreTarget:
    """The answer to ``MoreDraws``."""

    target: SparseTarget | TargetDraws


@dataclass(frozen=True)
class DraftsHeard:
    """That drafts have come, so that the edge knows how fast they do."""

    next_id: int
    """The id behind that of the last node, modulo ``DRAFTED_MODULUS``."""
    age_ms: float
    """How long before this was sent it came; it travels as ``ServerTimes`` do."""


@dataclass(frozen=True)
class Commit:
    """Tokens the cloud committed, the first of them at ``position``."""

    position: int
    tokens: tuple[int, ...]
    compute_ms: float = 0.0
    drafts: DraftsHeard | None = None
    """In a race: the drafts that came over this stream since the commit before; None: none did."""


Verdict = TokenVerdict | EndVerdict | RejectVerdict
CloudMessage = Opened | Busy | Reset | TokenVerdict | EndVerdict | RejectVerdict | MoreTarget | Commit
