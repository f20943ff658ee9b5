"""Pairs of draft and target that are known to work together, with settings to begin with."""

from __future__ import annotations

from dataclasses import dataclass

from acespec.errors import AcespecError
from acespec.speculation import Allocation, SamplingParams


@dataclass(frozen=True)
class Pair:
    """A draft and a target with one vocabulary, and recommended settings.

    ``initial_alpha`` and ``initial_beta`` only seed the estimators, which follow the session from its first
    round.
    """

    name: str
    target: str
    """Name of a known model (see ``catalog``)."""
    draft: str
    gamma: int
    """Tokens in a chain."""
    sampling: SamplingParams
    allocation: Allocation
    buckets: tuple[int, ...]
    """Step widths the draft's engine is built for."""
    initial_alpha: float
    """Share of drafted tokens the target accepts."""
    initial_beta: float
    """Exponent of the power law by which ranked branch candidates miss the next token (paper, section IV)."""
    draft_step_ms: float
    """One draft step of one token on the device."""
    target_step_ms: float
    """One target step in the cloud."""
    timing_source: str
    """Where the step times come from."""


_BUCKETS = (1, 8, 16, 32)
_DEMO_BUCKETS = (1, 4, 8, 12, 16, 20)  # one graph serves all in ONNX Runtime; wider trees hit little oftener
_QWEN_SAMPLING = SamplingParams(temperature=0.6, top_k=20, top_p=0.95)  # the models' own generation configs
_LLAMA_SAMPLING = SamplingParams(temperature=0.6, top_p=0.9)
_TARGET_32B = "target: 13.9 tokens/s autoregressive, AceSpec Table I (Qwen3-32B, 4x A100 40GB)"
_TARGET_70B = "target: 6.87 tokens/s autoregressive, AceSpec Table I (Llama-3.1-70B, 4x A100 40GB)"

_KNOWN = (
    Pair(
        name="smollm2-demo",
        target="smollm2-135m",
        draft="smollm2-135m-draft",
        gamma=6,
        sampling=SamplingParams(temperature=0.2, top_p=0.9),  # the example of the target's model card
        allocation=Allocation.ADAPTIVE,
        buckets=_DEMO_BUCKETS,
        initial_alpha=0.6,
        initial_beta=1.0,
        draft_step_ms=8.5,
        target_step_ms=146.0,
        timing_source=f"assumed, not measured: draft: as Qwen3-0.6B on AGX Orin; {_TARGET_70B}",
    ),
    Pair(
        name="qwen3-0.6b-32b",
        target="qwen3-32b",
        draft="qwen3-0.6b",
        gamma=6,
        sampling=_QWEN_SAMPLING,
        allocation=Allocation.GEOMETRIC,
        buckets=_BUCKETS,
        initial_alpha=0.7,
        initial_beta=1.0,
        draft_step_ms=8.5,
        target_step_ms=72.0,
        timing_source=f"draft: 117 tokens/s as published for Qwen3-0.6B on Jetson AGX Orin; {_TARGET_32B}",
    ),
    Pair(
        name="qwen3-1.7b-32b",
        target="qwen3-32b",
        draft="qwen3-1.7b",
        gamma=4,
        sampling=_QWEN_SAMPLING,
        allocation=Allocation.GEOMETRIC,
        buckets=_BUCKETS,
        initial_alpha=0.75,
        initial_beta=1.0,
        draft_step_ms=22.0,
        target_step_ms=72.0,
        timing_source=f"draft: 46 tokens/s as published for Qwen3-1.7B on Jetson AGX Orin; {_TARGET_32B}",
    ),
    Pair(
        name="llama-3.2-1b-3.1-70b",
        target="llama-3.1-70b",
        draft="llama-3.2-1b",
        gamma=6,
        sampling=_LLAMA_SAMPLING,
        allocation=Allocation.GEOMETRIC,
        buckets=_BUCKETS,
        initial_alpha=0.7,
        initial_beta=1.0,
        draft_step_ms=15.0,
        target_step_ms=146.0,
        timing_source=f"draft: 65 tokens/s as published for Llama-3.2-1B on Jetson AGX Orin; {_TARGET_70B}",
    ),
)

PAIRS = {pair.name: pair for pair in _KNOWN}
"""Known pairs by name."""

DEMO_PAIR = "smollm2-demo"


def pair(name: str) -> Pair:
    """The pair called ``name``. Raises ``AcespecError`` listing the known ones."""
    if name not in PAIRS:
        raise AcespecError(f"there is no pair called {name!r}; known pairs: {', '.join(sorted(PAIRS))}")
    return PAIRS[name]
