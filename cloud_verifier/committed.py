"""The committed tokens of a session and what follows from them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from acespec.speculation import TokenCounts
from acespec.wire import Open, PrefixCheck


class CommittedText:
    """Tokens that are final, with their check, their penalty counts and the place where generation ends."""

    def __init__(self, request: Open, max_context: int) -> None:
        self.tokens = array("I", request.committed)
        """Four bytes each: a server holds many sessions."""
        self.end_token_ids = frozenset(request.end_token_ids)
        prompt, generated = self.tokens[: request.prompt_length], self.tokens[request.prompt_length :]
        self.counts = TokenCounts(prompt, generated) if request.sampling.has_penalties else None
        self._prompt_length = request.prompt_length
        self._limit = min(request.token_limit, max_context)
        self._check = PrefixCheck(self.tokens)

    def append(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self._check.update(tokens)
        if self.counts is not None:
            for token in tokens:
                self.counts.push(token)

    @property
    def check(self) -> int:
        """The 16-bit check of all committed tokens."""
        return self._check.value

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed before the request's limit or the target's context ends it."""
        return self._limit - len(self.tokens)

    @property
    def finished(self) -> bool:
        """Whether nothing may follow. An end token counts only after the prompt."""
        generated = len(self.tokens) > self._prompt_length
        return self.remaining <= 0 or (generated and self.tokens[-1] in self.end_token_ids)
