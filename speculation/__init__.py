"""The maths both sides share: sampling, shared randomness, trees and masks, branch allocation. NumPy only."""

from __future__ import annotations

from acespec.speculation.params import SamplingParams

__all__ = ["SamplingParams"]
