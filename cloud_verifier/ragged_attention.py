"""Attention of tokens to rows of a pool, for several sequences at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

FOLDED_QUERIES = 32
"""Up to how many tokens the query heads that share a key are folded into one head of more queries.

Each key is then read once for all of them, and the mask is as many times larger: for long feeds too large.
"""


@dataclass(frozen=True)
class ScoreRule:
    """How scores of queries and keys become weights."""

    scale: float
    softcap: float | None = None
    """Scores are drawn within plus and minus this by a tanh (Gemma 2)."""
    sinks: torch.Tensor | None = None  # [H]
    """A score of each head that takes its share of the weights and adds nothing (GPT-OSS)."""

    @property
    def plain(self) -> bool:
        return self.softcap is None and self.sinks is None

    def folds(self, num_queries: int) -> bool:
        """Whether the mask must be folded for this many queries."""
        return not self.plain or num_queries <= FOLDED_QUERIES


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, rule: ScoreRule
) -> torch.Tensor:
    """Attention ``[B, N, H, V]`` of ``query`` ``[B, N, H, D]``.

    ``keys`` are ``[B, L, KVH, D]``, ``values`` ``[B, L, KVH, V]``; either may be a view of other strides.
    ``mask`` is additive, of the query's dtype: ``[B, N, L]``, or where ``rule.folds(N)`` ``folded``. None:
    all is seen. Long feeds, which are not folded, come alone: B is 1.
    """
    batch, num_queries, heads, width = query.shape
    kv_heads = keys.shape[2]
    grouped = query.reshape(batch, num_queries, kv_heads, heads // kv_heads, width)
    if not rule.folds(num_queries):
        return _attend_alone(grouped, keys, values, mask, rule.scale)
    folded_query = grouped.transpose(1, 2).reshape(batch, kv_heads, -1, width)  # [B, KVH, N * G, D]
    by_head = mask if mask is None else mask[:, None]
    compute = _attend_plainly if rule.plain else _attend_by_rule
    result = compute(folded_query, keys.transpose(1, 2), values.transpose(1, 2), by_head, rule)
    unfolded = result.view(batch, kv_heads, num_queries, -1, result.shape[-1]).transpose(1, 2)
    return unfolded.reshape(batch, num_queries, heads, -1)


def folded(mask: torch.Tensor, groups: int) -> torch.Tensor:
    """``mask`` ``[B, N, L]`` for ``groups`` query heads a key: ``[B, N * G, L]``."""
    return mask.repeat_interleave(groups, dim=1)


def _attend_plainly(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, rule: ScoreRule
) -> torch.Tensor:
    return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=rule.scale)


def _attend_alone(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """One sequence, ``query`` ``[1, N, KVH, G, D]``: every key's row is seen by its G heads, not copied."""
    assert len(query) == 1, "long feeds come alone"
    _, num_queries, kv_heads, groups, _ = query.shape
    result = scaled_dot_product_attention(
        query[0].permute(1, 2, 0, 3),  # [KVH, G, N, D]
        keys[0].transpose(0, 1)[:, None].expand(-1, groups, -1, -1),  # [KVH, G, L, D]
        values[0].transpose(0, 1)[:, None].expand(-1, groups, -1, -1),
        attn_mask=mask if mask is None else mask[0],
        scale=scale,
    )
    return result.permute(2, 0, 1, 3).reshape(1, num_queries, kv_heads * groups, -1)


def _attend_by_rule(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, rule: ScoreRule
) -> torch.Tensor:
    """What torch has no kernel for, step by step; ``query`` ``[B, KVH, N * G, D]``."""
    scores = (query @ keys.transpose(2, 3)) * rule.scale
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    if mask is not None:
        scores = scores + mask
    exact = torch.promote_types(scores.dtype, torch.float32)
    if rule.sinks is None:
        weights = torch.softmax(scores, dim=-1, dtype=exact)
    else:
        batch, kv_heads, rows, _ = scores.shape
        sinks = rule.sinks.view(kv_heads, -1).repeat(1, rows * kv_heads // len(rule.sinks))  # [KVH, N * G]
        column = sinks[None, :, :, None].expand(batch, -1, -1, 1).to(scores.dtype)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1, dtype=exact)[..., :-1]
    return weights.to(values.dtype) @ values
