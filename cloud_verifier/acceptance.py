"""What the target makes of a chain: pure functions from logits and shared randomness to a decision.

A chain of gamma tokens follows the committed ones; its first would stand at absolute position
``first_position``. Row i of the logits (from 0) predicts what stands at ``first_position + i``, given the
committed tokens and the chain's first i. Rows are looked at from left to right and no further than the first
that ends the check: a distribution over a large vocabulary costs about a millisecond. An empty chain is plain
decoding of one token. In the race a tree of tokens stands for the chain.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from acespec.cloud_verifier.draft_tree import TIP, Branches
from acespec.cloud_verifier.engine import TargetLogits
from acespec.speculation import (
    Purpose,
    SamplingParams,
    TokenCounts,
    Weighted,
    accepts,
    coupled_pick,
    distribution,
    propose,
    target_bits,
    uniform,
    weighted,
)
from acespec.wire import SparseTarget, TargetDraws, downlink_bits_draws, downlink_bits_sparse

FIRST_DRAWS = 8
"""Draws sent with a rejection; every further answer carries twice as many as the one before."""


@dataclass(frozen=True)
class Decision:
    """How a check ended. At most one of ``next_token`` and ``rejected_by`` is set.

    Neither is set if the last accepted token is an end token: nothing follows it.
    """

    accepted: int
    """Chain tokens that stand."""
    next_token: int | None = None
    """The token the target put after them."""
    rejected_by: Weighted | None = None
    """Residual mode: the rounded target distribution that rejected the next chain token."""


def verify_coupled(
    logits: TargetLogits,  # [gamma+1, V]
    chain: Sequence[int],
    params: SamplingParams,
    counts: TokenCounts | None,
    seed: int,
    first_position: int,
    end_token_ids: Collection[int],
) -> Decision:
    """Accept chain tokens as long as each equals the target's own pick: a chain is a tree of one branch.

    Arguments as ``walk_coupled``.
    """
    branch = Branches(tuple(chain), tuple(range(TIP, len(chain) - 1)))
    walk = walk_coupled(logits, branch, params, counts, seed, first_position, end_token_ids)
    accepted = len(walk.path)
    return Decision(accepted, walk.tokens[accepted] if accepted < len(walk.tokens) else None)


@dataclass(frozen=True)
class Walk:
    """How far a tree of tokens came true."""

    num_nodes: int
    """Of the tree."""
    path: tuple[int, ...]
    """Indexes of the nodes that did, each following the one before."""
    tokens: tuple[int, ...]
    """Theirs, and the one the target put after them, unless the last is an end token."""


def walk_coupled(
    logits: TargetLogits,  # [1+n, V]
    branches: Branches,  # n nodes
    params: SamplingParams,
    counts: TokenCounts | None,
    seed: int,
    first_position: int,
    end_token_ids: Collection[int],
) -> Walk:
    """Go down a tree as long as it has the target's own pick (coupled mode, docs/exactness.md).

    Row 0 predicts what follows the committed tokens, row i+1 what follows node i. ``counts`` holds the
    committed tokens; it is needed with penalties only and left as it was.
    """
    assert len(logits) == len(branches.tokens) + 1
    counts = counts.copy() if counts is not None and branches.tokens else counts
    nodes = {place: node for node, place in enumerate(zip(branches.parents, branches.tokens, strict=True))}
    path: list[int] = []
    tokens: list[int] = []
    at: int | None = TIP
    while at is not None:
        pick = coupled_pick(distribution(logits[at + 1], params, counts), seed, first_position + len(tokens))
        tokens.append(pick)
        at = nodes.get((at, pick))
        if at is not None:
            path.append(at)
            if pick in end_token_ids:
                break
            if counts is not None:
                counts.push(pick)
    return Walk(len(branches.tokens), tuple(path), tuple(tokens))


def verify_residual(
    logits: TargetLogits,  # [gamma+1, V]
    chain: Sequence[int],
    draft_weights: Sequence[int],
    params: SamplingParams,
    counts: TokenCounts | None,
    seed: int,
    first_position: int,
    end_token_ids: Collection[int],
) -> Decision:
    """Accept each chain token with probability ``min(1, target_prob / draft_prob)`` (docs/exactness.md).

    ``draft_weights`` ``[gamma]`` are the tokens' weights, out of ``2**16``, in the distributions they were
    sampled from. The target is rounded to integer weights before anything is decided. After full acceptance
    the next token is drawn here; after a rejection the edge draws it, from ``rejected_by`` and its own draft.
    """
    assert len(logits) == len(chain) + 1 == len(draft_weights) + 1
    counts = counts.copy() if counts is not None and chain else counts
    for i, (token, draft_weight) in enumerate(zip(chain, draft_weights, strict=True)):
        target = rounded_target(logits[i], params, counts)
        u = uniform(seed, Purpose.ACCEPT, first_position + i)
        if not accepts(u, draft_weight, target.weight_of(token), target.bits):
            return Decision(accepted=i, rejected_by=target)
        if token in end_token_ids:
            return Decision(accepted=i + 1)
        if counts is not None:
            counts.push(token)
    target = rounded_target(logits[len(chain)], params, counts)
    drawn = propose(target, seed, first_position + len(chain), first_index=0, count=1)
    return Decision(accepted=len(chain), next_token=int(drawn[0]))


def rounded_target(
    logits: NDArray[np.float32], params: SamplingParams, counts: TokenCounts | None
) -> Weighted:
    """The target distribution of one row ``[V]``, rounded to weights summing to ``2**target_bits``."""
    exact = distribution(logits, params, counts)
    return weighted(exact, target_bits(len(exact.ids)))


def describe_target(
    target: Weighted, seed: int, position: int, first_index: int, token_bits: int
) -> SparseTarget | TargetDraws:
    """What the edge needs to draw the token at ``position``: draws of ``target``, or all of it.

    ``first_index`` is 0 with the rejection and the number of draws already sent after it. The smaller form is
    taken, by the fixed widths of its fields and never by what is drawn: that would bias what the edge draws.
    """
    count = draws_at(first_index)
    sparse_bits = downlink_bits_sparse(len(target.ids), target.bits, token_bits)
    if sparse_bits <= downlink_bits_draws(count, target.bits, token_bits, first_index):
        return SparseTarget(target.bits, tuple(target.ids.tolist()), tuple(target.weights.tolist()))
    ids = propose(target, seed, position, first_index, count)
    return TargetDraws(target.bits, first_index, tuple(ids.tolist()), tuple(target.weights_of(ids).tolist()))


def draws_at(first_index: int) -> int:
    """How many draws the answer beginning at ``first_index`` carries: 8 at 0, 16 at 8, 32 at 24, …"""
    return FIRST_DRAWS + first_index
