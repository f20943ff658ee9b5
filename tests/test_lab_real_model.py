"""The demo pair in the laboratory: remembered rows give the run of the real engines, token for token.

With the draft in float32: one with rounded activations gives other rows at another width of step, up to a
logit apart, so its trees differ from run to run of other shapes; the laboratory's rows do not.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from acespec.bench.demo import PAIR, prepare
from acespec.bench.lab.acespec_strategies import AceSpec, Autoregressive, EdgeRunner, generate_over
from acespec.bench.lab.cases import PromptCase, chat_encoder
from acespec.bench.lab.lab_pair import LabPair, real_pair, recorded_pair
from acespec.bench.lab.laboratory import Conditions, Laboratory
from acespec.bench.lab.profiles import parse_profiles
from acespec.bench.lab.simulated_link import LinkConditions
from acespec.bench.lab.strategy import World
from acespec.cloud_verifier.transformers_engine import TransformersEngine
from acespec.edge_runtime import DraftModel
from acespec.edge_runtime.budget import bucket_for
from acespec.edge_runtime.ort_engine import OnnxRuntimeEngine
from acespec.models import resolve_model
from acespec.models.manifest import Bundle
from acespec.speculation import DraftLogits, SamplingParams
from acespec.wire import AcceptanceMode

pytestmark = [pytest.mark.laboratory, pytest.mark.real_model, pytest.mark.timeout(900)]

logger = logging.getLogger(__name__)
NEW_TOKENS = 16
WARM = SamplingParams(temperature=1.0, top_p=0.9)


class MeasuredEngine(OnnxRuntimeEngine):
    """A real engine that tells how wide its steps are."""

    step_width = 0

    def forward(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        mask: NDArray[np.bool_],
        last_only: bool = False,
    ) -> DraftLogits:
        count = len(tokens)
        self.step_width = bucket_for(count, self.buckets) if count <= self.buckets[-1] else count
        return super().forward(tokens, positions, mask, last_only)


@functools.cache
def bundle() -> Bundle:
    return prepare(logger.info, "fp32")


@functools.cache
def pair() -> LabPair:
    bundle()
    return real_pair(f"{PAIR.name}-fp32", bundle(), resolve_model(PAIR.target))


@functools.cache
def target() -> TransformersEngine:
    return TransformersEngine.load(resolve_model(PAIR.target), threads=1)


@dataclass(frozen=True)
class OnTheEngines:
    """AceSpec on the demo's own engines."""

    strategy: AceSpec

    @property
    def name(self) -> str:
        return self.strategy.name

    async def run(self, world: World) -> None:
        engine = MeasuredEngine(bundle(), threads=1)
        steps = {bucket: world.edge_profile.step_ms(bucket) for bucket in engine.buckets}
        world.request = replace(world.request, mode=self.strategy.mode)
        draft = DraftModel(engine, lambda _: steps, EdgeRunner(world, engine))
        await generate_over(world, target(), draft, self.strategy.settings)


def conditions(**changes: Any) -> Conditions:
    profiles = parse_profiles("orin-qwen3-0.6b/a100-70b")
    link = LinkConditions.symmetric(50.0)
    usual = Conditions(profiles.edge, profiles.cloud, link, PAIR.sampling, 7, NEW_TOKENS, end_tokens=False)
    return replace(usual, **changes)


def case() -> PromptCase:
    return PromptCase("test", "0", tuple(chat_encoder(bundle())("Explain why the sky is blue.")))


@pytest.mark.parametrize(
    ("mode", "sampling"), [(AcceptanceMode.COUPLED, PAIR.sampling), (AcceptanceMode.RESIDUAL, WARM)]
)
def test_remembered_rows_give_the_run_of_the_real_engines(
    tmp_path: Path, mode: AcceptanceMode, sampling: SamplingParams
) -> None:
    meets, strategy = conditions(sampling=sampling), AceSpec(mode)
    with Laboratory(pair(), tmp_path) as laboratory:
        expected = laboratory.run(OnTheEngines(strategy), case(), meets)
        assert laboratory.run(strategy, case(), meets) == expected
        assert laboratory.models.draft_rows_computed > 100
        if mode is AcceptanceMode.COUPLED:
            assert laboratory.run(Autoregressive(), case(), meets).tokens == expected.tokens
    with Laboratory(recorded_pair(tmp_path), tmp_path) as replay:
        assert replay.run(strategy, case(), meets) == expected
