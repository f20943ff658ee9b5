"""The attention of one step as a single operator, `acespec::attention`, that transformers' models can call.

What comes before a step is not in here at all: each graph form gives the operator its past in its own way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

ATTENTION_NAME = "acespec_attention"
# What models hand to an attention function that changes nothing here: the mask and positions say it already.
HARMLESS_ARGUMENTS = frozenset(
    {
        "cache_position",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "sliding_window",
        "use_cache",
    }
)
ARGUMENT_MEANINGS = {
    "head_mask": "switches heads off",
    "position_bias": "adds a learned bias to its attention scores",
    "s_aux": "has attention sinks",
    "softcap": "caps its attention scores (softcap)",
}
"""What an argument that cannot be served says of a model."""


@torch.library.custom_op("acespec::attention", mutates_args=())
def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of one step's tokens, over these rows alone: `[1, H, N, D]` from `[1, H or KVH, N, D]`.

    ``mask`` is additive, ``[1, 1, N, N]``. An exported graph puts the past before the step's rows, and
    ``mask`` has its columns.
    """
    groups = query.shape[1] // key.shape[1]
    keys, values = (rows.repeat_interleave(groups, dim=1) for rows in (key, value))
    scores = (query * scale) @ keys.transpose(2, 3) + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ values


@attention.register_fake
def _(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    del key, value, mask, scale
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def step_attention(
    module: nn.Module,  # noqa: ARG001 - transformers' signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over a step; registered with transformers under `ATTENTION_NAME`.

    Returns ``[1, N, H, D]``. Raises ``NotImplementedError`` for an argument that would change the result.
    """
    unknown = [name for name, given in kwargs.items() if given is not None and name not in HARMLESS_ARGUMENTS]
    if dropout:
        unknown.append("dropout")
    if unknown:
        name = min(unknown)
        raise NotImplementedError(f"it {ARGUMENT_MEANINGS.get(name, f'gives its attention a {name}')}")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return attention(query, key, value, attention_mask, scale).transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, step_attention)
