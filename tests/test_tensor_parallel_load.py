"""What a model must be for tensor parallelism, and where each rank's shard goes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from transformers import GPT2Config, LlamaConfig, PretrainedConfig

from acespec.cloud_verifier.tensor_parallel import World
from acespec.cloud_verifier.tensor_parallel_group import Watchdog, rank_device
from acespec.cloud_verifier.tensor_parallel_load import sharding_arguments
from acespec.errors import AcespecError

SECOND = World(rank=1, local_rank=1, size=2)


def llama(heads: int, kv_heads: int) -> PretrainedConfig:
    return LlamaConfig(hidden_size=8 * heads, num_attention_heads=heads, num_key_value_heads=kv_heads)


def test_a_model_is_cut_between_its_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    assert sharding_arguments(llama(8, 4))["distributed_config"].tp_size == 4


@pytest.mark.parametrize(
    ("config", "size", "message"),
    [
        (llama(9, 3), 2, "9 attention heads with 3 of keys and values .* use --tp 3$"),
        (llama(16, 4), 8, "use --tp 2 or 4$"),
        (llama(8, 1), 2, "use --device-map auto$"),
        (GPT2Config(), 2, "no tensor-parallel plan for gpt2"),
    ],
)
def test_a_model_that_cannot_be_cut_is_one_line(
    config: PretrainedConfig, size: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: size)
    with pytest.raises(AcespecError, match=message):
        sharding_arguments(config)


def have_gpus(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torch.device("cuda") if count else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: kind)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)


def test_each_rank_has_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    have_gpus(2, monkeypatch)
    assert rank_device(SECOND, "cuda") == torch.device("cuda", 1)
    have_gpus(0, monkeypatch)
    assert rank_device(SECOND, "cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("gpus", "device", "message"),
    [
        (0, "cuda", "runs on this machine's cpu, not on cuda; use --device cpu$"),
        (2, "cpu", "use --device cuda, or hide its cuda devices"),
        (2, "cuda:0", "a device of its own, so cuda:0 is none"),
        (1, "cuda", "there are 1"),
    ],
)
def test_a_device_the_shard_would_not_be_on_is_one_line(
    gpus: int, device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_gpus(gpus, monkeypatch)
    with pytest.raises(AcespecError, match=message):
        rank_device(SECOND, device)


def test_only_work_that_outlasts_its_time_is_late() -> None:
    now = 0.0
    late: list[str] = []
    watchdog = Watchdog(late.append, clock=lambda: now)
    with watchdog.limit(100.0, "all of it"):
        now = 10.0
        with watchdog.limit(5.0, "a part"):
            now = 15.0
            watchdog.check()
            assert late == []
            now = 15.1
            watchdog.check()
            assert late == ["a part in 5 s"]
        now = 100.0
        watchdog.check()
        assert late == ["a part in 5 s"]
        now = 100.1
        watchdog.check()
    assert late == ["a part in 5 s", "all of it in 100 s"]
    now = 1000.0
    watchdog.check()
    assert len(late) == 2
