"""Laboratories over tables: models that are pure functions of a path, and cost nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from acespec.bench.lab.acespec_strategies import AceSpec, Autoregressive, EdgeRunner, generate_over
from acespec.bench.lab.cases import PromptCase
from acespec.bench.lab.lab_pair import LabPair, PairIdentity
from acespec.bench.lab.laboratory import Conditions
from acespec.bench.lab.profiles import ProfilePair, parse_profiles
from acespec.bench.lab.row_sources import EngineDraftSource, EngineTargetSource
from acespec.bench.lab.simulated_link import LinkConditions
from acespec.bench.lab.strategy import World
from acespec.edge_runtime import DraftModel
from acespec.edge_runtime.budget import bucket_for
from acespec.speculation import SamplingParams
from fake_draft import TableDraftEngine, hashed_table, mixed
from fake_target import TableTargetEngine, target_info

VOCAB = 40
CONTEXT = 256
PREFILL_WIDTH = 24
BUCKETS = (1, 4, 8, 16)
END = 0
TARGET = hashed_table(VOCAB, salt=1)
DRAFT = mixed(hashed_table(VOCAB, salt=2), TARGET, 0.7)
PROFILES: ProfilePair = parse_profiles("orin-qwen3-0.6b/a100-70b")


def draft_engine(top_k: int | None = None) -> MeasuredTableEngine:
    return MeasuredTableEngine(DRAFT, VOCAB, BUCKETS, CONTEXT, 8192, PREFILL_WIDTH, top_k)


def target_engine() -> TableTargetEngine:
    return TableTargetEngine(TARGET, VOCAB, CONTEXT)


def identity(**changes: object) -> PairIdentity:
    info = target_info(VOCAB, CONTEXT)
    facts = PairIdentity(
        name="tables",
        draft_fingerprint="d" * 64,
        draft_precision="fp32",
        target_name=info.name,
        target_fingerprint=info.fingerprint,
        vocabulary_hash=info.vocabulary_hash,
        vocab_size=VOCAB,
        end_token_ids=(END,),
        draft_context=CONTEXT,
        draft_prefill_width=PREFILL_WIDTH,
        target_context=CONTEXT,
        computed_by="tables",
    )
    return facts.model_copy(update=changes)


def table_pair(top_k: int | None = None) -> LabPair:
    return LabPair(
        identity(),
        lambda: EngineDraftSource(draft_engine(top_k)),
        lambda: EngineTargetSource(target_engine()),
    )


def case(*prompt: int, name: str = "0") -> PromptCase:
    return PromptCase("tables", name, prompt or (7, 3, 9))


def conditions(rtt_ms: float = 50.0, **changes: object) -> Conditions:
    link = LinkConditions.symmetric(rtt_ms)
    usual = Conditions(PROFILES.edge, PROFILES.cloud, link, SamplingParams(top_p=0.9), 7, max_new_tokens=24)
    return replace(usual, **changes)  # type: ignore[arg-type]


class MeasuredTableEngine(TableDraftEngine):
    """A table that tells how wide its steps are."""

    @property
    def step_width(self) -> int:
        width = self.widths[-1]
        return bucket_for(width, self.buckets) if width <= self.buckets[-1] else width


@dataclass(frozen=True)
class Unremembered:
    """The same strategy on the engines themselves: nothing is looked up."""

    remembered: AceSpec | Autoregressive
    top_k: int | None = None

    @property
    def name(self) -> str:
        return self.remembered.name

    async def run(self, world: World) -> None:
        strategy = self.remembered
        if isinstance(strategy, Autoregressive):
            await generate_over(world, target_engine(), None)
            return
        engine = draft_engine(self.top_k)
        steps = {bucket: world.edge_profile.step_ms(bucket) for bucket in engine.buckets}
        world.request = replace(world.request, mode=strategy.mode)
        draft = DraftModel(engine, lambda _: steps, EdgeRunner(world, engine))
        await generate_over(world, target_engine(), draft, strategy.settings)
