"""Checks of a draft engine: what it computes at once must equal the same tokens fed singly, and PyTorch.

A tree step must give each token the logits of its own branch run alone, a prompt in wide steps those of a
prompt fed token by token, and a compacted branch must go on as if nothing else had been drafted. Works on any
`DraftEngine`, so on any runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acespec.edge_runtime.engine import DraftEngine
from acespec.errors import AcespecError
from acespec.models.probe import Probe
from acespec.models.tolerances import Tolerance
from acespec.speculation import LogitsRow, tree_mask

DEEPEST = 8
"""Tokens of the longest branch."""
SHORT_CONTEXT = 6
"""Rows before most trees: the fewer there are, the more a token counts that should not have been seen."""
LONGEST_PROMPT = 1024
"""Tokens of the prompt at most: each is also fed alone."""


@dataclass(frozen=True)
class Finding:
    """Rows of logits compared with those of the same tokens fed one at a time."""

    check: str
    """``prefill``, ``tree``, ``compaction`` or ``pytorch``."""
    bucket: int
    """Width that the compared step runs at."""
    context: int
    """Rows before it."""
    rows: int
    """How many rows were compared."""
    row: int
    """The one that differs most: a token of the step, or of the tree in the order computed."""
    difference: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.difference <= self.allowed  # not for NaN


@dataclass(frozen=True)
class Tree:
    """Random branches below a prefix. Nodes come before their children."""

    tokens: NDArray[np.int64]  # [n]
    parents: NDArray[np.int64]  # [n], -1 below the prefix
    depths: NDArray[np.int64]  # [n], 0 below the prefix

    def path_to_deepest(self) -> list[int]:
        """Nodes from the prefix to the deepest one."""
        node, path = int(np.argmax(self.depths)), []
        while node >= 0:
            path.append(node)
            node = int(self.parents[node])
        return path[::-1]


def validate_engine(
    engine: DraftEngine, tolerance: Tolerance, windows: Sequence[int] = (), seed: int = 0
) -> Iterator[Finding]:
    """Run every check and yield each finding as it is known. The engine's rows are overwritten.

    ``windows`` are the widths of the model's sliding windows, in positions: the prompt is made longer than
    them as far as `prompt_length` allows. Raises ``AcespecError`` when the context is too short.
    """
    generator = np.random.default_rng(seed)
    count = prompt_length(engine, windows)
    prompt = generator.integers(0, engine.vocab_size, count)
    yield _check_prefill(engine, prompt, tolerance)
    short = min(SHORT_CONTEXT, count)
    for context, buckets in ((count, engine.buckets[-1:]), (short, engine.buckets)):
        engine.truncate(context)
        for bucket in buckets:
            size = _tree_size(engine, context, bucket, generator)
            tree = random_tree(generator, size, engine.vocab_size, bucket)
            yield from _check_tree(engine, context, tree, bucket, tolerance)
    engine.truncate(0)


def _tree_size(engine: DraftEngine, context: int, bucket: int, generator: np.random.Generator) -> int:
    """Nodes of a tree that takes a full step and a smaller one, which runs padded in the same bucket."""
    smaller = max((width for width in engine.buckets if width < bucket), default=0)
    room = max(engine.max_rows - context - bucket, 0)
    return bucket + min(int(generator.integers(smaller + 1, bucket + 1)), room)


def prompt_length(engine: DraftEngine, windows: Sequence[int]) -> int:
    """Tokens of the prompt: more than one wide step, and past every window, where the context has room."""
    wanted = max(engine.prefill_width + engine.prefill_width // 2 + 1, *(window + 1 for window in windows), 1)
    room = min(engine.max_context - DEEPEST - 1, engine.max_rows - engine.buckets[-1])
    if engine.max_rows < engine.buckets[-1] + 2:
        raise AcespecError(
            f"{engine.max_rows} rows are too few for steps of {engine.buckets[-1]} tokens; "
            "export with narrower --buckets"
        )
    if room < 2:
        raise AcespecError(
            f"a context of {engine.max_context} positions is too short to validate; "
            f"export with a --context of at least {DEEPEST + 3}"
        )
    return min(wanted, room, LONGEST_PROMPT)


def random_tree(generator: np.random.Generator, count: int, vocab_size: int, step: int) -> Tree:
    """``count`` nodes, computed ``step`` at a time; none deeper than `DEEPEST`.

    Half of the nodes continue the one before, the others any; a step's first continues the step before it.
    """
    parents = np.full(count, -1)
    depths = np.zeros(count, np.int64)
    for node in range(1, count):
        continues = node % step == 0 or generator.random() < 0.5
        parent = node - 1 if continues else int(generator.integers(-1, node))
        if parent >= 0 and depths[parent] + 1 == DEEPEST:
            parent = int(parents[parent])
        parents[node] = parent
        depths[node] = 0 if parent < 0 else depths[parent] + 1
    return Tree(generator.integers(0, vocab_size, count), parents, depths)


def _check_prefill(engine: DraftEngine, prompt: NDArray[np.int64], tolerance: Tolerance) -> Finding:
    """A prompt in the widest steps against one fed singly: its last row, and the next token's.

    Leaves the whole prompt in the buffer, fed singly.
    """
    *most, last = prompt.tolist()
    engine.truncate(0)
    for first in range(0, len(most), engine.prefill_width):
        chunk = prompt[first : min(first + engine.prefill_width, len(most))]
        wide = _feed_text(engine, chunk)
    rows = [wide, _feed_one(engine, last)]
    engine.truncate(0)
    expected = [_feed_one(engine, token) for token in prompt.tolist()][-2:]
    return _compare("prefill", engine.prefill_width, 0, rows, expected, tolerance)


def _check_tree(
    engine: DraftEngine, prefix: int, tree: Tree, bucket: int, tolerance: Tolerance
) -> Iterator[Finding]:
    """A tree grown in one or two steps behind ``prefix`` rows, and its deepest branch kept."""
    next_token = int(tree.tokens[0])
    path = tree.path_to_deepest()

    rows: list[LogitsRow] = []
    while len(rows) < len(tree.tokens):
        rows += _grow(engine, prefix, tree, len(rows), bucket)
    engine.compact(prefix, [prefix + node for node in path])
    after = _feed_one(engine, next_token)

    yield _compare("tree", bucket, prefix, rows, _branch_by_branch(engine, prefix, tree), tolerance)
    engine.truncate(prefix)
    for node in path:
        _feed_one(engine, int(tree.tokens[node]))
    expected = _feed_one(engine, next_token)
    yield _compare("compaction", bucket, prefix, [after], [expected], tolerance)
    engine.truncate(prefix)


def _grow(engine: DraftEngine, prefix: int, tree: Tree, first: int, bucket: int) -> list[LogitsRow]:
    """One step: the nodes from ``first`` on, a bucket of them at most."""
    end = min(first + bucket, len(tree.tokens))
    mask = tree_mask(tree.parents[:end], prefix, end - first)
    logits = engine.forward(tree.tokens[first:end], prefix + tree.depths[first:end], mask)
    return [_copied(logits[row]) for row in range(end - first)]


def _branch_by_branch(engine: DraftEngine, prefix: int, tree: Tree) -> list[LogitsRow]:
    """Logits of every node, its branch fed one token at a time; what branches share is fed once."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        children.setdefault(parent, []).append(node)
    rows: dict[int, LogitsRow] = {}
    waiting = children[-1][::-1]
    while waiting:
        node = waiting.pop()
        engine.truncate(prefix + int(tree.depths[node]))  # down to its parent
        rows[node] = _feed_one(engine, int(tree.tokens[node]))
        waiting += children.get(node, [])[::-1]
    return [rows[node] for node in range(len(tree.tokens))]


