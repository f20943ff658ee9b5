"""Residual mode is exact: three consecutive tokens jointly follow the rounded target."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import residual_simulator as simulator
from acespec.cloud_verifier.acceptance import describe_target
from acespec.speculation import (
    DRAFT_BITS,
    Purpose,
    SamplingParams,
    Weighted,
    accepts,
    distribution,
    propose,
    resample_draws,
    resample_sparse,
    residual_weights,
    target_bits,
    uniform,
    weighted,
)
from acespec.wire import SparseTarget, token_bits
from joint_chi_square import WINDOW, expected_joint, joint_p_value
from residual_simulator import (
    PAD,
    Form,
    FormRule,
    Ints,
    Round,
    Verdicts,
    as_sent,
    draws_then_sparse,
    simulate,
    weigh,
)

VOCAB = 8
NUM_SEQUENCES = 200_000
BLOCK = 10_000
"""Sequences simulated at once: few enough for their arrays to stay in the cache."""
PROMPT = (5, 7)
END_TOKENS = (6, 7)  # the prompt ends in one: there it must not count
TOKEN_LIMIT = len(PROMPT) + 5
SKIPS = (0, 2)
"""Joints of the first three tokens generated and of the last three."""

FORMS = (*Form, draws_then_sparse)
SAMPLINGS = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in itertools.product((0.7, 1.3), (0, 4), (1.0, 0.85), (0.0, 0.08))
]
CASES = [
    (params, form, 1 + number % 3, number % 5 < 2)  # 3 and 5 against powers of two: all combinations mix
    for form in FORMS
    for number, params in enumerate(SAMPLINGS)
]
"""Sampling, downlink form, chain length, and whether misses shorten chains."""

THRESHOLD = 1e-3 / (len(CASES) * len(SKIPS))
"""Of each p-value; 1e-3 of all together (Bonferroni)."""


def make_tables(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Target and draft logits ``[V, V, V]``: alike, far apart, disjoint, point masses, by context."""
    rng = np.random.default_rng(seed)
    target = rng.normal(size=(VOCAB,) * 3).astype(np.float32)
    noise = rng.choice([0.5, 1.0, 2.0], size=(VOCAB, VOCAB, 1)) * rng.normal(size=target.shape)
    draft = (target + noise).astype(np.float32)
    kind = rng.permutation(VOCAB * VOCAB).reshape(VOCAB, VOCAB)
    kind[PROMPT] = VOCAB * VOCAB  # the prompt's own row stays ordinary, or there would be little to see
    half = rng.permutation(VOCAB) < VOCAB // 2
    target[(kind < 6)[:, :, None] & half] = -np.inf
    draft[(kind < 6)[:, :, None] & ~half] = -np.inf
    for rows, table in ((6, target), (9, draft)):
        for a, b in np.argwhere((kind >= rows) & (kind < rows + 3)):
            table[a, b, np.arange(VOCAB) != rng.integers(VOCAB)] = -np.inf
    draft[(kind >= 12) & (kind < 15)] = target[(kind >= 12) & (kind < 15)]
    return target, draft


def hit_or_miss(draft: NDArray[np.float32], gamma: int) -> simulator.Plan:
    """Chains of ``gamma`` after a hit, of one token after a miss; a hit is a token of the draft's top
    three."""
    rank = np.argsort(np.argsort(-draft, axis=-1), axis=-1)

    def plan(tokens: Ints, num_tokens: Ints) -> Ints:
        rows = np.arange(len(tokens))
        before = np.maximum(num_tokens - 3, 0)  # no third-last token after a two-token prompt: any will do
        last = tokens[rows, num_tokens - 1]
        hit = rank[tokens[rows, before], tokens[rows, num_tokens - 2], last] < 3
        return np.where(hit, gamma, 1)

    return plan


def p_values(
    params: SamplingParams,
    form: FormRule,
    gamma: int,
    misses: bool,
    first_seed: int,
    observe: Callable[[Round, Verdicts], None] | None = None,
) -> list[float]:
    """The chi-square p-value of each window in ``SKIPS``."""
    target, draft = make_tables(3)
    plan = hit_or_miss(draft, gamma) if misses else None
    seeds = first_seed + np.arange(NUM_SEQUENCES).reshape(-1, BLOCK)
    tokens = np.concatenate(
        [
            simulate(
                target, draft, params, block, gamma, form, PROMPT, TOKEN_LIMIT, END_TOKENS, plan, observe
            )
            for block in seeds
        ]
    )
    probs = weigh(target, draft, params).target_probs
    return [
        joint_p_value(
            tokens[:, len(PROMPT) + skip : len(PROMPT) + skip + WINDOW],
            expected_joint(probs, PROMPT, END_TOKENS, skip),
        )
        for skip in SKIPS
    ]


