"""What a verdict means: which tokens it commits, and the draw after a rejection (Algorithm 1 line 7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acespec.edge_runtime.drafter import Chain
from acespec.edge_runtime.errors import protocol_error
from acespec.edge_runtime.session import EdgeSession
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
    while True:
        if not isinstance(verdict, RejectVerdict):
            return _decided(session, chain, verdict)
        if verdict.accepted >= _tested(session, chain):
            raise protocol_error(f"it rejected token {verdict.accepted} of a chain of {len(chain)}")
        drawn = await _resample(session, chain, verdict)
        if isinstance(drawn, int):
            return Resolution(verdict.accepted, drawn, resampled=True, rejected=True)
        verdict = drawn


def _decided(session: EdgeSession, chain: Chain, verdict: TokenVerdict | EndVerdict) -> Resolution:
    accepted, tested = verdict.accepted, _tested(session, chain)
    if accepted > tested:
        raise protocol_error(f"it accepted {accepted} tokens of a chain of {tested}")
    if isinstance(verdict, TokenVerdict):
        return Resolution(accepted, verdict.next_token, resampled=False, rejected=accepted < tested)
    if chain.tokens[accepted - 1] not in session.request.end_token_ids:
        raise protocol_error("it ended the text behind a token that is no end token")
    return Resolution(accepted, None, resampled=False, rejected=False)


def _tested(session: EdgeSession, chain: Chain) -> int:
    """How many of the chain's tokens the server looks at: its limits were not known to the first round."""
    return min(len(chain), session.max_chain, session.remaining - 1)


async def _resample(session: EdgeSession, chain: Chain, verdict: RejectVerdict) -> int | Verdict:
    """The token drawn, or the verdict to begin again from."""
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
        answer = await session.more_draws(position, target.first_index + len(target.ids))
        if isinstance(answer, Verdict):
            return answer
        target = answer
    support = Weighted(
        np.asarray(target.ids, dtype=np.int64), np.asarray(target.weights, dtype=np.int64), target.bits
    )
    return resample_sparse(support, draft, seed, position)
