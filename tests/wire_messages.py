"""Messages of one session as Hypothesis draws them, and the packed layout written the slow way."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from acespec.speculation import SamplingParams
from acespec.wire import (
    MAX_CHAIN,
    MAX_DRAFT_NODES,
    MAX_NODE_DISTANCE,
    AcceptanceMode,
    Busy,
    Close,
    CloudMessage,
    Commit,
    Decode,
    Draft,
    DraftNode,
    DraftsHeard,
    Eagerness,
    EdgeMessage,
    EndVerdict,
    MoreDraws,
    MoreTarget,
    Open,
    Opened,
    RejectVerdict,
    Reset,
    ResetReason,
    Resume,
    Round,
    ServerTimes,
    SparseTarget,
    TargetDraws,
    TokenVerdict,
)
from acespec.wire import verifier_pb2 as pb
from acespec.wire.times import DURATIONS_MS

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

COUPLED, RESIDUAL = AcceptanceMode.COUPLED, AcceptanceMode.RESIDUAL


def packed(*fields: tuple[int, int]) -> bytes:
    """(value, width) as a string of binary digits, zeros to whole bytes."""
    digits = "".join(f"{value:0{width}b}" for value, width in fields)
    digits += "0" * (-len(digits) % 8)
    return bytes(int(digits[start : start + 8], 2) for start in range(0, len(digits), 8))


def payload(message: pb.EdgeMessage | pb.CloudMessage) -> bytes:
    """The one field of a packed message."""
    kind = message.WhichOneof("kind")
    assert kind is not None
    data = getattr(message, kind)
    assert isinstance(data, bytes)
    return data


def example_open() -> Open:
    """A valid one, with 9-bit tokens."""
    return Open(
        model="target",
        fingerprint="f",
        vocabulary_hash="v",
        vocab_size=300,
        end_token_ids=(2, 299),
        sampling=SamplingParams(),
        seed=7,
        mode=COUPLED,
        committed=(1, 2, 299),
        prompt_length=2,
        token_limit=10,
    )


vocab_sizes = st.sampled_from([2, 3, 255, 256, 257, 49152, 128256, 151936, 262144]) | st.integers(2, 262144)
modes = st.sampled_from(AcceptanceMode)
seqs = st.integers(0, 63)
checks = st.integers(0, 0xFFFF)
names = st.text("aZ09-/_ é語😀", max_size=256)
durations = st.sampled_from(DURATIONS_MS)
server_times = st.builds(ServerTimes, durations, durations)
epochs = st.integers(0, 2**32 - 1)
positions = st.integers(0, 2**24 - 1)


def tokens(vocab_size: int, min_size: int, max_size: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, vocab_size - 1), min_size=min_size, max_size=max_size).map(tuple)


@st.composite
def rounds(draw: st.DrawFn, vocab_size: int, mode: AcceptanceMode) -> Round:
    chain = draw(tokens(vocab_size, 0, MAX_CHAIN))
    if mode is COUPLED:
        return Round(draw(seqs), draw(checks), chain)
    weights = draw(st.lists(st.integers(1, 65536), min_size=len(chain), max_size=len(chain)))
    resampled = draw(st.none() | st.integers(0, vocab_size - 1))
    return Round(draw(seqs), draw(checks), chain, tuple(weights), resampled)


@st.composite
def decodes(draw: st.DrawFn, vocab_size: int, mode: AcceptanceMode) -> Decode:
    resampled = draw(st.none() | st.integers(0, vocab_size - 1)) if mode is RESIDUAL else None
    race = draw(st.booleans()) if mode is COUPLED else False
    return Decode(draw(seqs), draw(checks), draw(st.integers(1, 2**24 - 1)), resampled, race)


@st.composite
def drafts(draw: st.DrawFn, vocab_size: int) -> Draft:
    """Trees whose nodes follow near ones most often, as real ones do, and any other at times."""
    count = draw(st.integers(1, 20) | st.just(MAX_DRAFT_NODES))
    first_id = draw(st.just(0) | st.integers(0, 100_000) | st.just(2**32 - count))
    nodes: list[DraftNode] = []
    for node_id in range(first_id, first_id + count):
        earlier = st.integers(max(0, node_id - 3), node_id - 1)
        far = st.integers(max(0, node_id - MAX_NODE_DISTANCE), node_id - 1)
        before = [node.parent for node in nodes[-1:]]
        parent = draw(st.sampled_from([None, *before]) | earlier | far if node_id else st.none())
        told = [node.token for node in nodes] or [0]
        nodes.append(DraftNode(draw(st.integers(0, vocab_size - 1) | st.sampled_from(told)), parent))
    rooted = any(node.parent is None for node in nodes)
    return Draft(draw(seqs), first_id, draw(positions) if rooted else 0, tuple(nodes))


sampling_params = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.01, 100),
    presence_penalty=st.floats(-100, 100),
    frequency_penalty=st.floats(-100, 100),
)


@st.composite
def opens(draw: st.DrawFn, vocab_size: int, mode: AcceptanceMode) -> Open:
    committed = draw(tokens(vocab_size, 1, 100))
    return Open(
        model=draw(names),
        fingerprint=draw(names),
        vocabulary_hash=draw(names),
        vocab_size=vocab_size,
        end_token_ids=draw(tokens(vocab_size, 0, 64)),
        sampling=draw(sampling_params),
        seed=draw(st.integers(0, 2**64 - 1)),
        mode=mode,
        committed=committed,
        prompt_length=draw(st.integers(1, len(committed))),
        token_limit=draw(st.integers(len(committed) + 1, 2**24 - 1)),
        epoch=draw(epochs),
        race=mode is COUPLED and draw(st.booleans()),
    )


resumes = st.builds(
    Resume,
    session_id=st.binary(min_size=1, max_size=64),
    epoch=st.integers(1, 2**32 - 1),
    committed=st.integers(1, 2**24 - 1),
)


def edge_messages(vocab_size: int, mode: AcceptanceMode) -> st.SearchStrategy[EdgeMessage]:
    requests = rounds(vocab_size, mode) | decodes(vocab_size, mode)
    both = requests | opens(vocab_size, mode) | resumes | st.just(Close())
    if mode is COUPLED:
        return both | drafts(vocab_size)
    return both | st.builds(MoreDraws, positions, st.integers(1, 2**24 - 1))


@st.composite
def sparse_targets(draw: st.DrawFn, vocab_size: int) -> SparseTarget:
    bits = draw(st.integers(1, 40))
    support = st.integers(0, vocab_size - 1)
    ids = sorted(draw(st.sets(support, min_size=1, max_size=min(vocab_size, 2**bits, 100))))
    cuts = draw(
        st.sets(st.integers(1, 2**bits - 1), min_size=len(ids) - 1, max_size=len(ids) - 1)
        if len(ids) > 1
        else st.just(set())
    )
    edges = [0, *sorted(cuts), 2**bits]
    weights = tuple(high - low for low, high in pairwise(edges))
    return SparseTarget(bits, tuple(ids), weights)


@st.composite
def target_draws(draw: st.DrawFn, vocab_size: int, first_index: int) -> TargetDraws:
    """Draws are taken from a sparse target, as the cloud takes them."""
    target = draw(sparse_targets(vocab_size))
    weight_of = dict(zip(target.ids, target.weights, strict=True))
    ids = tuple(draw(st.lists(st.sampled_from(target.ids), min_size=1, max_size=100)))
    return TargetDraws(target.bits, first_index, ids, tuple(weight_of[token] for token in ids))


races = st.just((None, 0)) | st.tuples(st.sampled_from(Eagerness), st.integers(1, 65_536))
openeds = st.builds(
    lambda race, **fields: Opened(eagerness=race[0], max_race_nodes=race[1], **fields),
    races,
    session_id=st.binary(min_size=1, max_size=64),
    epoch=epochs,
    model=names,
    fingerprint=names,
    max_context=st.integers(1, 2**32 - 1),
    max_chain=st.integers(1, MAX_CHAIN),
    idle_timeout_ms=st.integers(1, 2**32 - 1),
    resume_ttl_ms=st.integers(0, 2**32 - 1),
    pad_sizes=st.booleans(),
)
busies = st.builds(Busy, st.integers(1, 600_000))
resets = st.builds(Reset, epochs, st.sampled_from(ResetReason))


@st.composite
def commits(draw: st.DrawFn, vocab_size: int, mode: AcceptanceMode) -> Commit:
    committed = draw(tokens(vocab_size, 1, 100))
    heard = st.builds(DraftsHeard, st.integers(0, 2**16 - 1), durations)
    drafts = draw(st.none() | heard) if mode is COUPLED else None
    return Commit(draw(st.integers(0, 2**24 - len(committed))), committed, draw(durations), drafts)


def cloud_messages(vocab_size: int, mode: AcceptanceMode) -> st.SearchStrategy[CloudMessage]:
    verdicts = st.builds(
        TokenVerdict, seqs, st.integers(0, MAX_CHAIN), st.integers(0, vocab_size - 1), server_times
    )
    ends = st.builds(EndVerdict, seqs, st.integers(1, MAX_CHAIN), server_times)
    both = verdicts | ends | commits(vocab_size, mode) | openeds | busies | resets
    if mode is COUPLED:
        return both
    first_targets = sparse_targets(vocab_size) | target_draws(vocab_size, 0)
    rejections = st.builds(RejectVerdict, seqs, st.integers(0, MAX_CHAIN - 1), first_targets, server_times)
    later_draws = st.integers(1, 2**24 - 1).flatmap(lambda first: target_draws(vocab_size, first))
    return both | rejections | st.builds(MoreTarget, sparse_targets(vocab_size) | later_draws)


@st.composite
def sessions(draw: st.DrawFn) -> tuple[int, AcceptanceMode]:
    """Vocabulary size and mode."""
    return draw(vocab_sizes), draw(modes)
