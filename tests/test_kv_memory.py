"""How large the pool is, from bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from acespec.cloud_verifier import kv_memory
from acespec.cloud_verifier.kv_memory import (
    FULL_CONTEXTS,
    pages_by_default,
    pages_within,
    usable_ram,
)
from acespec.cloud_verifier.kv_store import PAGE_TOKENS, LayerRows
from acespec.errors import AcespecError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def layer(num_bytes: int, device: torch.device = CPU) -> LayerRows:
    """A layer that keeps ``num_bytes`` for a token."""
    return LayerRows((1, num_bytes // 8), (1, num_bytes // 8), torch.float32, device)


def test_pages_share_the_bytes_given() -> None:
    layers = [layer(80), layer(48)]
    page = PAGE_TOKENS * 128
    assert pages_within(layers, 10 * page) == 10
    assert pages_within(layers, 10 * page - 1) == 9
    with pytest.raises(AcespecError, match=f"{page - 1} bytes hold no keys and values.*take {page}"):
        pages_within(layers, page - 1)


def test_the_tightest_device_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer holds the same rows, so all have as many as the device that has least room for its own."""
    free = {CPU: 1_000_000, GPU: 900_000}
    monkeypatch.setattr(kv_memory, "default_bytes", free.__getitem__)
    layers = [layer(80), layer(80, GPU), layer(80, GPU)]
    assert pages_by_default(layers, max_context=1_000_000) == 900_000 // (160 * PAGE_TOKENS)
    free[CPU] = 300_000
    assert pages_by_default(layers, max_context=1_000_000) == 300_000 // (80 * PAGE_TOKENS)


def test_no_more_is_taken_than_sessions_could_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_memory, "default_bytes", lambda _: 1 << 40)
    assert pages_by_default([layer(8)], max_context=PAGE_TOKENS + 1) == 2 * FULL_CONTEXTS


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    v2, v1 = tmp_path / "memory.max", tmp_path / "limit_in_bytes"
    assert usable_ram([v2, v1]) == machine
    v2.write_text("max\n")
    assert usable_ram([v2, v1]) == machine
    v1.write_text("4194304\n")
    assert usable_ram([v2, v1]) == 4194304
    v2.write_text("1048576\n")
    assert usable_ram([v2, v1]) == 1048576
