"""The text of a coupled generation, the slow way: one token after another, from the definition."""

from __future__ import annotations

from functools import lru_cache

from acespec.speculation import TokenCounts, coupled_pick, distribution
from acespec.wire import Open
from fake_draft import Table


def coupled_text(table: Table, request: Open, max_context: int = 2**24) -> list[int]:
    """All committed tokens at the end of ``request`` by a target whose logits are ``table``."""
    tokens = list(request.committed)
    prompt, generated = tokens[: request.prompt_length], tokens[request.prompt_length :]
    counts = TokenCounts(prompt, generated)
    while len(tokens) < min(request.token_limit, max_context):
        if len(tokens) > request.prompt_length and tokens[-1] in request.end_token_ids:
            break
        probs = distribution(table(tuple(tokens)), request.sampling, counts)
        token = coupled_pick(probs, request.seed, len(tokens))
        tokens.append(token)
        counts.push(token)
    return tokens


def remembered(table: Table) -> Table:
    """The same table, computed once for each path."""
    return lru_cache(maxsize=None)(table)