@pytest.mark.slow
def test_the_joint_of_three_tokens_is_the_rounded_targets() -> None:
    seen: Counter[str] = Counter()

    def observe(sent: Round, verdicts: Verdicts) -> None:
        rejected = verdicts.accepted < sent.lengths
        for depth in range(3):
            seen[f"rejected at {depth}"] += int((rejected & (verdicts.accepted == depth)).sum())
        seen["chains of 3 accepted"] += int((verdicts.accepted == 3).sum())
        seen["empty chains"] += int((sent.lengths == 0).sum())
        seen["ended by an accepted token"] += int((verdicts.next_tokens == PAD).sum())
        seen["more draws"] += int((verdicts.num_draws > simulator.FIRST_DRAWS).sum())

    found = {
        case: min(p_values(*case, first_seed=number * NUM_SEQUENCES, observe=observe))
        for number, case in enumerate(CASES)
    }
    assert {case: p for case, p in found.items() if p < THRESHOLD} == {}
    assert len(seen) == 7
    assert min(seen.values()) > 1000, seen


def test_greedy_sampling_gives_the_targets_own_text() -> None:
    target, draft = make_tables(2)
    text = list(PROMPT)
    while len(text) < TOKEN_LIMIT and (len(text) == len(PROMPT) or text[-1] not in END_TOKENS):
        text.append(int(target[text[-2], text[-1]].argmax()))
    text += [PAD] * (TOKEN_LIMIT - len(text))
    for form, gamma in itertools.product(FORMS, (1, 2, 3)):
        tokens = simulate(
            target,
            draft,
            SamplingParams(temperature=0.0),
            np.arange(100),
            gamma,
            form,
            PROMPT,
            TOKEN_LIMIT,
            END_TOKENS,
        )
        assert (tokens == text).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_replayed_round_gives_the_same_verdict(form: FormRule) -> None:
    target, draft = make_tables(1)
    params = SamplingParams()
    tables = weigh(target, draft, params)
    ends = np.isin(np.arange(VOCAB), END_TOKENS)
    rounds = 0

    def replay(sent: Round, verdicts: Verdicts) -> None:
        nonlocal rounds
        again = simulator.verify_round(tables, ends, sent, form)
        # Alone, as the server meets it: the verdict must not hang on what is verified beside it.
        alone = Round(sent.seeds[:1], sent.starts[:1], sent.tokens[:1], sent.lengths[:1])
        first = simulator.verify_round(tables, ends, alone, form)
        assert (again.accepted == verdicts.accepted).all()
        assert (again.next_tokens == verdicts.next_tokens).all()
        assert (first.accepted[0], first.next_tokens[0]) == (verdicts.accepted[0], verdicts.next_tokens[0])
        rounds += 1

    simulate(
        target,
        draft,
        params,
        np.arange(2000),
        3,
        form,
        PROMPT,
        TOKEN_LIMIT,
        END_TOKENS,
        observe=replay,
    )
    assert rounds > 2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gamma", [1, 3])
def test_one_sequence_at_a_time_with_the_scalar_functions_gives_the_same_tokens(
    form: FormRule, gamma: int
) -> None:
    target, draft = make_tables(3)
    params = SamplingParams(temperature=0.9, top_p=0.95)
    seeds = np.arange(300)
    tokens = simulate(target, draft, params, seeds, gamma, form, PROMPT, 12, END_TOKENS)
    for seed in seeds:
        text = one_sequence(target, draft, params, int(seed), gamma, form, 12)
        assert text == [token for token in tokens[seed].tolist() if token != PAD]


