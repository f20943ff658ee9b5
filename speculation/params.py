"""Sampling parameters of a request."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn; belongs to the request and applies to draft and target alike.

    Applied in this order, that of Hugging Face ``generate``: penalties, temperature, top-k, top-p, min-p.
    Repetition counts prompt and generated tokens; presence and frequency count generated tokens only.
    Raises ``ValueError`` naming the field that is out of range.
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        ranges = {
            "temperature": (0.0, 100.0),
            "top_k": (0, 2**31 - 1),
            "min_p": (0.0, 1.0),
            "repetition_penalty": (0.01, 100.0),  # a logit divided by less may overflow
            "presence_penalty": (-100.0, 100.0),
            "frequency_penalty": (-100.0, 100.0),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise ValueError(f"{name} must be between {low} and {high}, not {value}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1.0, not {self.top_p}")

    @property
    def has_penalties(self) -> bool:
        """Whether the distribution depends on which tokens came before, beyond the model itself."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
