"""The laboratory: runs a strategy on a prompt under conditions, in virtual time, over remembered models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from acespec.bench.lab.cases import PromptCase
from acespec.bench.lab.lab_pair import LabPair
from acespec.bench.lab.memo_models import MemoModels, SampledModels, StoreReport
from acespec.bench.lab.profiles import DeviceProfile, TargetProfile
from acespec.bench.lab.simulated_link import LinkConditions, SimulatedChannel, SimulatedLink
from acespec.bench.lab.strategy import Processor, RunLog, RunResult, Strategy, World
from acespec.bench.virtual_clock import run_virtual
from acespec.edge_runtime import GenerationRequest
from acespec.speculation import SamplingParams


@dataclass(frozen=True)
class Conditions:
    """What a run meets, and what is asked of it. The same for every strategy that is compared."""

    edge: DeviceProfile
    cloud: TargetProfile
    link: LinkConditions
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    """Decides the text together with the prompt, and the link's jitter and loss."""
    max_new_tokens: int = 128
    end_tokens: bool = True
    """Whether an end token ends the text; without it every text is ``max_new_tokens`` long."""


class Laboratory:
    """A pair's models over a store of rows, which keeps what is computed. A context; or ``close`` it."""

    def __init__(self, pair: LabPair, store: Path | None = None, max_store_bytes: int | None = None) -> None:
        """``store`` is a folder, by default the pair's own in the cache.

        ``max_store_bytes`` bounds each of its files. Raises ``AcespecError`` if it holds another pair's rows.
        """
        bound = {} if max_store_bytes is None else {"max_bytes": max_store_bytes}
        self.models = MemoModels(pair, store, **bound)

    def run(self, strategy: Strategy, case: PromptCase, conditions: Conditions) -> RunResult:
        """Run ``strategy`` on ``case``. The result is the same every time and, from stored rows, everywhere.

        Raises what the strategy raises, and ``MissingRowError`` where a row is neither stored nor computable.
        """
        try:
            return run_virtual(self._run(strategy, case, conditions))
        finally:
            self.models.flush()

    def record(
        self,
        strategies: Sequence[Strategy],
        cases: Iterable[PromptCase],
        conditions: Sequence[Conditions],
        on_run: Callable[[RunResult], object] = lambda _: None,
    ) -> StoreReport:
        """Fill the store with all that these runs look up; what is there already is not computed again.

        Interrupted, it goes on where it was when it is called again. ``on_run`` is told every run.
        """
        for case in cases:
            for each in conditions:
                for strategy in strategies:
                    on_run(self.run(strategy, case, each))
        return self.models.report()

    def close(self) -> None:
        """Let go of the store."""
        self.models.close()

    def __enter__(self) -> Laboratory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _run(self, strategy: Strategy, case: PromptCase, conditions: Conditions) -> RunResult:
        identity = self.models.identity
        link = SimulatedLink(conditions.link, _link_seed(case, conditions.seed))
        models = SampledModels(self.models, conditions.sampling)
        world = World(
            request=GenerationRequest(
                prompt=case.prompt,
                end_token_ids=identity.end_token_ids if conditions.end_tokens else (),
                max_new_tokens=conditions.max_new_tokens,
                sampling=conditions.sampling,
                seed=conditions.seed,
            ),
            identity=identity,
            models=models,
            edge_profile=conditions.edge,
            cloud_profile=conditions.cloud,
            edge=Processor(),
            cloud=Processor(),
            link=link,
            up=SimulatedChannel(link.up.delay),
            down=SimulatedChannel(link.down.delay),
            log=RunLog(),
        )
        try:
            await strategy.run(world)
        except Exception:
            if models.missing is not None:
                raise models.missing from None
            raise
        return _result(strategy.name, world)


def _result(name: str, world: World) -> RunResult:
    log, link = world.log, world.link
    assert log.finish_reason is not None, "a strategy runs to the end of the text"
    assert log.first_token_ms is not None
    assert log.last_token_ms is not None
    total_ms = log.last_token_ms - log.started_ms
    return RunResult(
        strategy=name,
        tokens=tuple(log.tokens),
        finish_reason=log.finish_reason,
        ttft_ms=log.first_token_ms - log.started_ms,
        total_ms=total_ms,
        payload_up=link.up.traffic.payload_bytes,
        payload_down=link.down.traffic.payload_bytes,
        wire_up=link.up.traffic.wire_bytes,
        wire_down=link.down.traffic.wire_bytes,
        messages_up=link.up.traffic.messages,
        messages_down=link.down.traffic.messages,
        target_forwards=log.forwards,
        tested=log.tested,
        accepted=log.accepted,
        lookups=log.lookups,
        hits=log.hits,
        ready_tokens=log.ready_tokens,
        edge_idle_share=max(1.0 - world.edge.busy_ms / total_ms, 0.0) if total_ms > 0.0 else 0.0,
        inexact=log.inexact,
    )


def _link_seed(case: PromptCase, seed: int) -> int:
    """One for each case and seed, whatever the strategy: compared runs meet the same link."""
    digest = hashlib.blake2b(f"{case.dataset}/{case.id}/{seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
