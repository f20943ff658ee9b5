"""Residual mode by the rules of docs/exactness.md, for very many sequences at once, without a network.

Models are tables: ``table[a, b]`` are the logits ``[V]`` after the tokens a, b. Everything that decides a
token is a production function of ``acespec.speculation``; only the rounds' bookkeeping is written here, once
more and apart from the session code, so that one can be checked against the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from acespec.speculation import (
    DRAFT_BITS,
    Purpose,
    SamplingParams,
    accepts,
    distribution,
    draw,
    residual_weights,
    target_bits,
    thin_passes,
    uniform,
    weighted,
)
from acespec.wire import downlink_bits_draws, downlink_bits_sparse, token_bits

Ints = NDArray[np.int64]
FIRST_DRAWS = 8
PAD = -1


FormRule = Callable[[Ints, Ints, int], NDArray[np.bool_]]
"""Whether rejections' targets go down sparse [n], from support sizes [n], weight bits [n] and
the first draw's index. Nothing that is drawn: the form must not depend on it."""


class Form(Enum):
    """The rules that never change their mind."""

    SPARSE = "sparse"
    DRAWS = "draws"
    """Eight; as often as all of them fail, twice as many more."""

    def __call__(self, sizes: Ints, bits: Ints, first_index: int) -> NDArray[np.bool_]:
        return np.full(len(sizes), self is Form.SPARSE)


def draws_then_sparse(sizes: Ints, bits: Ints, first_index: int) -> NDArray[np.bool_]:
    """What large vocabularies meet: eight, sixteen more, then the whole support."""
    return np.full(len(sizes), first_index > FIRST_DRAWS)


def as_sent(vocab_size: int) -> FormRule:
    """The verifier's choice: the smaller of the two messages."""
    width = token_bits(vocab_size)

    def rule(sizes: Ints, bits: Ints, first_index: int) -> NDArray[np.bool_]:
        count = FIRST_DRAWS + first_index
        cases = zip(sizes.tolist(), bits.tolist(), strict=True)
        return np.array(
            [
                downlink_bits_sparse(n, b, width) <= downlink_bits_draws(count, b, width, first_index)
                for n, b in cases
            ],
            dtype=bool,
        )

    return rule


@dataclass(frozen=True)
class Tables:
    """Both models' rounded distributions by context ``a * V + b``, zero outside the support."""

    target: Ints
    """[V * V, V]"""
    bits: Ints
    """[V * V]"""
    draft: Ints
    """[V * V, V]"""

    @property
    def target_probs(self) -> NDArray[np.float64]:
        """The rounded target, [V, V, V]."""
        vocab = self.target.shape[1]
        return (self.target / np.exp2(self.bits)[:, None]).reshape(vocab, vocab, vocab)


def weigh(
    target_tables: NDArray[np.float32], draft_tables: NDArray[np.float32], params: SamplingParams
) -> Tables:
    """Warp and round every row of two ``[V, V, V]`` tables of logits."""
    vocab = target_tables.shape[-1]
    target, draft = np.zeros((2, vocab * vocab, vocab), dtype=np.int64)
    bits = np.zeros(vocab * vocab, dtype=np.int64)
    for context, row in enumerate(target_tables.reshape(-1, vocab)):
        warped = distribution(row, params)
        bits[context] = target_bits(len(warped.ids))
        rounded = weighted(warped, int(bits[context]))
        target[context, rounded.ids] = rounded.weights
    for context, row in enumerate(draft_tables.reshape(-1, vocab)):
        rounded = weighted(distribution(row, params, max_candidates=512), DRAFT_BITS)
        draft[context, rounded.ids] = rounded.weights
    return Tables(target, bits, draft)


@dataclass(frozen=True)
class Round:
    """One round of n sequences: what the edges sent."""

    seeds: Ints
    """[n]"""
    starts: Ints
    """Absolute position of the first chain token, [n]."""
    tokens: Ints
    """The last two committed tokens, then the chain, [n, 2 + gamma]."""
    lengths: Ints
    """Chain tokens sent, [n]."""


