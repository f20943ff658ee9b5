"""Every strategy by the name that tables call it, with the settings that its pair recommends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from acespec.bench.lab.acespec_strategies import AceSpec, Autoregressive
from acespec.bench.lab.baselines import Colocated, Dssd, E2Sci, PicoSpec, PipeSd, Split, Vanilla
from acespec.bench.lab.strategy import Strategy
from acespec.edge_runtime import DraftSettings, SpeculationPolicy
from acespec.models import Pair
from acespec.wire import AcceptanceMode

BASELINE = "autoregressive"
"""What speedups are relative to."""

_MAKERS: Mapping[str, Callable[[Pair], Strategy]] = {
    BASELINE: lambda _: Autoregressive(),
    "vanilla": lambda _: Vanilla(),
    "split": lambda _: Split(),
    "dssd": lambda _: Dssd(),
    "picospec": lambda _: PicoSpec(),
    "pipesd": lambda _: PipeSd(),
    "e2sci": lambda _: E2Sci(),
    "colocated": lambda _: Colocated(),
    "acespec_residual": lambda pair: acespec(pair, AcceptanceMode.RESIDUAL),
    "acespec_coupled": lambda pair: acespec(pair, AcceptanceMode.COUPLED),
    "auto": lambda pair: acespec(pair, AcceptanceMode.COUPLED, gamma=None, policy=SpeculationPolicy.AUTO),
    "race": lambda pair: acespec(pair, AcceptanceMode.COUPLED, gamma=None, policy=SpeculationPolicy.RACE),
}
STRATEGY_NAMES = tuple(_MAKERS)


def strategy(name: str, pair: Pair) -> Strategy:
    """The strategy called ``name``, one of ``STRATEGY_NAMES``, as ``pair`` is best run."""
    return _MAKERS[name](pair)


def acespec(pair: Pair, mode: AcceptanceMode, **settings: object) -> AceSpec:
    """AceSpec with what is recommended for ``pair``, but for ``settings`` (fields of ``DraftSettings``)."""
    recommended = DraftSettings.recommended(pair)
    return AceSpec(mode, replace(recommended, **settings), pair.buckets)  # type: ignore[arg-type]


def with_gamma(strategy: Strategy, gamma: int) -> Strategy:
    """``strategy`` with chains of ``gamma`` tokens; as it is if it drafts none, or chooses by itself."""
    if isinstance(strategy, (Colocated, Dssd, E2Sci, PicoSpec, Vanilla)):
        return replace(strategy, gamma=gamma)
    if isinstance(strategy, AceSpec) and strategy.settings.gamma is not None:
        return replace(strategy, settings=replace(strategy.settings, gamma=gamma))
    return strategy
