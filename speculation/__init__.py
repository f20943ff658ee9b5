"""The maths both sides share: sampling, shared randomness, trees and masks, branch allocation. NumPy only."""

from __future__ import annotations

from acespec.speculation.allocation import Allocation, allocate, allocate_adaptive
from acespec.speculation.candidates import (
    MAX_CANDIDATES,
    CandidateRow,
    Ranking,
    candidate_row,
    rank_candidates,
)
from acespec.speculation.coupled import coupled_pick, race_scores
from acespec.speculation.distribution import (
    Distribution,
    InvalidLogitsError,
    candidate_depth,
    distribution,
)
from acespec.speculation.draft_logits import DraftLogits, LogitsRow, LogitsRows
from acespec.speculation.params import SamplingParams
from acespec.speculation.penalties import TokenCounts
from acespec.speculation.randomness import Purpose, uniform
from acespec.speculation.residual import (
    accepts,
    propose,
    resample_draws,
    resample_sparse,
    residual_weights,
    thin_passes,
)
from acespec.speculation.tree import tree_mask
from acespec.speculation.weights import (
    DRAFT_BITS,
    Weighted,
    draw,
    round_to_weights,
    target_bits,
    weighted,
)

__all__ = [
    "DRAFT_BITS",
    "MAX_CANDIDATES",
    "Allocation",
    "CandidateRow",
    "Distribution",
    "DraftLogits",
    "InvalidLogitsError",
    "LogitsRow",
    "LogitsRows",
    "Purpose",
    "Ranking",
    "SamplingParams",
    "TokenCounts",
    "Weighted",
    "accepts",
    "allocate",
    "allocate_adaptive",
    "candidate_depth",
    "candidate_row",
    "coupled_pick",
    "distribution",
    "draw",
    "propose",
    "race_scores",
    "rank_candidates",
    "resample_draws",
    "resample_sparse",
    "residual_weights",
    "round_to_weights",
    "target_bits",
    "thin_passes",
    "tree_mask",
    "uniform",
    "weighted",
]
