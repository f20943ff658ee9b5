"""What a verdict means: which tokens it commits, and the draw after a rejection (Algorithm 1 line 7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acespec.edge_runtime.drafter import Chain
from acespec.edge_runtime.session import EdgeSession, protocol_error
from acespec.speculation import Weighted, resample_draws, resample_sparse
from acespec.wire import EndVerdict, RejectVerdict, SparseTarget, TokenVerdict, Verdict


@dataclass(frozen=True)
class Resolution:
    """A decided round."""

    accepted: int
    next_token: int | None
    """None: the last accepted token ended the text."""
    resampled: bool
    """Whether the edge drew ``next_token`` itself."""
    rejected: bool
    """Whether chain token ``accepted`` was tested and failed."""


async def resolve(session: EdgeSession, chain: Chain, verdict: Verdict) -> Resolution:
    """Turn ``verdict`` on ``chain`` into the outcome, drawing from the residual where that falls to the edge.

    Raises ``SessionError`` if the verdict does not fit the chain.
    """
    accepted = verdict.accepted
    if accepted > len(chain):
        raise protocol_error(f"it accepted {accepted} tokens of a chain of {len(chain)}")
    rejected = accepted < len(chain)
    if isinstance(verdict, TokenVerdict):
        return Resolution(accepted, verdict.next_token, resampled=False, rejected=rejected)
    if isinstance(verdict, EndVerdict):
        if chain.tokens[accepted - 1] not in session.request.end_token_ids:
            raise protocol_error("it ended the text behind a token that is no end token")
        return Resolution(accepted, None, resampled=False, rejected=False)
    if not rejected:
        raise protocol_error(f"it rejected token {accepted} of a chain of {len(chain)}")
    token = await _resample(session, chain, verdict)
    return Resolution(accepted, token, resampled=True, rejected=True)


async def _resample(session: EdgeSession, chain: Chain, verdict: RejectVerdict) -> int:
    draft = chain.drafted[verdict.accepted].weights
    assert draft is not None, "a rejection to resample happens in residual mode only"
    position = len(session.committed) + verdict.accepted
    seed = session.request.seed
    target = verdict.target
    while not isinstance(target, SparseTarget):
        token = resample_draws(
            np.asarray(target.ids, dtype=np.int64),
            np.asarray(target.weights, dtype=np.int64),
            target.bits,
            draft,
            seed,
            position,
            target.first_index,
        )
        if token is not None:
            return token
        target = await session.more_draws(position, target.first_index + len(target.ids))
    support = Weighted(
        np.asarray(target.ids, dtype=np.int64), np.asarray(target.weights, dtype=np.int64), target.bits
    )
    return resample_sparse(support, draft, seed, position)