def one_sequence(
    target_logits: NDArray[np.float32],
    draft_logits: NDArray[np.float32],
    params: SamplingParams,
    seed: int,
    gamma: int,
    form: FormRule,
    token_limit: int,
) -> list[int]:
    """The session as edge and cloud play it, one token after the other."""
    text = list(PROMPT)

    def target_after(tokens: list[int]) -> Weighted:
        warped = distribution(target_logits[tokens[-2], tokens[-1]], params)
        return weighted(warped, target_bits(len(warped.ids)))

    def draft_after(tokens: list[int]) -> Weighted:
        return weighted(distribution(draft_logits[tokens[-2], tokens[-1]], params, None, 512), DRAFT_BITS)

    while len(text) < token_limit and (len(text) == len(PROMPT) or text[-1] not in END_TOKENS):
        chain: list[int] = []
        while len(chain) < min(gamma, token_limit - len(text) - 1) and not set(chain) & set(END_TOKENS):
            u = uniform(seed, Purpose.DRAFT, len(text) + len(chain))
            chain.append(int(draft_after(text + chain).pick(u)))
        for token in chain:
            goal, guess, position = target_after(text), draft_after(text), len(text)
            u = uniform(seed, Purpose.ACCEPT, position)
            if accepts(u, guess.weight_of(token), goal.weight_of(token), goal.bits):
                text.append(token)
                continue
            text.append(one_replacement(goal, guess, seed, position, form))
            break
        else:
            if not chain or chain[-1] not in END_TOKENS:
                text.append(int(propose(target_after(text), seed, len(text), 0, 1)[0]))
    return text


def test_the_form_as_sent_is_the_verifiers_choice() -> None:
    vocab_size, bits = 200, 22
    form = as_sent(vocab_size)
    for size, first_index in itertools.product((1, 7, 8, 9, 16, 24, 25, 31, 60, vocab_size), (0, 8, 24, 56)):
        support = Weighted(np.arange(size), np.full(size, 2**bits // size), bits)
        described = describe_target(support, 0, 5, first_index, token_bits(vocab_size))
        goes_sparse = form(np.array([size]), np.array([bits]), first_index)[0]
        assert goes_sparse == isinstance(described, SparseTarget), (size, first_index)


def one_replacement(goal: Weighted, guess: Weighted, seed: int, position: int, form: FormRule) -> int:
    first_index, count = 0, simulator.FIRST_DRAWS
    while not form(np.array([len(goal.ids)]), np.array([goal.bits]), first_index)[0]:
        ids = propose(goal, seed, position, first_index, count)
        passed = resample_draws(ids, goal.weights_of(ids), goal.bits, guess, seed, position, first_index)
        if passed is not None:
            return passed
        first_index, count = first_index + count, 2 * count
    return resample_sparse(goal, guess, seed, position)


# --- what must be noticed: the same test, on a protocol broken in one place --------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_notices_a_hundredth_of_the_mass_moved_within_the_residual(
    form: FormRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = simulator.resample

    def broken(
        target: Ints, bits: Ints, draft: Ints, seeds: Ints, positions: Ints, form: FormRule
    ) -> tuple[Ints, Ints]:
        # Less draft under one residual token and more under another moves that much residual between them.
        residual = residual_weights(target, bits[:, None], draft) / np.exp2(bits)[:, None]
        order = np.argsort(-residual, axis=1)
        moved = round(0.01 * 2**DRAFT_BITS)
        rows = np.flatnonzero(np.take_along_axis(residual, order[:, 1:2], axis=1)[:, 0] > moved)
        draft = draft.copy()
        draft[rows, order[rows, 0]] -= moved
        draft[rows, order[rows, 1]] += moved
        return original(target, bits, draft, seeds, positions, form)

    monkeypatch.setattr(simulator, "resample", broken)
    assert is_noticed(form)


def test_notices_thinning_keyed_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(seeds: Ints, positions: Ints, indexes: Ints, ids: Ints) -> NDArray[np.float64]:
        return uniform(seeds, Purpose.THIN, positions, ids)

    monkeypatch.setattr(simulator, "thin_noise", broken)
    # Not ``Form.DRAWS``: a sequence whose tokens all fail would ask for more for ever.
    assert is_noticed(draws_then_sparse)


@pytest.mark.parametrize("form", FORMS)
def test_notices_a_drafted_end_token_that_is_not_sent(
    form: FormRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(is_end: NDArray[np.bool_], limits: Ints) -> Ints:
        before_end = np.where(is_end.any(axis=1), is_end.argmax(axis=1), is_end.shape[1])
        sent: Ints = np.minimum(before_end, limits)
        return sent

    monkeypatch.setattr(simulator, "chain_lengths", broken)
    assert is_noticed(form)


def is_noticed(form: FormRule) -> bool:
    return min(p_values(SamplingParams(), form, gamma=2, misses=False, first_seed=0)) < THRESHOLD