@dataclass(frozen=True)
class Verdicts:
    """How n rounds ended, the edge's resampling included."""

    accepted: Ints
    next_tokens: Ints
    """PAD where an accepted end token closed the chain."""
    num_draws: Ints
    """Proposals that travelled; 0 without a rejection and in sparse form."""


Plan = Callable[[Ints, Ints], Ints]
"""Chain lengths [n] asked for, from the committed tokens [n, token_limit] and how many they are [n]."""


def simulate(
    target_tables: NDArray[np.float32],
    draft_tables: NDArray[np.float32],
    params: SamplingParams,
    seeds: Ints,
    gamma: int,
    form: FormRule,
    prompt: Sequence[int],
    token_limit: int,
    end_tokens: Sequence[int],
    plan: Plan | None = None,
    observe: Callable[[Round, Verdicts], None] | None = None,
) -> Ints:
    """Generate one sequence per seed: int64 ``[len(seeds), token_limit]``.

    Sequences include the prompt and end in PAD. Tables are float32 logits ``[V, V, V]``; ``prompt`` has
    two tokens or more. Each round drafts ``gamma`` tokens, or what ``plan`` asks for (at most ``gamma``),
    within the rules: a drafted end token is sent and closes the chain, a chain is at most ``remaining - 1``
    tokens. End tokens count after the prompt only. ``observe`` sees every round.
    """
    tables = weigh(target_tables, draft_tables, params)
    ends = np.isin(np.arange(target_tables.shape[-1]), end_tokens)
    tokens = np.full((len(seeds), token_limit), PAD, dtype=np.int64)
    tokens[:, : len(prompt)] = prompt
    num_tokens = np.full(len(seeds), len(prompt))
    active = np.arange(len(seeds))
    while len(active):
        starts = num_tokens[active]
        asked = np.full(len(active), gamma) if plan is None else plan(tokens[active], starts)
        sent = draft_round(tables, ends, seeds[active], tokens[active], starts, asked, gamma)
        verdicts = verify_round(tables, ends, sent, form)
        if observe is not None:
            observe(sent, verdicts)
        for step in range(gamma):
            standing = step < verdicts.accepted
            tokens[active[standing], starts[standing] + step] = sent.tokens[standing, 2 + step]
        goes_on = verdicts.next_tokens != PAD
        reached = starts + verdicts.accepted
        tokens[active[goes_on], reached[goes_on]] = verdicts.next_tokens[goes_on]
        num_tokens[active] = reached + goes_on
        goes_on &= (num_tokens[active] < token_limit) & ~ends[verdicts.next_tokens]
        active = active[goes_on]
    return tokens


def draft_round(
    tables: Tables, ends: NDArray[np.bool_], seeds: Ints, tokens: Ints, starts: Ints, asked: Ints, gamma: int
) -> Round:
    """The edge's part: draw the chains."""
    vocab = tables.draft.shape[1]
    rows = np.arange(len(seeds))
    drafted = np.zeros((len(seeds), 2 + gamma), dtype=np.int64)
    drafted[:, 0], drafted[:, 1] = tokens[rows, starts - 2], tokens[rows, starts - 1]
    for step in range(gamma):
        weights = tables.draft[drafted[:, step] * vocab + drafted[:, step + 1]]
        drafted[:, 2 + step] = draw(weights, uniform(seeds, Purpose.DRAFT, starts + step))
    limits = np.minimum(asked, tokens.shape[1] - starts - 1)
    return Round(seeds, starts, drafted, chain_lengths(ends[drafted[:, 2:]], limits))


def chain_lengths(is_end: NDArray[np.bool_], limits: Ints) -> Ints:
    """Tokens sent of each drafted chain: to its first end token, that one included, at most ``limits``."""
    gamma = is_end.shape[1]
    until_end = np.where(is_end.any(axis=1), is_end.argmax(axis=1) + 1, gamma)
    sent: Ints = np.minimum(until_end, limits)
    return sent