def _feed_one(engine: DraftEngine, token: int) -> LogitsRow:
    """Feed one token behind all rows in use, each of which is at its own position."""
    past = engine.num_rows
    logits = engine.forward(np.array([token]), np.array([past]), np.ones((1, past + 1), np.bool_))
    return _copied(logits[0])


def _feed_text(engine: DraftEngine, tokens: NDArray[np.int64]) -> LogitsRow:
    """Feed a stretch of text behind all rows in use, and return the last token's logits."""
    count, past = len(tokens), engine.num_rows
    mask = np.tri(count, past + count, past, dtype=np.bool_)
    return _copied(engine.forward(tokens, np.arange(past, past + count), mask, last_only=True)[0])


def _copied(row: LogitsRow) -> LogitsRow:
    """A row that outlives the engine's next step."""
    return LogitsRow(row.values.copy(), None if row.ids is None else row.ids.copy(), row.log_sum_exp)


def _compare(
    check: str,
    bucket: int,
    context: int,
    actual: Sequence[LogitsRow],
    expected: Sequence[LogitsRow],
    tolerance: Tolerance,
) -> Finding:
    differences = np.array([row_difference(*rows) for rows in zip(actual, expected, strict=True)])
    worst = int(np.argmax(differences))  # the first NaN, if there is one
    allowed = tolerance.allowed(np.concatenate([row.values for row in expected]))
    return Finding(check, bucket, context, len(actual), worst, float(differences[worst]), allowed)


