"""The store of keys and values: rows belong to one sequence, and nothing is lost."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import Bundle as Values
from hypothesis.stateful import RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from acespec.cloud_verifier.engine import KvPoolFullError
from acespec.cloud_verifier.kv_store import PAGE_TOKENS, KvStore, LayerRows, pool_rows
from acespec.cloud_verifier.packed_step import PackedStep, Part
from token_trees import path_to, trees

CPU = torch.device("cpu")
LAYERS = {0: LayerRows((1, 1), (2, 3), torch.float64, CPU), 1: LayerRows((2, 1), (1, 1), torch.float64, CPU)}
NUM_PAGES = 12


class KvStoreMachine(RuleBasedStateMachine):
    """Sequences that open, are fed chains and trees, rolled back, evicted and resumed, side by side.

    Every row written carries a number of its own, so that a row two sequences share, or one that is lost,
    shows when the sequences are read.
    """

    sequences = Values("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.store = KvStore(LAYERS, NUM_PAGES)
        self.held: dict[int, list[float]] = {}
        self.room: dict[int, int] = {}
        self.trees: dict[int, list[int]] = {}
        """Parents of those fed last to sequences of which no branch is chosen yet."""
        self.written = 0.0

    @property
    def free_pages(self) -> int:
        return NUM_PAGES - sum(-(-tokens // PAGE_TOKENS) for tokens in self.room.values())

    @rule(target=sequences, max_tokens=st.integers(1, 5 * PAGE_TOKENS))
    def open(self, max_tokens: int) -> int:
        if -(-max_tokens // PAGE_TOKENS) > self.free_pages:
            with pytest.raises(KvPoolFullError):
                self.store.open(max_tokens)
            return multiple()  # type: ignore[return-value]
        handle = self.store.open(max_tokens)
        assert handle not in self.held, "a handle is used again"
        self.held[handle], self.room[handle] = [], max_tokens
        return handle

    @rule(
        fed=st.lists(
            st.tuples(sequences, st.integers(1, 2 * PAGE_TOKENS) | trees(max_size=PAGE_TOKENS)),
            min_size=1,
            max_size=4,
        )
    )
    def step(self, fed: list[tuple[int, int | list[int]]]) -> None:
        parts: dict[int, Part] = {}
        for handle, wanted in fed:
            held = self.store[handle]
            count, parents = (wanted, None) if isinstance(wanted, int) else (len(wanted), np.array(wanted))
            fitting = min(count, held.max_tokens - held.length)
            if fitting and handle not in self.trees:
                own = None if parents is None else parents[:fitting]
                parts[handle] = Part(held.pages, held.length, fitting, own)
        if not parts:
            return
        handles = list(parts)
        self.store.settle(handles)
        assert all(len(self.store[handle].astray) == 0 for handle in handles)
        step = PackedStep([*parts.values()], padded=False)
        numbers = torch.arange(sum(part.count for part in parts.values()), dtype=torch.float64) + self.written
        for layer, shape in LAYERS.items():
            step.write(self.store.keys[layer], numbers[:, None, None].expand(-1, *shape.key_shape))
            step.write(self.store.values[layer], -numbers[:, None, None].expand(-1, *shape.value_shape))
        self.written += len(numbers)
        counts = [parts[handles[i]].count for i in step.order]
        for i, rows in zip(step.order, torch.split(numbers, counts), strict=True):
            self.held[handles[i]] += rows.tolist()
            part = parts[handles[i]]
            self.store[handles[i]].feed(part.count, part.parents)
            if part.parents is not None:
                self.trees[handles[i]] = part.parents.tolist()

    @rule(handle=sequences, data=st.data())
    def rollback(self, handle: int, data: st.DataObject) -> None:
        num_in_tree = len(self.trees.pop(handle, []))
        length = data.draw(st.integers(0, len(self.held[handle]) - num_in_tree))
        self.store.keep(handle, length, ())
        del self.held[handle][length:]

    @precondition(lambda self: self.trees)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        """What of a branch begins right behind what was held may be told as a part of it, too."""
        handle = data.draw(st.sampled_from(sorted(self.trees)))
        parents, held = self.trees.pop(handle), self.held[handle]
        before = len(held) - len(parents)
        path = path_to(parents, data.draw(st.integers(0, len(parents) - 1)))
        in_place = sum(token == i for i, token in enumerate(path))
        told = data.draw(st.integers(0, in_place))
        self.store.keep(handle, before + told, [before + token for token in path[told:]])
        held[before:] = [held[before + token] for token in path]

    @rule(handle=consumes(sequences))
    def close(self, handle: int) -> None:
        self.store.close(handle)
        del self.held[handle], self.room[handle]
        self.trees.pop(handle, None)

    @rule(target=sequences, handle=consumes(sequences))
    def evict_and_resume(self, handle: int) -> int:
        """Its place goes to whoever asks; it comes back with the same text, elsewhere perhaps."""
        count, max_tokens = len(self.held[handle]), self.room[handle]
        self.close(handle)
        again = self.open(max_tokens)
        if count:
            self.step([(again, count)])
        assert len(self.held[again]) == count
        return again

    @invariant()
    def every_sequence_holds_its_own_rows(self) -> None:
        for handle, numbers in self.held.items():
            held = self.store[handle]
            assert held.length == len(numbers)
            places = np.arange(held.length)
            places[held.length - len(held.astray) :] = held.astray
            rows = torch.from_numpy(pool_rows(held.pages, places))
            expected = torch.tensor(numbers, dtype=torch.float64)[:, None, None]
            for layer in LAYERS:
                assert torch.equal(
                    self.store.keys[layer][rows], expected.expand(-1, *LAYERS[layer].key_shape)
                )
                assert torch.equal(
                    self.store.values[layer][rows], -expected.expand(-1, *LAYERS[layer].value_shape)
                )


TestKvStore = KvStoreMachine.TestCase


def test_a_full_pool_says_how_much_is_left() -> None:
    store = KvStore(LAYERS, 3)
    first = store.open(PAGE_TOKENS + 1)
    with pytest.raises(KvPoolFullError, match="65 tokens: 64 of 192 are free"):
        store.open(PAGE_TOKENS + 1)
    store.open(PAGE_TOKENS)
    store.close(first)
    store.open(2 * PAGE_TOKENS)


def test_a_layer_says_what_a_token_takes() -> None:
    assert LayerRows((3, 64), (3, 32), torch.bfloat16, CPU).bytes_per_token == 3 * (64 + 32) * 2
    assert LayerRows((1, 8), (1, 8), torch.float32, CPU).bytes_per_token == 64


def test_threads_open_and_close_without_losing_a_page() -> None:
    """Without the lock pages are lent twice, or are not free in the end."""
    store = KvStore({}, 64)
    begin = threading.Barrier(4)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            begin.wait()
            for i in range(400):
                handles = [store.open(1 + PAGE_TOKENS * (i % 3)) for _ in range(3)]
                for handle in handles:
                    store.close(handle)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    store.open(64 * PAGE_TOKENS)


def test_a_rollback_forward_is_a_bug() -> None:
    store = KvStore(LAYERS, 1)
    handle = store.open(5)
    with pytest.raises(AssertionError, match="cannot keep 1 tokens: it holds 0"):
        store.keep(handle, 1, ())


@pytest.mark.parametrize(
    ("length", "rows", "complaint"),
    [
        (2, (5,), "what follows 3 tokens cannot follow 2"),
        (3, (5,), r"\[2\] of the tokens fed last are no branch"),
        (3, (3, 4, 5), r"\[0, 1, 2\] of the tokens fed last are no branch"),
        (5, (), r"\[0, 1\] of the tokens fed last are no branch"),
        (3, (3, 6), "no branch"),
    ],
)
def test_what_is_no_text_is_not_kept(length: int, rows: tuple[int, ...], complaint: str) -> None:
    store = KvStore(LAYERS, 1)
    handle = store.open(9)
    store[handle].feed(3, None)
    store[handle].feed(3, np.array([-1, -1, 0]))
    with pytest.raises(AssertionError, match=complaint):
        store.keep(handle, length, rows)


def test_tokens_of_a_chain_are_not_left_out() -> None:
    store = KvStore(LAYERS, 1)
    handle = store.open(9)
    store[handle].feed(5, None)
    store.keep(handle, 3, (3,))
    assert store[handle].length == 4
    with pytest.raises(AssertionError, match=r"\[3\] do not follow the first 2 tokens"):
        store.keep(handle, 2, (3,))
