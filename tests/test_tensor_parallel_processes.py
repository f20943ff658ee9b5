"""Tensor parallelism over real processes: one text, and an end for all when one is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from acespec.cloud_verifier.tensor_parallel import LOST_EXIT_STATUS
from tensor_parallel_worker import KV_BYTES
from tiny_target import tiny_model, write_target_folder

WORKER = Path(__file__).with_name("tensor_parallel_worker.py")
SIZE = 2
WAIT_S = 120.0
"""A process that takes longer hangs."""

Rank = subprocess.Popen[str]


def new_store() -> dist.TCPStore:
    """What torchrun has for its processes to find one another; it outlives them all, rank 0 included."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@contextmanager
def started(*arguments: object, store: dist.TCPStore, starts_before: int = 0) -> Iterator[list[Rank]]:
    """The ranks of ``tensor_parallel_worker``, as torchrun would start them."""
    environment = {
        **os.environ,
        "WORLD_SIZE": str(SIZE),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(starts_before),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), *map(str, arguments)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(SIZE)
    ]
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()


def heard(leader: Rank) -> Any:
    assert leader.stdout is not None
    line = leader.stdout.readline()
    assert line, leader.communicate()[1]
    return json.loads(line)


def asked_to_step(leader: Rank) -> Any:
    assert leader.stdin is not None
    leader.stdin.write("step\n")
    leader.stdin.flush()
    return heard(leader)


def ended(rank: Rank) -> tuple[int, str]:
    """Its exit status, and the last line of its standard error. Its standard input stays open."""
    assert rank.stderr is not None
    errors = rank.stderr.read()
    return rank.wait(WAIT_S), errors.strip().rpartition("\n")[2]


def test_two_ranks_compute_what_one_does(tmp_path: Path) -> None:
    """And end when rank 1 fails half-way, with rank 0 waiting inside the model for what will never come."""
    folders = [tmp_path / "llama", tmp_path / "qwen3", tmp_path / "mistral"]
    for folder in folders:
        write_target_folder(folder)
        tiny_model(folder.name).save_pretrained(folder)
    with started("model", *folders, store=new_store()) as ranks:
        for _ in folders:
            result = heard(ranks[0])
            assert result["difference"] < 1e-5 * result["largest"]
            sharded, whole = result["texts"]
            assert sharded == whole
            assert len(set(whole)) > 3, "a text that repeats one token shows little"
            assert result["errors"] == ["AssertionError", "AssertionError"]
            spread, together = result["kv_bytes_per_token"]
            assert spread == together
            assert result["kv_tokens"] * together // SIZE == KV_BYTES, "the rank with the least decides"
        (leader_status, leader_line), (follower_status, follower_line) = map(ended, ranks)
        assert (leader_status, follower_status) == (LOST_EXIT_STATUS, LOST_EXIT_STATUS)
        assert "the other processes have not ended a forward" in follower_line
        assert "another process is gone" in leader_line


def test_ranks_end_in_good_order_whatever_the_others_are_told() -> None:
    """As when torchrun passes a SIGTERM on: rank 0 finishes its work, and the others wait for its word."""
    with started("books", WAIT_S, store=new_store()) as ranks:
        assert heard(ranks[0]) == "ready"
        ranks[1].send_signal(signal.SIGTERM)
        ranks[1].send_signal(signal.SIGINT)
        assert asked_to_step(ranks[0]) == [[1.0, 1.0]]
        assert asked_to_step(ranks[0]) == [[2.0, 2.0]]
        assert ranks[0].stdin is not None
        ranks[0].stdin.close()
        assert [ended(rank)[0] for rank in ranks] == [0, 0]


def lose(lost: int, store: dist.TCPStore) -> None:
    """Kill a rank while nothing is asked of the target: even then the other must notice, and end."""
    with started("books", WAIT_S, store=store) as ranks:
        assert heard(ranks[0]) == "ready"
        assert asked_to_step(ranks[0]) == [[1.0, 1.0]]
        ranks[lost].send_signal(signal.SIGKILL)
        status, line = ended(ranks[1 - lost])
        assert status == LOST_EXIT_STATUS
        assert "another process is gone" in line


def test_a_rank_that_loses_rank_0_ends() -> None:
    lose(0, new_store())


def test_rank_0_ends_when_it_loses_another_and_all_can_start_again() -> None:
    store = new_store()
    lose(1, store)
    with started("books", WAIT_S, store=store, starts_before=1) as ranks:
        assert heard(ranks[0]) == "ready"


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_that_hangs_is_taken_for_lost(silent: int) -> None:
    with started("books", 2.0, store=new_store()) as ranks:
        assert heard(ranks[0]) == "ready"
        ranks[silent].send_signal(signal.SIGSTOP)
        status, line = ended(ranks[1 - silent])
        assert status == LOST_EXIT_STATUS
        assert line.endswith("in 2 s")
