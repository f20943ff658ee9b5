"""How a target is loaded so that each rank holds its shard, and what all ranks must have in common."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from transformers import PretrainedConfig
from transformers.distributed.configuration_utils import DistributedConfig

from acespec.errors import AcespecError


def sharding_arguments(config: PretrainedConfig) -> dict[str, Any]:
    """What ``from_pretrained`` takes beside the rest so that this process loads its shard, on its own device.

    ``config`` is the folder's. Transformers cuts attention between heads and never within one. Raises
    ``AcespecError`` if it has no plan for the architecture, or its heads cannot be dealt out evenly.
    """
    size = dist.get_world_size()
    decoder = config.get_text_config(decoder=True)
    if not decoder.base_model_tp_plan:
        raise AcespecError(
            f"Transformers has no tensor-parallel plan for {decoder.model_type}; serve it without --tp, "
            "or with --device-map auto"
        )
    heads = int(decoder.num_attention_heads)
    kv_heads = int(getattr(decoder, "num_key_value_heads", None) or heads)
    if heads % size or kv_heads % size:
        counts = [n for n in range(2, heads + 1) if heads % n == 0 and kv_heads % n == 0]
        possible = f"--tp {' or '.join(map(str, counts))}" if counts else "--device-map auto"
        raise AcespecError(
            f"{heads} attention heads with {kv_heads} of keys and values cannot be dealt out to {size} "
            f"processes evenly; use {possible}"
        )
    return {"distributed_config": DistributedConfig(tp_size=size)}


def smallest_over_ranks(value: int, device: torch.device) -> int:
    """The least of all ranks' values: what each can do. ``device`` is the rank's own."""
    least = torch.tensor([value], dtype=torch.int64, device=device)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return int(least.item())
