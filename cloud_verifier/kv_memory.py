"""How much memory the pool of keys and values takes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch

from acespec.cloud_verifier.kv_store import PAGE_TOKENS, LayerRows
from acespec.errors import AcespecError

RAM_SHARE = 0.25
"""Of the memory this process may use, on a CPU: weights, activations and others need the rest."""
GPU_SHARE = 0.8
"""Of what a GPU has free beside the weights: activations and logits need the rest."""
FULL_CONTEXTS = 256
"""Sequences of full length beyond which more memory by default would serve no one."""
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where a container's limit stands: cgroup v2 and v1."""


def pages_by_default(layers: Iterable[LayerRows], max_context: int) -> int:
    """Pages that fit a share of each device's memory, but no more than could be of use."""
    needed = defaultdict[torch.device, int](int)
    for layer in layers:
        needed[layer.device] += layer.bytes_per_token
    useful = -(-max_context // PAGE_TOKENS) * FULL_CONTEXTS
    return min(useful, *(default_bytes(device) // (PAGE_TOKENS * size) for device, size in needed.items()))


def pages_within(layers: Iterable[LayerRows], kv_memory_bytes: int) -> int:
    """Pages that fit ``kv_memory_bytes`` over all layers. Raises ``AcespecError`` if not even one does."""
    page_bytes = PAGE_TOKENS * sum(layer.bytes_per_token for layer in layers)
    if kv_memory_bytes < page_bytes:
        raise AcespecError(
            f"{kv_memory_bytes} bytes hold no keys and values: {PAGE_TOKENS} tokens of this target take "
            f"{page_bytes}; give it more memory for them"
        )
    return kv_memory_bytes // page_bytes


def default_bytes(device: torch.device) -> int:
    """What the pool may take of ``device``'s memory unless told otherwise."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(GPU_SHARE * free)
    return int(RAM_SHARE * usable_ram(CGROUP_LIMITS))


def usable_ram(cgroup_limits: Iterable[Path]) -> int:
    """Bytes of memory this process may use: the machine's, or its container's limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told = [file.read_text().strip() for file in cgroup_limits if file.is_file()]
    return min([machine, *(int(limit) for limit in told if limit.isdecimal())])  # "max" is no limit