def row_difference(actual: LogitsRow, expected: LogitsRow) -> float:
    """Largest difference between two rows of logits.

    Where only the largest are known, a token that one row lacks is at most that row's smallest: it counts by
    as much as the other row has it above that. The log-sum-exp counts like a logit.
    """
    if actual.ids is None or expected.ids is None:
        return float(np.max(np.abs(actual.values - expected.values)))
    ours = dict(zip(actual.ids.tolist(), actual.values.tolist(), strict=True))
    theirs = dict(zip(expected.ids.tolist(), expected.values.tolist(), strict=True))
    differences = [_difference_of(token, ours, theirs) for token in ours | theirs]
    if actual.log_sum_exp is not None and expected.log_sum_exp is not None:
        differences.append(abs(actual.log_sum_exp - expected.log_sum_exp))
    return float(np.max(differences))  # NaN if there is one


def _difference_of(token: int, ours: dict[int, float], theirs: dict[int, float]) -> float:
    """Of a token that at least one of two rows shows."""
    if token in ours and token in theirs:
        return abs(ours[token] - theirs[token])
    shown, other = (ours, theirs) if token in ours else (theirs, ours)
    return max(shown[token] - min(other.values()), 0.0)


def compare_with_reference(
    engine: DraftEngine, probe: Probe, expected: NDArray[np.float32], tolerance: Tolerance
) -> Finding:
    """Feed ``probe`` in the widest steps, and compare with ``expected`` logits ``[n, vocab_size]``."""
    engine.truncate(0)
    rows: list[LogitsRow] = []
    while (first := len(rows)) < probe.count:
        end = min(first + engine.buckets[-1], probe.count)
        mask = probe.mask[first:end, :end]
        logits = engine.forward(probe.tokens[first:end], probe.positions[first:end], mask)
        rows += [_copied(logits[row]) for row in range(end - first)]
    engine.truncate(0)
    wanted = [_like(row, values) for row, values in zip(rows, expected, strict=True)]
    return _compare("pytorch", engine.buckets[-1], 0, rows, wanted, tolerance)


def _like(row: LogitsRow, values: NDArray[np.float32]) -> LogitsRow:
    """A whole row of logits as the engine would return it: cut to as many of its largest."""
    if row.ids is None:
        return LogitsRow(values)
    largest = np.sort(np.argpartition(values, -len(row.ids))[-len(row.ids) :])
    peak = float(np.max(values))
    log_sum_exp = peak + float(np.log(np.sum(np.exp(values.astype(np.float64) - peak))))
    return LogitsRow(values[largest], largest, log_sum_exp)
