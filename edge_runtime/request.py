"""What is asked of the edge and what it hands back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from acespec.edge_runtime.budget import fixed_budget
from acespec.edge_runtime.time_model import GAMMAS
from acespec.models import Pair
from acespec.speculation import Allocation, Ranking, SamplingParams
from acespec.wire import MAX_CHAIN, POSITION_LIMIT, AcceptanceMode


class FinishReason(str, Enum):
    """Why a generation ended."""

    END_TOKEN = "end_token"  # noqa: S105 - not a password
    LENGTH = "length"
    OUTAGE = "outage"
    """The verifier stayed out of reach."""


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt and how to continue it. Raises ``ValueError`` naming the field that is out of range."""

    prompt: tuple[int, ...]
    end_token_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    mode: AcceptanceMode = AcceptanceMode.COUPLED

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("the prompt is empty: give at least one token")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        if self.token_limit >= POSITION_LIMIT:
            raise ValueError(
                f"a prompt of {len(self.prompt)} tokens and {self.max_new_tokens} new ones are more than the "
                f"{POSITION_LIMIT - 1} a session may have: lower max_new_tokens"
            )
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be between 0 and 2**64 - 1, not {self.seed}")

    @property
    def token_limit(self) -> int:
        """Absolute position at which generation ends, prompt included."""
        return len(self.prompt) + self.max_new_tokens


class SpeculationPolicy(str, Enum):
    """What a draft model is used for."""

    ROUNDS = "rounds"
    """Speculate all the time."""
    AUTO = "auto"
    """Speculate where that is faster than what the cloud decodes by itself."""
    RACE = "race"
    """The cloud decodes, and takes along what is drafted by then (coupled mode)."""


@dataclass(frozen=True)
class DraftSettings:
    """How the edge speculates: none of it changes the text (coupled) or its distribution (residual)."""

    gamma: int | None = 4
    """Longest chain; None: chosen with the budget, by what the link and the models turn out to be."""
    budget: int | None = None
    """Tree nodes a step, gamma included; None follows the network (paper Eq. 5)."""
    allocation: Allocation = Allocation.GEOMETRIC
    initial_alpha: float = 0.6
    """Acceptance rate assumed before any token was checked."""
    initial_beta: float = 0.8
    """Exponent of the candidate tail assumed before any rejection was seen."""
    policy: SpeculationPolicy = SpeculationPolicy.ROUNDS
    ranking: Ranking = Ranking.COUPLED
    """In which order the candidates of a branch are tried."""

    def __post_init__(self) -> None:
        if self.gamma is not None and not 1 <= self.gamma <= MAX_CHAIN:
            raise ValueError(f"gamma must be between 1 and {MAX_CHAIN}, not {self.gamma}")
        least = 1 if self.gamma is None else self.gamma
        if self.budget is not None and self.budget < least:
            raise ValueError(
                f"budget counts the chain too: it must be at least gamma ({least}), not {self.budget}"
            )

    @classmethod
    def recommended(cls, pair: Pair) -> DraftSettings:
        """What is recommended for ``pair``."""
        return cls(
            gamma=pair.gamma,
            allocation=pair.allocation,
            initial_alpha=pair.initial_alpha,
            initial_beta=pair.initial_beta,
        )

    def check_buckets(self, buckets: Sequence[int]) -> None:
        """``ValueError`` if the budget needs a step wider than all ``buckets`` (ascending)."""
        if self.budget is not None:
            fixed_budget(self.budget, self.gamma or min(self.budget, GAMMAS[-1]), buckets)
