"""Repetition, presence and frequency penalties: the part of sampling that looks back at earlier tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from acespec.speculation.params import SamplingParams


class TokenCounts:
    """The tokens a penalty sees: the prompt's, and how often each was generated.

    Penalties see committed tokens only; within a chain, row i also sees the chain's first i tokens. So
    whoever walks along a chain pushes each of its tokens to a copy: those rejected are never counted.
    """

    def __init__(self, prompt: Iterable[int], generated: Iterable[int] = ()) -> None:
        self._prompt = frozenset(prompt)
        self._counts = Counter(generated)

    def push(self, token: int) -> None:
        """Count one more generated token."""
        self._counts[token] += 1

    def copy(self) -> TokenCounts:
        """An independent copy; the prompt is shared."""
        other = TokenCounts(self._prompt)
        other._counts = self._counts.copy()
        return other

    def penalize(
        self, ids: NDArray[np.int64], logits: NDArray[np.float64], params: SamplingParams
    ) -> NDArray[np.float64]:
        """Return penalized copies of the ``logits`` ``[n]`` of the ascending ``ids`` ``[n]``.

        Repetition divides a positive logit and multiplies a negative one (Keskar et al., CTRL, 2019, as in
        Hugging Face); frequency subtracts per occurrence and presence once (OpenAI's definition).
        """
        logits = logits.copy()
        if params.repetition_penalty != 1.0:
            seen = _find(ids, self._prompt.union(self._counts))
            raw = logits[seen]
            factor = params.repetition_penalty
            logits[seen] = np.where(raw > 0.0, raw / factor, raw * factor)
        if self._counts and (params.presence_penalty != 0.0 or params.frequency_penalty != 0.0):
            generated = np.fromiter(self._counts, np.int64, len(self._counts))
            times = np.fromiter(self._counts.values(), np.int64, len(self._counts))
            places = np.minimum(np.searchsorted(ids, generated), len(ids) - 1)
            held = ids[places] == generated
            penalty = params.frequency_penalty * times[held] + params.presence_penalty
            logits[places[held]] -= penalty
        return logits


def _find(ids: NDArray[np.int64], tokens: frozenset[int]) -> NDArray[np.int64]:
    """Indexes in the ascending ``ids`` of those ``tokens`` that are there."""
    wanted = np.fromiter(tokens, np.int64, len(tokens))
    places = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    found: NDArray[np.int64] = places[ids[places] == wanted]
    return found
