"""When to send which drafted tokens: PipeSD's schedule of token batches (Han et al. 2026, Algorithm 1).

Batches go one after another; one of n tokens takes ``startup + n * per token`` to send, once its last token
is drafted and the batch before it is sent. The best boundaries finish the whole window soonest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class UploadCosts:
    """What sending and drafting take, in milliseconds."""

    startup_ms: float
    """Of each batch, whatever its size."""
    token_ms: float
    """Of each token sent."""
    draft_ms: float
    """Of each token drafted."""


@lru_cache(maxsize=4096)
def batch_ends(num_tokens: int, costs: UploadCosts) -> tuple[int, ...]:
    """After how many tokens to send a batch, ascending, the last after ``num_tokens``.

    Every shorter window ends as soon as it can, too; of batches that do, the fewest.
    """
    finish: list[tuple[float, int]] = [(0.0, 0)]  # when the first j tokens are sent, in how many batches
    begins: list[int] = [0]
    for end in range(1, num_tokens + 1):
        drafted = costs.draft_ms * end
        options = [
            (
                max(finish[begin][0], drafted) + costs.startup_ms + costs.token_ms * (end - begin),
                finish[begin][1] + 1,
            )
            for begin in range(end)
        ]
        best = min(options)
        finish.append(best)
        begins.append(options.index(best))
    ends: list[int] = []
    end = num_tokens
    while end > 0:
        ends.append(end)
        end = begins[end]
    return tuple(reversed(ends))


def finish_ms(ends: Sequence[int], costs: UploadCosts) -> float:
    """When the last of these batches is sent, from when drafting begins."""
    sent, begin = 0.0, 0
    for end in ends:
        sent = max(sent, costs.draft_ms * end) + costs.startup_ms + costs.token_ms * (end - begin)
        begin = end
    return sent
