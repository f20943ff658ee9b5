"""Tensor parallelism: what rank 0 tells the others, and that all ranks stay one engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acespec.cloud_verifier.engine import Feed, KvPoolFullError
from acespec.cloud_verifier.tensor_parallel import World, tensor_parallel_world
from acespec.cloud_verifier.tensor_parallel_engine import (
    LeaderEngine,
    StepFailedElsewhereError,
    follow,
)
from acespec.cloud_verifier.tensor_parallel_messages import (
    Close,
    Command,
    Keep,
    Open,
    Step,
    Stop,
    decode,
    encode,
)
from acespec.errors import AcespecError
from thread_ranks import WAIT_S, BookEngine, ThreadGroup, ThreadRanks


def feed(sequence: int, tokens: Sequence[int], num_logits: int = 1) -> Feed:
    return Feed(sequence, np.array(tokens, dtype=np.int64), num_logits)


# --- the place in the world -----------------------------------------------------------------------------

STARTED = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    "environment", [{}, {"WORLD_SIZE": "4"}, {**STARTED, "RANK": "0", "WORLD_SIZE": "1"}]
)
def test_one_process_alone_is_no_world(environment: Mapping[str, str]) -> None:
    assert tensor_parallel_world(1, environment) is None


def test_a_process_that_torchrun_started_knows_its_place() -> None:
    assert tensor_parallel_world(2, STARTED) == World(rank=1, local_rank=1, size=2)


@pytest.mark.parametrize(
    ("tp", "environment", "message"),
    [
        (2, {}, "torchrun --standalone --nproc-per-node 2 -m acespec serve ... --tp 2"),
        (4, STARTED, "takes 4 processes and there are 2"),
        (1, STARTED, "add --tp 2"),
    ],
)
def test_another_number_of_processes_is_one_line(
    tp: int, environment: Mapping[str, str], message: str
) -> None:
    with pytest.raises(AcespecError) as caught:
        tensor_parallel_world(tp, environment)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# --- messages -------------------------------------------------------------------------------------------

numbers = st.integers(0, 2**62)
chains = st.builds(feed, numbers, st.lists(numbers, max_size=9), st.integers(0, 9))
trees = st.builds(
    lambda fed, seed: replace(fed, parents=np.random.default_rng(seed).integers(-1, 9, len(fed.tokens))),
    st.builds(feed, numbers, st.lists(numbers, min_size=1, max_size=9), st.integers(0, 9)),
    st.integers(0, 2**32 - 1),
)
feeds = chains | trees
commands = st.one_of(
    st.builds(Open, numbers, numbers),
    st.builds(Keep, numbers, numbers, st.lists(numbers, max_size=4).map(tuple)),
    st.builds(Close, numbers),
    st.builds(Step, st.lists(feeds, max_size=4).map(tuple)),
    st.just(Stop()),
)


def plain(command: Command) -> object:
    """Comparable: arrays have no equality."""
    if isinstance(command, Step):
        return [
            (
                feed.sequence,
                feed.num_logits,
                feed.tokens.tolist(),
                None if feed.parents is None else feed.parents.tolist(),
            )
            for feed in command.feeds
        ]
    return command


@given(st.lists(commands, max_size=6))
def test_a_message_comes_out_as_it_went_in(message: list[Command]) -> None:
    words = encode(message)
    assert words.dtype == np.int64
    assert [plain(command) for command in decode(words)] == [plain(command) for command in message]


# --- all ranks stay one engine --------------------------------------------------------------------------

SLOTS = 3
SIZE = 3


class Group:
    """A leader over ``BookEngine`` and its followers, each in a thread."""

    def __init__(self, heartbeat_s: float = WAIT_S) -> None:
        self.shared = shared = ThreadGroup(SIZE)
        self.engines = [BookEngine(SLOTS, first_handle=100 * rank) for rank in range(SIZE)]
        self.followers = [threading.Thread(target=self._follow, args=(rank,)) for rank in range(1, SIZE)]
        self.leader = LeaderEngine(self.engines[0], ThreadRanks(0, shared), heartbeat_s=heartbeat_s)
        self._stack = ExitStack()

    def _follow(self, rank: int) -> None:
        try:
            follow(self.engines[rank], ThreadRanks(rank, self.shared))
        except BaseException:
            self.shared.barrier.abort()  # nobody waits for this rank any more
            raise

    def start(self) -> None:
        for follower in self.followers:
            follower.start()
        self._stack.enter_context(self.leader)

    def stop(self) -> None:
        self._stack.close()
        for follower in self.followers:
            follower.join(WAIT_S)
            assert not follower.is_alive()


@contextmanager
def running_group(heartbeat_s: float = WAIT_S) -> Iterator[Group]:
    group = Group(heartbeat_s)
    group.start()
    try:
        yield group
    finally:
        group.stop()


class OneEngine(RuleBasedStateMachine):
    """Whatever is asked of rank 0, the others hold the same tokens in the same slots, also after failures."""

    @initialize()
    def begin(self) -> None:
        self.group = Group()
        self.group.start()
        self.texts: dict[int, list[int]] = {}  # the reference

    @rule(max_tokens=st.integers(1, 64))
    def open(self, max_tokens: int) -> None:
        if len(self.texts) == SLOTS:
            with pytest.raises(KvPoolFullError):
                self.group.leader.open(max_tokens)
        else:
            self.texts[self.group.leader.open(max_tokens)] = []

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.texts)))
        self.group.leader.close(sequence)
        del self.texts[sequence]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def cut_back(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.texts)))
        length = data.draw(st.integers(0, len(self.texts[sequence])))
        self.group.leader.keep(sequence, length)
        del self.texts[sequence][length:]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.texts)))
        text = self.texts[sequence]
        length = data.draw(st.integers(0, len(text)))
        rows = sorted(
            data.draw(st.sets(st.integers(length, max(length, len(text) - 1)))) & {*range(len(text))}
        )
        self.group.leader.keep(sequence, length, rows)
        text[length:] = [text[row] for row in rows]

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), failing=st.lists(st.booleans(), min_size=SIZE, max_size=SIZE))
    def step(self, data: st.DataObject, failing: list[bool]) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.texts)), min_size=1, unique=True))
        tokens = [data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5)) for _ in chosen]
        for engine, fails in zip(self.group.engines, failing, strict=True):
            engine.failing = fails
        asked = [feed(sequence, fed) for sequence, fed in zip(chosen, tokens, strict=True)]
        if any(failing):
            with pytest.raises(ArithmeticError if failing[0] else StepFailedElsewhereError):
                self.group.leader.step(asked)
        else:
            logits = self.group.leader.step(asked)
            for sequence, fed, rows in zip(chosen, tokens, logits, strict=True):
                self.texts[sequence] += fed
                assert rows.tolist() == [[len(self.texts[sequence])] * 2]

    @invariant()
    def rank_0_is_what_was_asked(self) -> None:
        if hasattr(self, "group"):
            assert self.group.engines[0].sequences == self.texts

    def teardown(self) -> None:
        if hasattr(self, "group"):
            self.group.stop()
            first, *others = self.group.engines
            for other in others:
                assert other.by_slot() == first.by_slot()
                assert other.history == first.history


OneEngine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestOneEngine = OneEngine.TestCase


def test_a_sequence_is_opened_and_closed_while_others_step() -> None:
    """The order of the books is what counts: the pool is full all the time, and no rank ever finds it so."""
    with running_group() as group:
        leader = group.leader
        fixed = leader.open(64)
        stepping = threading.Event()
        inner = group.engines[0].step

        def step(feeds: Sequence[Feed]) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
            stepping.set()
            assert churned.wait(WAIT_S)
            return inner(feeds)

        churned = threading.Event()
        group.engines[0].step = step

        def churn() -> None:
            assert stepping.wait(WAIT_S)
            held = [leader.open(8), leader.open(9)]
            for length in range(20):
                leader.close(held.pop(0))
                held.append(leader.open(length))
            with pytest.raises(KvPoolFullError):
                leader.open(1)
            churned.set()

        other = threading.Thread(target=churn)
        other.start()
        leader.step([feed(fixed, [1, 2])])
        other.join(WAIT_S)
        leader.step([feed(fixed, [3])])
    assert len(group.engines[0].history) == 3 + 2 * 20
    assert group.engines[1].history == group.engines[2].history == group.engines[0].history
    assert group.engines[2].by_slot()[0] == [1, 2, 3]


def test_books_are_told_without_a_step() -> None:
    """A sign of life takes them along: an idle verifier's followers free what was closed."""
    with running_group(heartbeat_s=0.01) as group:
        closed = threading.Event()
        inner = group.engines[1].close

        def close(sequence: int) -> None:
            inner(sequence)
            closed.set()

        group.engines[1].close = close
        group.leader.close(group.leader.open(64))
        assert closed.wait(WAIT_S)


def test_a_token_takes_its_bytes_on_every_rank() -> None:
    group = Group()
    assert group.leader.info.kv_bytes_per_token == SIZE * group.engines[0].info.kv_bytes_per_token
