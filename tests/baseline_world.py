"""Worlds for the baselines: table models by the last two tokens, few enough to know every distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from acespec.bench.lab.profiles import DeviceProfile, TargetProfile
from acespec.bench.lab.simulated_link import LinkConditions, SimulatedChannel, SimulatedLink
from acespec.bench.lab.strategy import Processor, RunLog, Strategy, World
from acespec.bench.lab.token_path import TokenPath
from acespec.bench.virtual_clock import run_virtual
from acespec.edge_runtime import GenerationRequest
from acespec.speculation import CandidateRow, Distribution, LogitsRow, SamplingParams, distribution
from acespec.wire import AcceptanceMode
from joint_chi_square import expected_joint, joint_p_value
from lab_world import PROFILES, identity

VOCAB = 6
PROMPT = (3, 4)
END_TOKENS = (4, 5)  # the prompt ends in one: there it must not count
GREEDY = SamplingParams(temperature=0.0)
Table = NDArray[np.float32]
"""Logits after the tokens a, b: ``[V, V, V]``."""


def make_tables(seed: int = 3, distance: float = 1.2) -> tuple[Table, Table]:
    """Target and draft: as far apart as ``distance``, with point masses and disjoint supports among them."""
    generator = np.random.default_rng(seed)
    target = (1.5 * generator.normal(size=(VOCAB,) * 3)).astype(np.float32)
    target[..., END_TOKENS] -= 1.5  # or texts would be too short to show much
    draft = (target + distance * generator.normal(size=target.shape)).astype(np.float32)
    for a, b in ((0, 1), (2, 2)):
        target[a, b, : VOCAB // 2] = -np.inf
        draft[a, b, VOCAB // 2 :] = -np.inf
    draft[1, 0, 1:] = -np.inf
    target[1, 3, :-1] = -np.inf
    return target, draft


def opposite(target: Table) -> Table:
    """Logits whose largest are never the target's largest."""
    return np.where(np.isfinite(target), -target, np.float32(9.0))


class TableModels:
    """``Models`` over two tables."""

    def __init__(self, target: Table, draft: Table) -> None:
        self._target = target
        self._draft = draft

    @property
    def vocab_size(self) -> int:
        return self._target.shape[-1]

    def draft(self, path: TokenPath) -> LogitsRow:
        return LogitsRow(self._draft[_context(path)])

    def target(self, path: TokenPath) -> NDArray[np.float32]:
        return self._target[_context(path)]


def _context(path: TokenPath) -> tuple[int, int]:
    before = path.parent.token if path.parent is not None else path.prompt[-2]
    return before, path.token


class TableWorld(World):
    """A world that makes each context's distributions once: thousands of runs look the same ones up."""

    rows: dict[tuple[str, int, int], CandidateRow | Distribution]

    def draft(self, path: TokenPath) -> CandidateRow:
        key = ("draft", *_context(path))
        row = self.rows.get(key) or self.rows.setdefault(key, super().draft(path))
        assert isinstance(row, CandidateRow)
        return row

    def target(self, path: TokenPath) -> Distribution:
        key = ("target", *_context(path))
        row = self.rows.get(key) or self.rows.setdefault(key, super().target(path))
        assert isinstance(row, Distribution)
        return row


def make_world(
    models: TableModels,
    request: GenerationRequest,
    rtt_ms: float = 50.0,
    edge: DeviceProfile = PROFILES.edge,
    cloud: TargetProfile = PROFILES.cloud,
    conditions: LinkConditions | None = None,
) -> TableWorld:
    """A fresh world; to be made and run in simulated time."""
    link = SimulatedLink(conditions or LinkConditions.symmetric(rtt_ms), request.seed)
    world = TableWorld(
        request=request,
        identity=identity(vocab_size=models.vocab_size, end_token_ids=request.end_token_ids),
        models=models,
        edge_profile=edge,
        cloud_profile=cloud,
        edge=Processor(),
        cloud=Processor(),
        link=link,
        up=SimulatedChannel(link.up.delay),
        down=SimulatedChannel(link.down.delay),
        log=RunLog(),
    )
    world.rows = {}
    return world


def make_request(sampling: SamplingParams, seed: int = 0, max_new_tokens: int = 5) -> GenerationRequest:
    return GenerationRequest(PROMPT, END_TOKENS, max_new_tokens, sampling, seed, AcceptanceMode.RESIDUAL)


def run_one(strategy: Strategy, make: Callable[[], TableWorld]) -> TableWorld:
    """Run ``strategy`` in a world of its own."""

    async def main() -> TableWorld:
        world = make()
        await strategy.run(world)
        return world

    return run_virtual(main())


def sampled_texts(
    strategy: Strategy,
    models: TableModels,
    sampling: SamplingParams,
    seeds: Sequence[int],
    rtt_ms: float = 50.0,
) -> tuple[NDArray[np.int64], int, int]:
    """Texts ``[n, 5]`` of as many seeds, -1 behind an end; and how many tokens were tested and accepted."""

    async def main() -> tuple[NDArray[np.int64], int, int]:
        texts = np.full((len(seeds), 5), -1, np.int64)
        rows: dict[tuple[str, int, int], CandidateRow | Distribution] = {}
        tested = accepted = 0
        for place, seed in enumerate(seeds):
            world = make_world(models, make_request(sampling, seed), rtt_ms)
            world.rows = rows
            await strategy.run(world)
            tokens = world.log.tokens
            texts[place, : len(tokens)] = tokens
            tested, accepted = tested + world.log.tested, accepted + world.log.accepted
        return texts, tested, accepted

    return run_virtual(main())


def joint_p_values(
    texts: NDArray[np.int64],
    target: Table,
    sampling: SamplingParams,
    rounded: Callable[[Distribution], Distribution] = lambda exact: exact,
) -> list[float]:
    """The chi-square p-values of the first three tokens and of the last three, jointly."""
    probs = np.zeros(target.shape)
    for a, b in np.ndindex(target.shape[:2]):
        row = rounded(distribution(target[a, b], sampling))
        probs[a, b, row.ids] = row.probs
    return [
        joint_p_value(texts[:, skip : skip + 3], expected_joint(probs, PROMPT, END_TOKENS, skip))
        for skip in (0, 2)
    ]


@lru_cache
def greedy_text(seed: int, max_new_tokens: int = 5) -> tuple[int, ...]:
    """The target's own text at temperature 0, by ``make_tables(seed)``."""
    target, _ = make_tables(seed)
    text = list(PROMPT)
    while len(text) < len(PROMPT) + max_new_tokens and (
        len(text) == len(PROMPT) or text[-1] not in END_TOKENS
    ):
        text.append(int(target[text[-2], text[-1]].argmax()))
    return tuple(text[len(PROMPT) :])