def verify_round(tables: Tables, ends: NDArray[np.bool_], sent: Round, form: FormRule) -> Verdicts:
    """The cloud's part, and the edge's resampling after a rejection. A pure function: a replay repeats it."""
    vocab = tables.target.shape[1]
    contexts = sent.tokens[:, :-1] * vocab + sent.tokens[:, 1:]  # [n, gamma + 1]
    standing = np.ones(len(sent.seeds), dtype=bool)
    accepted = np.zeros(len(sent.seeds), dtype=np.int64)
    for step in range(sent.tokens.shape[1] - 2):
        context, token = contexts[:, step], sent.tokens[:, 2 + step]
        u = uniform(sent.seeds, Purpose.ACCEPT, sent.starts + step)
        fits = accepts(u, tables.draft[context, token], tables.target[context, token], tables.bits[context])
        standing &= fits & (step < sent.lengths)
        accepted += standing

    rows = np.arange(len(sent.seeds))
    positions, context = sent.starts + accepted, contexts[rows, accepted]
    rejected = accepted < sent.lengths
    ended = ~rejected & (accepted > 0) & ends[sent.tokens[rows, 1 + accepted]]
    next_tokens = np.full(len(rows), PAD)
    num_draws = np.zeros(len(rows), dtype=np.int64)
    full = ~rejected & ~ended
    next_tokens[full] = draw(
        tables.target[context[full]], uniform(sent.seeds[full], Purpose.PROPOSAL, positions[full], 0)
    )
    next_tokens[rejected], num_draws[rejected] = resample(
        tables.target[context[rejected]],
        tables.bits[context[rejected]],
        tables.draft[context[rejected]],
        sent.seeds[rejected],
        positions[rejected],
        form,
    )
    return Verdicts(accepted, next_tokens, num_draws)


def resample(
    target: Ints, bits: Ints, draft: Ints, seeds: Ints, positions: Ints, form: FormRule
) -> tuple[Ints, Ints]:
    """Draw from the residuals of the rows ``target`` and ``draft`` ``[n, V]``; also say how many draws
    went."""
    chosen = np.full(len(seeds), PAD)
    num_draws = np.zeros(len(seeds), dtype=np.int64)
    pending = np.arange(len(seeds))
    first_index, count = 0, FIRST_DRAWS
    while len(pending):
        assert count < 2**20, "a residual without mass"
        sizes = np.count_nonzero(target[pending], axis=1)
        goes_sparse = form(sizes, bits[pending], first_index)
        whole, pending = pending[goes_sparse], pending[~goes_sparse]
        residual = residual_weights(target[whole], bits[whole, None], draft[whole])
        chosen[whole] = draw(residual, uniform(seeds[whole], Purpose.RESIDUAL, positions[whole]))

        keys = seeds[pending, None], positions[pending, None], np.arange(first_index, first_index + count)
        ids = draw(target[pending, None, :], uniform(keys[0], Purpose.PROPOSAL, keys[1], keys[2]))
        passes = thin_passes(  # [pending, count], as ids
            thin_noise(*keys, ids),
            np.take_along_axis(target[pending], ids, axis=1),
            bits[pending, None],
            np.take_along_axis(draft[pending], ids, axis=1),
        )
        num_draws[pending] += count
        passed = passes.any(axis=1)
        chosen[pending[passed]] = ids[passed, passes[passed].argmax(axis=1)]
        pending = pending[~passed]
        first_index, count = first_index + count, count * 2
    return chosen, num_draws


def thin_noise(seeds: Ints, positions: Ints, indexes: Ints, ids: Ints) -> NDArray[np.float64]:
    """The draw each proposal's test compares with. ``ids`` must play no part in it."""
    return uniform(seeds, Purpose.THIN, positions, indexes)
